"""A run in this process: what it leaves, what it survives, and how it explains its end."""

import errno
import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from toolkit import config
from toolkit.run import Run
from toolkit.run.checkpoints import RunCheckpoint, all_finite
from toolkit.run.guard import EpochSeeder, NonFiniteGuard, NonFiniteLossError
from toolkit.run.training import explain, train
from toolkit.saving import save_atomically


def make_run(recipe: Path, folder: Path, *changes: str, variant: str = "sgd") -> Run:
    loaded = config.load_recipe(recipe, changes)
    return Run("tiny", variant, 0, folder, loaded.resolve(variant, 0))


def weights(run: Run, name: str = "last") -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(
        run.checkpoints / f"{name}.ckpt", weights_only=True
    )["state_dict"]
    return state


def assert_equal_weights(first: Run, second: Run) -> None:
    states = weights(first), weights(second)
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.equal(states[1][name]), name


def test_two_runs_of_one_configuration_are_equal_bit_for_bit(tmp_path: Path, tiny: Path) -> None:
    runs = [make_run(tiny, tmp_path / name) for name in ("a", "b")]
    results = [train(run) for run in runs]
    assert_equal_weights(*runs)
    assert results[0]["metrics"] == results[1]["metrics"]


def test_another_seed_gives_other_weights(tmp_path: Path, tiny: Path) -> None:
    run = make_run(tiny, tmp_path / "a")
    other = config.load_recipe(tiny).resolve("sgd", 1)
    another = Run("tiny", "sgd", 1, tmp_path / "b", other)
    train(run)
    train(another)
    assert not weights(run)["net.classifier.weight"].equal(
        weights(another)["net.classifier.weight"]
    )


def test_observers_leave_the_weights_bit_identical(tmp_path: Path, tiny: Path) -> None:
    watched = make_run(tiny, tmp_path / "on")
    alone = make_run(tiny, tmp_path / "off", "~callbacks.margin", "~callbacks.bias")
    train(watched)
    train(alone)
    assert_equal_weights(watched, alone)


def test_upsampling_by_factor_1_is_the_plain_run(tmp_path: Path, tiny: Path) -> None:
    plain = make_run(tiny, tmp_path / "plain")
    once = make_run(
        tiny,
        tmp_path / "once",
        "variants.sgd_useful.callbacks.useful.factor=1",
        variant="sgd_useful",
    )
    train(plain)
    train(once)
    assert_equal_weights(plain, once)
    rows = (once.folder / "history.jsonl").read_text().splitlines()
    stages = {json.loads(row)["stage"] for row in rows}
    assert stages == {"separation", "training"}  # stage one was really run


def test_sam_with_rho_0_is_its_base_optimizer(tmp_path: Path, tiny: Path) -> None:
    base = make_run(tiny, tmp_path / "base")
    still = make_run(tiny, tmp_path / "sam", "variants.sam.model.optimizer.rho=0", variant="sam")
    train(base)
    train(still)
    assert_equal_weights(base, still)


def test_training_longer_makes_as_many_updates_as_upsampling(tmp_path: Path, tiny: Path) -> None:
    useful = make_run(tiny, tmp_path / "useful", variant="sgd_useful")
    longer = make_run(
        tiny,
        tmp_path / "longer",
        "variants.sgd_useful.callbacks.useful.selection=longer",
        variant="sgd_useful",
    )
    results = train(useful), train(longer)
    plain = train(make_run(tiny, tmp_path / "plain"))
    for key in ("updates", "examples_seen", "epochs"):
        assert results[0][key] == results[1][key]
    assert results[1]["updates"] > plain["updates"]


def test_best_checkpoint_is_that_of_the_lowest_validation_error(tmp_path: Path, tiny: Path) -> None:
    run = make_run(tiny, tmp_path / "run", "checkpoint.test=best")
    result = train(run)
    rows = [json.loads(row) for row in (run.folder / "history.jsonl").read_text().splitlines()]
    errors = [row["val/error"] for row in rows if "val/error" in row]
    assert result["metrics"]["best/val/error"] == min(errors)
    state = torch.load(run.checkpoints / "best.ckpt", weights_only=True)
    assert state["epoch"] == errors.index(min(errors)) + 1  # counted as done


def test_killed_between_training_and_result_it_loses_no_metric(tmp_path: Path, tiny: Path) -> None:
    run = make_run(tiny, tmp_path / "run")
    first = train(run)
    (run.folder / "result.json").unlink()
    again = train(run)
    for result in (first, again):
        del result["seconds"]
    assert first == again


def test_stopped_early_it_does_not_train_on_when_it_is_continued(
    tmp_path: Path, tiny: Path
) -> None:
    stop = (
        "callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, "
        "monitor: val/error, patience: 0, min_delta: 1.0}"
    )
    run = make_run(tiny, tmp_path / "run", stop, "trainer.max_epochs=20")
    first = train(run)
    assert first["epochs"] < 20
    (run.folder / "result.json").unlink()
    assert train(run)["epochs"] == first["epochs"]


