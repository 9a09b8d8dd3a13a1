"""A made-up study in a folder, and a real browser."""

import fcntl
import json
import math
import os
import shutil
import subprocess

import numpy as np
import pytest
import yaml

from toolkit.claims import build_study
from toolkit.history import History, write_json

TAILS = {"": 0.0, "_useful": -0.014, "_random": -0.009, "_longer": -0.010}
VARIANTS = [head + tail for head in ("sgd", "sam") for tail in TAILS]
GROUPS = [f"{digit}" for digit in range(10)]
SEEDS = range(5)
EPOCHS = 30


def comparison(arm, baseline, text, **more):
    return {
        "_target_": "toolkit.claims.Comparison",
        "text": text,
        "source": "Nguyen et al. 2024, Fig. 4",
        "metric": "test/error",
        "arm": arm,
        "baseline": baseline,
        "expect": "lower",
        **more,
    }


CLAIMS = {
    "useful_helps_sgd": comparison(
        "sgd_useful",
        "sgd",
        "Upsampling the slow examples lowers the test error of SGD, beyond what as many random "
        "examples or as many updates do.",
        controls=["sgd_random", "sgd_longer"],
    ),
    "useful_helps_sam": comparison(
        "sam_useful", "sam", "Upsampling the slow examples lowers the test error of SAM."
    ),
    "sam_helps": comparison("sam", "sgd", "SAM has a lower test error than SGD."),
    "plain_is_best": comparison("sgd", "sam_useful", "Plain SGD is as good as it gets."),
    "useful_at_equal_updates": comparison(
        "sgd_useful", "sgd", "Upsampling helps at equal updates.", equal="updates"
    ),
    "order": {
        "_target_": "toolkit.claims.Ordering",
        "text": "SAM with upsampling, SAM, SGD: in this order.",
        "source": "Nguyen et al. 2024, Fig. 4",
        "metric": "test/error",
        "variants": ["sam_useful", "sam", "sgd"],
    },
}


def recipe_of(variant, seed):
    optimizer = {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9}
    if variant.startswith("sam"):
        optimizer = {"_target_": "toolkit.optim.SAM", "base": optimizer, "rho": 0.05}
    callbacks = {"margin": {"_target_": "callbacks.MarginLogger", "every": 1}}
    if variant.endswith(("_useful", "_random")):
        selection = "slow" if variant.endswith("_useful") else "random"
        callbacks["useful"] = {
            "_target_": "callbacks.UsefulUpsampling",
            "separation_epochs": 2,
            "selection": selection,
        }
    epochs = 42 if variant.endswith("_longer") else EPOCHS
    return {
        "seed": seed,
        "model": {"_target_": "toolkit.models.ImageClassifier", "optimizer": optimizer},
        "data": {"_target_": "toolkit.data.Digits", "batch_size": 64, "seed": seed},
        "trainer": {"max_epochs": epochs},
        "callbacks": callbacks,
    }


def write_history(folder, rng, error, epochs, per_epoch):
    history = History(folder / "history.jsonl")
    for epoch in range(2):
        history.append({"stage": "separation", "epoch": epoch, "update": 9, "val/error": 0.9})
    for epoch in range(epochs):
        progress = 1 - math.exp(-(epoch + 1) / (epochs / 6))
        seen = per_epoch * (epoch + 1)
        val = 0.9 - (0.9 - error) * progress + 0.004 * rng.standard_normal()
        row = {
            "stage": "training",
            "epoch": epoch + 1,
            "update": seen,
            "examples_seen": 64 * seen,
            "time": 0.1 * epoch,
            "train/loss": 2.3 * math.exp(-(epoch + 1) / (epochs / 5)) + 0.01,
            "val/error": max(0.0, val),
            "train/margin/min": -4 + 5 * progress + 0.2 * rng.standard_normal(),
            "train/margin/median": 9 * progress + 0.2 * rng.standard_normal(),
        }
        for i, name in enumerate(GROUPS):
            drop = 0.02 * (i == 8) + 0.004 * i
            row[f"val/group_acc/{name}"] = min(1.0, max(0.0, 1 - val - drop))
        history.append(row)


