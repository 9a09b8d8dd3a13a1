"""ExampleDynamics: the archive of a fit, on logits that are known and beside other callbacks."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from callbacks import ExampleDynamics, UsefulUpsampling
from callbacks.example_dynamics import _check
from tests.callbacks.test_observers import (
    Batches,
    Model,
    SaveDuring,
    Skipping,
    plain_net,
    stochastic_net,
)
from toolkit.data.selection import UpsampledSet
from toolkit.functional import Fields
from toolkit.metrics import first_learned_epoch, forgetting_score, learned_for_good_epoch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no.*")


def trainer(folder: Path, callbacks: list[L.Callback], epochs: int = 3, **more: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=callbacks,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def archive(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


class Watch(L.Callback):
    """The independent record: a dict per epoch, in plain Python, of what each step returned."""

    def __init__(self) -> None:
        self.epochs: list[dict[int, tuple[float, bool, float]]] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.epochs.append({})

    def on_train_batch_end(self, trainer: L.Trainer, _: Any, outputs: Any, batch: Any, *__: Any):
        for logits, target, index in zip(
            outputs["logits"].detach(), batch["targets"], batch["indices"], strict=True
        ):
            others = torch.cat([logits[:target], logits[target + 1 :]])
            self.epochs[-1][int(index)] = (
                float(logits.logsumexp(0) - logits[target]),
                int(logits.argmax()) == int(target),
                float(logits[target] - others.max()),
            )


def test_the_arrays_are_the_last_visits_of_each_epoch(tmp_path: Path) -> None:
    """Examples 0 to 7 come twice an epoch, as copies do; the second visit counts."""
    watch = Watch()
    run = trainer(tmp_path, [watch, ExampleDynamics()])
    run.fit(Model(plain_net()), Batches())
    arrays = archive(tmp_path / "examples.npz")
    assert arrays["loss"].shape == (3, 40)
    for epoch, visits in enumerate(watch.epochs):
        assert len(visits) == 40
        rows = zip(*(visits[i] for i in range(40)), strict=True)
        for name, expected in zip(("loss", "correct", "margin"), rows, strict=True):
            np.testing.assert_allclose(arrays[name][epoch], expected, rtol=1e-5, atol=1e-6)
    assert arrays["targets"].tolist() == [i % 3 for i in range(40)]
    assert set(arrays["cluster"]) == {-1}
    correct = torch.from_numpy(arrays["correct"])
    for name, score in (
        ("forgetting_score", forgetting_score),
        ("first_learned", first_learned_epoch),
        ("learned_for_good", learned_for_good_epoch),
    ):
        np.testing.assert_array_equal(arrays[name], score(correct))
        assert run.callback_metrics[f"train/{name}"] == arrays[name].mean()
    logged = {key for key in run.callback_metrics if "learned" in key or "forgetting" in key}
    assert logged < set(ExampleDynamics.logged_keys)


class Two(L.LightningModule):
    """A model whose validation sees other data than its training, and tuples all along."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        scores = self(batch[0])
        return {"loss": F.cross_entropy(scores, batch[1]), "scores": scores}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


FIELDS: Any = {
    "logits": "scores",
    "targets": lambda batch: batch[1],
    "indices": lambda batch: batch[2],
}


def loader(count: int, **settings: Any) -> DataLoader[Any]:
    data = Batches()
    rows = (data.inputs[:count], data.targets[:count], torch.arange(count))
    return DataLoader(TensorDataset(*rows), batch_size=7, **settings)