class Toy(L.LightningModule):
    """One weight whose loss becomes NaN at a given update."""

    def __init__(self, bad_at: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.bad_at = bad_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        factor = float("nan") if batch_idx == self.bad_at else 1.0
        return self.weight * factor

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.125)


def fit_toy(module: Toy, *callbacks: L.Callback, folder: Path) -> L.Trainer:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = torch.utils.data.DataLoader(torch.zeros(4, 1))  # type: ignore[arg-type]
    trainer.fit(module, loader)
    return trainer


def test_a_loss_that_is_not_finite_stops_within_its_update(tmp_path: Path) -> None:
    module = Toy(bad_at=2)
    with pytest.raises(NonFiniteLossError, match=r"got nan.* at update 2"):
        fit_toy(module, NonFiniteGuard(), folder=tmp_path)
    assert module.weight.item() == 1 - 2 * 0.125  # the bad update was not made


def test_a_skipped_update_leaves_the_weights_alone_and_is_counted(tmp_path: Path) -> None:
    module, guard = Toy(bad_at=2), NonFiniteGuard("skip")
    trainer = fit_toy(module, guard, folder=tmp_path)
    assert module.weight.item() == 1 - 3 * 0.125
    assert trainer.callback_metrics["train/skipped_updates"] == 1
    other = NonFiniteGuard("skip")
    other.load_state_dict(guard.state_dict())
    assert other.num_skipped == 1


def test_a_checkpoint_with_a_nan_is_never_written(tmp_path: Path) -> None:
    checkpoint = RunCheckpoint(tmp_path)
    module = Toy(bad_at=9)
    trainer = fit_toy(module, folder=tmp_path)
    checkpoint.finish(trainer, module)
    good = (tmp_path / "last.ckpt").read_bytes()
    with torch.no_grad():
        module.weight.fill_(float("nan"))
    assert not all_finite(module)
    checkpoint.finish(trainer, module)
    assert (tmp_path / "last.ckpt").read_bytes() == good


def test_a_nan_is_never_the_best(tmp_path: Path) -> None:
    checkpoint = RunCheckpoint(tmp_path, monitor="score", mode="max")
    module = Toy(bad_at=9)
    trainer = fit_toy(module, folder=tmp_path)
    for epoch, score in enumerate([0.5, float("nan"), 0.25, 0.75]):
        trainer.fit_loop.epoch_progress.current.completed = epoch + 1
        trainer.callback_metrics["score"] = torch.tensor(score)
        checkpoint.on_train_epoch_start(trainer, module)
    assert (checkpoint.best_score, checkpoint.best_epoch) == (0.75, 3)


def test_a_write_that_fails_costs_no_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    save_atomically({"value": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        save_atomically({"value": lambda: None}, path)
    assert torch.load(path, weights_only=True) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_epochs_are_seeded_alike_whatever_came_before(tmp_path: Path) -> None:
    trainer = fit_toy(module := Toy(bad_at=9), folder=tmp_path)
    draws = []
    for _ in range(2):
        torch.rand(3)
        EpochSeeder(5).on_train_epoch_start(trainer, module)
        draws.append(torch.rand(3))
    assert draws[0].equal(draws[1])
    EpochSeeder(6).on_train_epoch_start(trainer, module)
    assert not torch.rand(3).equal(draws[0])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), ["out of memory", "batch size 16"]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ["batch size 16", "the CPU"]),
        (NonFiniteLossError("the loss"), ["Last good checkpoint: none yet"]),
        (OSError(errno.ENOSPC, "No space left on device"), ["Free space", "continues"]),
        (KeyError("x"), ["KeyError: 'x'"]),
    ],
)
def test_the_end_of_a_run_is_told_in_one_line(
    tmp_path: Path, tiny: Path, error: Exception, words: list[str]
) -> None:
    if torch.cuda.is_available() and "the CPU" in words:
        pytest.skip("names the GPU where there is one")
    text = explain(error, make_run(tiny, tmp_path))
    assert len(text.splitlines()) == 1
    assert all(word in text for word in words)


def test_pictures_show_upsampled_and_other_examples_of_every_class(
    tmp_path: Path, tiny: Path
) -> None:
    import numpy as np

    run = make_run(tiny, tmp_path / "run", variant="sgd_useful")
    train(run)
    chosen = json.loads((run.folder / "useful.json").read_text())["selected"]
    with np.load(run.folder / "pictures.npz") as pictures:
        assert pictures["images"].shape[1:] == (8, 8, 1)
        for index, selected in zip(pictures["indices"], pictures["selected"], strict=True):
            assert (index in chosen) == selected
        assert set(pictures["targets"][~pictures["selected"]]) == set(range(10))


def test_a_run_says_where_and_with_what_it_was_made(tmp_path: Path, tiny: Path) -> None:
    run = make_run(tiny, tmp_path / "run")
    train(run)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["cores"] >= 1
    assert config.fingerprint(config.read_yaml(run.folder / "recipe.yaml")) == config.fingerprint(
        run.resolved
    )