def write_selection(folder, rng, targets, kind):
    selected = np.flatnonzero(rng.random(len(targets)) < 0.2 + 0.03 * targets)
    clusters = {"fast": np.setdiff1d(np.arange(len(targets)), selected), "slow": selected}
    classes = [
        {
            "class": int(c),
            **{
                side: {"count": int((targets[members] == c).sum()), "mean_loss": 0.1}
                for side, members in clusters.items()
            },
        }
        for c in np.unique(targets)
    ]
    content = {
        "settings": {"selection": kind},
        "separation_epochs": 2,
        "num_examples": len(targets),
        "classes": classes,
        "selected": selected,
    }
    write_json(content, folder / "useful.json")
    chosen = np.arange(40)
    ramp = np.linspace(0, 255, 64).reshape(8, 8)
    images = np.stack([np.roll(ramp, 3 * i) for i in chosen]).astype(np.uint8)[..., None]
    np.savez_compressed(
        folder / "pictures.npz",
        images=images,
        selected=chosen < 20,
        targets=targets[chosen],
        indices=chosen,
    )


def write_run(folder, variant, seed):
    rng = np.random.default_rng([seed, VARIANTS.index(variant)])
    head, _, tail = variant.partition("_")
    more = TAILS[f"_{tail}" if tail else ""]
    shared = 0.004 * np.random.default_rng(seed).standard_normal()
    error = 0.058 + more - 0.008 * (head == "sam") + shared + 0.003 * rng.standard_normal()
    epochs, per_epoch = (
        (42, 10) if tail == "longer" else (EPOCHS, 14 if tail in ("useful", "random") else 10)
    )
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe_of(variant, seed)))
    environment = {"python": "3.11.2", "cores": 2, "versions": {"torch": "2.9.0"}, "commit": "abc"}
    write_json(environment, folder / "environment.json")
    write_history(folder, rng, error, epochs, per_epoch)
    if tail in ("useful", "random"):
        write_selection(folder, rng, np.arange(600) % 10, "slow" if tail == "useful" else "random")
    metrics = {"test/error": error, "test/acc": 1 - error, "test/worst_group_acc": 0.97 - 2 * error}
    metrics |= {f"test/group_acc/{g}": 1 - error - 0.004 * i for i, g in enumerate(GROUPS)}
    result = {
        "recipe": "toy",
        "variant": variant,
        "seed": seed,
        "status": "finished",
        "seconds": 1.5 * (1 + (head == "sam")) + 0.1 * seed,
        "updates": epochs * per_epoch,
        "epochs": epochs,
        "examples_seen": 64 * epochs * per_epoch,
        "metrics": metrics,
    }
    write_json(result, folder / "result.json")
    return result


META = {
    "recipe": "quickstart",
    "title": "Does upsampling slowly learnt digits lower the test error?",
    "paper": "Nguyen, Haddad, Gan, Mirzasoleiman 2024, arXiv:2404.17768",
    "description": "A small convolutional net on handwritten digits, trained by SGD and by SAM, "
    "plain and with the slowly learnt examples upsampled; random upsampling and longer training "
    "as controls.",
    "minutes": 1.5,
    "report": {"metric": "test/error"},
}


def make_study(folder, variants=VARIANTS, seeds=SEEDS, meta=META, claims=CLAIMS):
    results = {
        name: {seed: write_run(folder / name / f"seed{seed}", name, seed) for seed in seeds}
        for name in variants
    }
    study = build_study(meta, results, claims)
    write_json(study, folder / "study.json")
    return folder


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory):
    """Eight variants, five seeds, histories with groups and margins, pictures."""
    return make_study(tmp_path_factory.mktemp("runs") / "quickstart")


@pytest.fixture
def small_study(tmp_path):
    """A function that makes a study of the given variants and seeds."""

    def make(**settings):
        return make_study(tmp_path / "toy", **settings)

    return make


def _high_pipe():
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    """Headless Chromium over its debugging pipe: JSON messages that end in a zero byte.

    Unlike ``--window-size``, which cannot go below some 500 px, this sets the viewport itself.
    """

    def __init__(self, path, profile):
        # High numbers first, so that neither of the two that the browser uses is overwritten.
        to_read, self._send = _high_pipe()
        self._receive, to_write = _high_pipe()

        def connect():
            os.dup2(to_read, 3)
            os.dup2(to_write, 4)

        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [path, *options, "about:blank"],
            preexec_fn=connect,
            close_fds=False,  # all others close on exec anyway
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path, width, *, dark=False, media="screen"):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=844, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme], media=media)
        self.call("Page.navigate", url=path.as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def close(self):
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            os.close(self._send)
            os.close(self._receive)
            self._process.wait(timeout=20)

    def _next(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._receive, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A running headless Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is installed")
    browser = Browser(path, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
