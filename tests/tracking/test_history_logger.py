import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from toolkit.history import read_history
from toolkit.tracking import HistoryLogger, RecordState

Fit = Callable[..., L.Trainer]


class SaveBetweenEpochs(L.Callback):
    """Saves as a run does: first thing in every epoch, and at the end of training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.path)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.path)


class KilledError(Exception):
    """Stands for the end of the process."""


class Kill(L.Callback):
    """Raises in the given hook of the given epoch."""

    def __init__(self, hook: str, epoch: int) -> None:
        def die(trainer: L.Trainer, *args: Any) -> None:
            if trainer.current_epoch == epoch:
                raise KilledError

        setattr(self, hook, die)


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The record without its wall-clock field."""
    rows = read_history(folder / "history.jsonl")
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def _weight(trainer: L.Trainer) -> torch.Tensor:
    module: Any = trainer.lightning_module
    weight: torch.Tensor = module.line.weight
    return weight


def test_each_call_is_a_row_with_epoch_update_and_stage(tmp_path: Path, fit: Fit) -> None:
    logger = HistoryLogger(tmp_path)
    logger.examples_seen = 7
    fit([logger], max_epochs=2)
    rows = _rows(tmp_path)
    assert [(row["row"], row["epoch"], row["update"]) for row in rows] == [
        (0, 0, 1),  # every second step: update 1
        (1, 0, 2),  # validation, after the last update of the epoch
        (2, 0, 2),  # the epoch's means
        (3, 1, 3),
        (4, 1, 5),
        (5, 1, 5),
        (6, 1, 5),
    ]
    assert [sorted(row)[-1] for row in rows[:3]] == ["update", "val/loss", "update"]
    assert set(rows[2]) >= {"train/loss_epoch", "train/norm"}
    assert {row["stage"] for row in rows} == {"training"}
    assert {row["examples_seen"] for row in rows} == {7}
    assert logger.num_rows == 7


def test_a_test_after_training_adds_its_row(tmp_path: Path, fit: Fit, loader: Any) -> None:
    trainer = fit([HistoryLogger(tmp_path)], max_epochs=2)
    trainer.test(trainer.lightning_module, loader, verbose=False)
    last = _rows(tmp_path)[-1]
    assert (last["epoch"], last["update"]) == (2, 6)
    assert last["test/loss"] > 0