def test_a_plain_project_observes_training_and_validation_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "there" / "mine.npz"
    train = ExampleDynamics(path=str(path), fields=FIELDS)
    val = ExampleDynamics("val", fields=FIELDS)
    run = trainer(tmp_path, [train, val], check_val_every_n_epoch=2)
    model = Two()
    run.fit(model, loader(40, shuffle=True, drop_last=True), loader(20))
    arrays = archive(path)
    # A partial last batch is dropped: 35 of the 40 examples are visited in each epoch.
    assert (arrays["correct"] != 255).sum(1).tolist() == [35, 35, 35]
    assert np.array_equal(np.isnan(arrays["loss"]), arrays["correct"] == 255)
    arrays = archive(tmp_path / "examples-val.npz")
    # Validated after the second epoch only.
    assert arrays["loss"].shape == (2, 20)
    assert np.isnan(arrays["loss"][0]).all()
    assert not np.isnan(arrays["loss"][1]).any()
    assert {"train/first_learned", "val/first_learned"} <= run.callback_metrics.keys()


def test_validation_of_the_final_weights_is_what_the_model_says_of_them(tmp_path: Path) -> None:
    model = Two()
    trainer(tmp_path, [ExampleDynamics("val", fields=FIELDS)]).fit(model, loader(40), loader(20))
    inputs, targets, _ = loader(20).dataset[:]
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    np.testing.assert_allclose(archive(tmp_path / "examples-val.npz")["loss"][-1], losses.detach(),
                               rtol=1e-5)  # fmt: skip


def test_observed_weights_and_random_numbers_are_those_of_an_unobserved_run(tmp_path: Path) -> None:
    states, generators = [], []
    for callbacks in ([], [ExampleDynamics(), ExampleDynamics("val")]):
        model = Model(stochastic_net())
        torch.manual_seed(7)
        trainer(tmp_path, callbacks).fit(model, Batches(), Batches(copies=False))
        states.append(model.state_dict())
        generators.append(torch.get_rng_state())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert torch.equal(*generators)


