"""A run killed at any moment and started again equals one that was never interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, run_fit, write_recipe
from toolkit.history import read_history

KILLER = '''
"""Ends its own process, once, when something has happened a number of times."""

import os
import signal
from pathlib import Path

import lightning as L


class Killer(L.Callback):
    runs_in_separation = True

    def __init__(self, what: str = "batch", count: int = 1) -> None:
        self.what, self.left = what, count

    def setup(self, trainer, pl_module, stage):
        if self.what == "checkpoint":
            replace = os.replace

            def dying(source, target):
                if str(target).endswith(".ckpt"):
                    self.tick()
                replace(source, target)

            os.replace = dying

    def on_train_batch_end(self, *arguments):
        if self.what == "batch":
            self.tick()

    def on_train_epoch_end(self, *arguments):
        if self.what == "epoch":
            self.tick()

    def tick(self):
        self.left -= 1
        marker = Path("killed")
        if self.left == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''
WALL_CLOCK = {"time", "seconds"}


def results(folder: Path) -> dict[str, Any]:
    """Everything that two equal studies share: weights, record and verdicts, clocks apart."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("last.ckpt")):
        checkpoint = torch.load(path, weights_only=True)
        for name, value in checkpoint["state_dict"].items():
            found[f"{path.relative_to(folder)}:{name}"] = value.tolist()
        found[f"{path.relative_to(folder)}:optimizer"] = repr(checkpoint["optimizer_states"])
    for path in sorted(folder.rglob("history.jsonl")):
        rows = read_history(path)
        found[str(path.relative_to(folder))] = [_without_clocks(row) for row in rows]
    for path in sorted([*folder.rglob("result.json"), folder / "study.json"]):
        found[str(path.relative_to(folder))] = _without_clocks(json.loads(path.read_text()))
    assert found
    return found


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clocks(v) for key, v in value.items() if key not in WALL_CLOCK}
    if isinstance(value, list):
        return [_without_clocks(item) for item in value]
    return value


def start(folder: Path, *arguments: str, recipe: str = "tiny.yaml") -> "subprocess.Popen[str]":
    """A study in a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.fit", recipe, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The uninterrupted study, with the killer in it but idle."""
    folder = _workplace(tmp_path_factory.mktemp("reference"))
    (folder / "killed").touch()
    done = run_fit(["tiny.yaml", *_FIXED], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return results(folder / "runs" / "tiny")


_FIXED = ("--variants", "sgd,sam_useful", "--seeds", "0", "--jobs", "1")
_KILLER_NODE = "  killer: {_target_: killer.Killer, what: batch, count: 1}\n"


def _workplace(folder: Path, what: str = "batch", count: int = 1) -> Path:
    (folder / "killer.py").write_text(KILLER)
    node = _KILLER_NODE.replace("batch", what).replace("count: 1", f"count: {count}")
    text = TINY.replace("callbacks:\n", "packages: [killer]\ncallbacks:\n" + node, 1)
    write_recipe(folder / "tiny.yaml", text)
    return folder


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("batch", 3),  # the first epoch of the run, or of its separation
        ("batch", 7),  # the last epoch of the separation
        ("batch", 11),  # the training after it
        ("epoch", 2),  # the end of the separation
        ("checkpoint", 2),  # the new file is written, the old one still in its place
        ("checkpoint", 5),
    ],
)
def test_killed_run_continues_as_if_nothing_had_happened(
    tmp_path: Path, reference: dict[str, Any], what: str, count: int
) -> None:
    folder = _workplace(tmp_path, what, count)
    killed = run_fit(["tiny.yaml", *_FIXED], folder)
    assert killed.returncode == 3, killed.stdout + killed.stderr
    assert "SIGKILL" in killed.stdout
    # The node of the killer is part of the fingerprint, so it must stay as it was.
    again = run_fit(["tiny.yaml", *_FIXED], folder)
    assert again.returncode == 0, again.stdout + again.stderr
    found = results(folder / "runs" / "tiny")
    assert found.keys() == reference.keys()
    for key in reference:
        assert found[key] == reference[key], key


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_study_killed_at_a_random_moment_continues(
    tmp_path: Path, reference: dict[str, Any], seed: int
) -> None:
    folder = _workplace(tmp_path)
    (folder / "killed").touch()
    process = start(folder, *_FIXED)
    first = folder / "runs" / "tiny" / "sgd" / "seed0"
    while not first.exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(random.Random(seed).uniform(0.0, 5.0))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = run_fit(["tiny.yaml", *_FIXED], folder)
    assert again.returncode == 0, again.stdout + again.stderr
    found = results(folder / "runs" / "tiny")
    for key in reference:
        assert found[key] == reference[key], key


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    folder = _workplace(tmp_path)
    (folder / "killed").touch()
    process = start(folder, *_FIXED, "trainer.max_epochs=10000")
    lock = folder / "runs" / "tiny" / "sgd" / "seed0" / ".lock"
    deadline = time.monotonic() + 120
    while not lock.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = json.loads(lock.read_text())["pid"]
    process.kill()  # the parent alone
    process.wait()
    deadline = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