def test_csv_has_every_row_of_the_record(tmp_path: Path, fit: Fit) -> None:
    fit([HistoryLogger(tmp_path)], max_epochs=1)
    with (tmp_path / "history.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    rows = read_history(tmp_path / "history.jsonl")
    assert [{k: v for k, v in row.items() if v} for row in table] == [
        {key: str(value) for key, value in row.items()} for row in rows
    ]


def test_a_crash_leaves_record_and_csv(tmp_path: Path, fit: Fit) -> None:
    with pytest.raises(KilledError):
        fit([HistoryLogger(tmp_path)], [Kill("on_validation_end", 1)])
    assert len(_rows(tmp_path)) == 6
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 7


def test_a_full_disk_ends_the_fit_with_its_own_error(
    tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(HistoryLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            if self.num_rows == 3:
                raise OSError(28, "No space left on device")
            super().log_metrics(metrics, step)

    def no_space(*args: Any) -> None:
        raise OSError(28, "not even for the table")

    monkeypatch.setattr("toolkit.tracking.history_logger.write_csv", no_space)
    with pytest.raises(OSError, match="No space left on device"):
        fit([FullDisk(tmp_path)])
    assert len(_rows(tmp_path)) == 3


HOOKS = ("on_train_epoch_start", "on_train_batch_end", "on_validation_end", "on_train_epoch_end")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_resumed_record_equals_an_uninterrupted_one(
    tmp_path: Path, fit: Fit, hook: str, epoch: int
) -> None:
    whole = fit([HistoryLogger(tmp_path / "whole")])
    record = HistoryLogger(tmp_path / "cut")
    save = SaveBetweenEpochs(tmp_path / "last.ckpt")
    with pytest.raises(KilledError):
        fit([record], [save, Kill(hook, epoch), RecordState(record)])
    # A new process: nothing but the files is left, and the seed is another.
    record = HistoryLogger(tmp_path / "cut")
    resumed = fit([record], [save, RecordState(record)], tmp_path / "last.ckpt", seed=1)
    assert _rows(tmp_path / "cut") == _rows(tmp_path / "whole")
    assert torch.equal(_weight(resumed), _weight(whole))


SETTINGS: list[dict[str, Any]] = [
    {"max_epochs": 4, "val_check_interval": 2},
    {"max_epochs": 4, "accumulate_grad_batches": 2},
    {"max_epochs": 4, "limit_train_batches": 2},
    {"max_epochs": -1, "max_steps": 11},
    {"max_epochs": 4, "max_steps": 12, "val_check_interval": 2},
    {"max_epochs": -1, "max_steps": 8, "accumulate_grad_batches": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_records_agree_however_lightning_counts(
    tmp_path: Path, fit: Fit, settings: dict[str, Any]
) -> None:
    whole = fit([HistoryLogger(tmp_path / "whole")], **settings)
    record = HistoryLogger(tmp_path / "cut")
    save = SaveBetweenEpochs(tmp_path / "last.ckpt")
    with pytest.raises(KilledError):
        fit([record], [save, Kill("on_train_batch_end", 2), RecordState(record)], **settings)
    record = HistoryLogger(tmp_path / "cut")
    callbacks = [save, RecordState(record)]
    resumed = fit([record], callbacks, tmp_path / "last.ckpt", seed=1, **settings)
    assert _rows(tmp_path / "cut") == _rows(tmp_path / "whole")
    assert torch.equal(_weight(resumed), _weight(whole))
    assert resumed.global_step == whole.global_step


class SeedEpochs(L.Callback):
    """Draws of an epoch depend on its number only."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.manual_seed(trainer.current_epoch)


def test_a_resumed_epoch_draws_the_order_of_an_uninterrupted_one(
    tmp_path: Path, fit: Fit, loader: Any
) -> None:
    shuffled = DataLoader(loader.dataset, batch_size=4, shuffle=True)
    fit([HistoryLogger(tmp_path / "whole")], [SeedEpochs()], train=shuffled)
    record = HistoryLogger(tmp_path / "cut")
    save = SaveBetweenEpochs(tmp_path / "last.ckpt")
    killed = [save, SeedEpochs(), Kill("on_train_batch_end", 2), RecordState(record)]
    with pytest.raises(KilledError):
        fit([record], killed, train=shuffled)
    record = HistoryLogger(tmp_path / "cut")
    callbacks = [save, SeedEpochs(), RecordState(record)]
    fit([record], callbacks, tmp_path / "last.ckpt", seed=1, train=shuffled)
    assert _rows(tmp_path / "cut") == _rows(tmp_path / "whole")


def test_two_epochs_and_two_more_equal_four(tmp_path: Path, fit: Fit) -> None:
    whole = fit([HistoryLogger(tmp_path / "whole")])
    save = SaveBetweenEpochs(tmp_path / "last.ckpt")
    for epochs in (2, 4):
        record = HistoryLogger(tmp_path / "parts")
        last = tmp_path / "last.ckpt" if epochs == 4 else None
        parts = fit([record], [save, RecordState(record)], last, max_epochs=epochs)
    assert _rows(tmp_path / "parts") == _rows(tmp_path / "whole")
    assert torch.equal(_weight(parts), _weight(whole))


def test_testing_an_old_checkpoint_does_not_cut_the_record(
    tmp_path: Path, fit: Fit, loader: Any
) -> None:
    record = HistoryLogger(tmp_path)
    save = SaveBetweenEpochs(tmp_path / "first.ckpt")
    with pytest.raises(KilledError):
        fit([record], [save, Kill("on_train_epoch_end", 0), RecordState(record)])
    trainer = fit([record], [RecordState(record)])
    rows = record.num_rows
    trainer.test(trainer.lightning_module, loader, tmp_path / "first.ckpt", verbose=False)
    assert record.num_rows == rows + 1


def test_a_checkpoint_of_another_project_starts_a_record_of_its_own(
    tmp_path: Path, fit: Fit
) -> None:
    fit([], [SaveBetweenEpochs(tmp_path / "last.ckpt")], max_epochs=2)
    record = HistoryLogger(tmp_path)
    record.log_metrics({"before": 1.0}, 0)
    fit([record], [RecordState(record)], tmp_path / "last.ckpt", max_epochs=3)
    assert [row["epoch"] for row in _rows(tmp_path)] == [None, 2, 2, 2]


def test_time_goes_on_over_a_resume(tmp_path: Path) -> None:
    line = {"row": 0, "time": 1000.0}
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    logger = HistoryLogger(tmp_path)
    logger.cut_to(1)
    logger.log_metrics({"epoch": 0}, 0)
    logger.cut_to(0)
    logger.log_metrics({"epoch": 0}, 0)
    (time,) = (row["time"] for row in read_history(logger.path))
    assert 0 <= time < 500


def test_time_counts_from_the_last_row_kept(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"row": 0, "time": 1000.0}\n')
    logger = HistoryLogger(tmp_path)
    logger.log_metrics({"epoch": 0}, 0)
    assert 1000 <= read_history(logger.path)[1]["time"] < 1500


def test_a_metric_named_like_a_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got stage, time\. Log it under another"):
        HistoryLogger(tmp_path).log_metrics({"time": 1.0, "stage": 2.0, "epoch": 0}, 0)


def test_other_ranks_touch_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    (tmp_path / "history.jsonl").write_text("half a row that rank 0 is writing")
    logger = HistoryLogger(tmp_path)
    logger.cut_to(0)
    logger.log_metrics({"epoch": 0}, 0)
    logger.close()
    assert logger.num_rows == 0
    assert (tmp_path / "history.jsonl").read_text() == "half a row that rank 0 is writing"


def test_lightning_takes_the_run_folder_for_the_place_of_files(tmp_path: Path) -> None:
    logger = HistoryLogger(tmp_path)
    trainer = L.Trainer(logger=logger, accelerator="cpu", enable_checkpointing=False)
    assert trainer.log_dir == logger.save_dir == str(tmp_path)
    assert (logger.name, logger.version) == ("", "")


def test_importing_the_loggers_does_not_import_wandb() -> None:
    code = "import sys, toolkit.tracking; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