@pytest.mark.filterwarnings("ignore:.*You're resuming from a checkpoint that ended before.*")
def test_a_run_killed_within_an_epoch_ends_with_the_same_archive(tmp_path: Path) -> None:
    def observers() -> list[L.Callback]:
        return [ExampleDynamics(), ExampleDynamics("val")]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = trainer(whole, observers(), epochs=2)
    run.fit(Model(plain_net()), Batches(), Batches(copies=False))
    path = tmp_path / "middle.ckpt"
    first = trainer(killed, [*observers(), SaveDuring(9, path)], epochs=2)
    with pytest.raises(SystemExit):
        first.fit(Model(plain_net()), Batches(), Batches(copies=False))
    assert not (killed / "examples.npz").exists()
    second = trainer(killed, observers(), epochs=2)
    second.fit(
        Model(plain_net()), Skipping(3), Batches(copies=False), ckpt_path=path, weights_only=True
    )
    for name in ("examples.npz", "examples-val.npz"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    expected = {key: float(value) for key, value in run.callback_metrics.items()}
    assert {key: float(value) for key, value in second.callback_metrics.items()} == expected
    assert len(expected) == 6


def test_a_checkpoint_of_the_very_end_still_gives_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "end.ckpt"
    run = trainer(tmp_path / "first", [ExampleDynamics()])
    run.fit(Model(plain_net()), Batches())
    run.save_checkpoint(path)
    again = trainer(tmp_path / "second", [ExampleDynamics()])
    again.fit(Model(plain_net()), Batches(), ckpt_path=path, weights_only=True)
    files = [tmp_path / name / "examples.npz" for name in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_trial_of_one_batch_writes_nothing(tmp_path: Path) -> None:
    trainer(tmp_path, [ExampleDynamics()], fast_dev_run=True).fit(Model(plain_net()), Batches())
    assert list(tmp_path.iterdir()) == []


class Calls(Two):
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits}


@pytest.mark.filterwarnings("ignore:the selected share is usually within.*")
def test_beside_useful_upsampling_the_training_proper_is_recorded_with_its_clusters(
    tmp_path: Path,
) -> None:
    fields = {key: FIELDS[key] for key in ("targets", "indices")}
    useful = UsefulUpsampling(separation_epochs=1, fields=fields)
    run = trainer(tmp_path, [useful, ExampleDynamics(fields=fields)])
    run.fit(Calls(), loader(40, shuffle=True))
    arrays = archive(tmp_path / "examples.npz")
    found = UpsampledSet.read(tmp_path / "useful.json")
    assert 0 < len(found.selected) < 40
    # Three epochs, not the separation's too; each example once however often it was visited.
    assert arrays["loss"].shape == (3, 40)
    assert not np.isnan(arrays["loss"]).any()
    assert arrays["cluster"].tolist() == found.cluster.tolist()
    for side, number in (("fast", 0), ("slow", 1)):
        mean = arrays["first_learned"][arrays["cluster"] == number].mean()
        assert run.callback_metrics[f"train/first_learned/{side}"] == pytest.approx(mean)

    file = str(tmp_path / "useful.json")
    later = tmp_path / "later"
    run = trainer(later, [ExampleDynamics(selection_file=file, fields=fields)])
    run.fit(Calls(), loader(40, shuffle=True))
    assert archive(later / "examples.npz")["cluster"].tolist() == found.cluster.tolist()
    with pytest.raises(ValueError, match=r"must be those of the 20 examples .* clusters of 40\."):
        trainer(later, [ExampleDynamics(selection_file=file, fields=fields)]).fit(
            Calls(), loader(20)
        )


def test_an_index_beyond_the_data_set_is_refused_where_its_size_is_known(tmp_path: Path) -> None:
    shifted = FIELDS | {"indices": lambda batch: batch[2] + 1}
    message = r"indices must lie in 0\.\.39, the examples of the train data, got 40\."
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, [ExampleDynamics(fields=shifted)]).fit(Two(), loader(40))
    told = ExampleDynamics(fields=shifted, num_examples=41)
    trainer(tmp_path, [told]).fit(Two(), loader(40))
    assert told.history.correct[:, 0].tolist() == [255] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "examples"}, "path must be that of an .npz file, got examples. Add .npz"),
        ({"num_examples": 0}, "num_examples must be at least 1, got 0."),
        ({"fields": {"indices": None}}, "indices must be in the batches for ExampleDynamics, got"),
        ({"fields": {"indexes": "id"}}, "got 'indexes'. Did you mean 'indices'?"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        ExampleDynamics(**arguments)
    assert "\n" not in str(caught.value)


def test_an_unknown_split_is_refused_where_types_are_not_checked() -> None:
    with pytest.raises(ValueError, match=r"split must be one of \('train', 'val'\), got 'test'\."):
        _check("test", None, None, Fields(("indices",)))


@pytest.mark.ranks
def test_two_ranks_with_different_halves_write_what_one_process_writes(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    _train_as_a_rank(tmp_path / "1", 0, 1)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path / str(world))],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            | {"PYTHONPATH": str(ROOT)},
        )
        for world, rank in ((2, 0), (2, 1))
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    one, two = (archive(tmp_path / world / "examples.npz") for world in ("1", "2"))
    assert not np.isnan(one["loss"]).any()
    for name, expected in one.items():
        np.testing.assert_allclose(two[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    logged = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/logged-*.json"))]
    assert len(logged) == 3
    assert logged[1] == logged[2] == pytest.approx(logged[0])


def _train_as_a_rank(folder: Path, rank: int, world: int) -> None:
    settings: dict[str, Any] = {"use_distributed_sampler": False, "num_sanity_val_steps": 0}
    if world > 1:
        settings |= {"strategy": "ddp", "devices": world}
    run = trainer(folder, [ExampleDynamics()], **settings)
    run.fit(Model(plain_net()), Batches(rank, world))
    numbers = {key: float(value) for key, value in sorted(run.callback_metrics.items())}
    (folder / f"logged-{rank}.json").write_text(json.dumps(numbers))


if __name__ == "__main__":
    _train_as_a_rank(Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
