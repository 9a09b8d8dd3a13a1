"""The record as a Lightning logger, and its agreement with the checkpoint."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from toolkit.history import History, read_history, write_csv
from toolkit.tracking.wandb_mirror import WandbMirror

__all__ = ["HistoryLogger", "RecordState"]


class HistoryLogger(Logger):
    """Appends what Lightning logs to ``history.jsonl``, one row per call; rank 0 writes.

    A row is ``{"row", "stage", "epoch", "update", "examples_seen", "time", **metrics}``:

    | key | meaning |
    | --- | --- |
    | ``row`` | number of the row, from 0, over all stages |
    | ``epoch`` | the epoch that ran, from 0 |
    | ``update`` | the last update before the row, from 0, as Lightning passes it |
    | ``time`` | seconds of training so far; the only field that two equal runs do not share |

    Rows of a test after training carry the number of epochs and of updates done, one past the last.
    ``history.csv`` is rewritten from the record whenever Lightning finalises the logger.

    Args:
        folder: The run's folder.
        mirror: Gets each row as well, and rows of the record that it has missed.

    Attributes:
        stage: ``"training"``, or the name of another stage that rows belong to.
        examples_seen: Examples trained on so far; whoever counts them sets it.
        mirror: See above.
    """

    def __init__(self, folder: str | os.PathLike[str], mirror: WandbMirror | None = None) -> None:
        super().__init__()
        self.path = Path(folder) / "history.jsonl"
        self.mirror = mirror
        self.stage = "training"
        self.examples_seen = 0
        self._opened: History | None = None
        self._zero = 0.0  # of the clock; set when the record is opened

    @property
    def num_rows(self) -> int:
        """Rows in the record; 0 on ranks that do not write."""
        return self._history.num_rows if _is_writer() else 0

    @rank_zero_only
    def cut_to(self, num_rows: int) -> None:
        """Take the record back to its first ``num_rows`` rows, as a checkpoint knew it.

        Raises:
            ValueError: If the record is shorter.
        """
        self._history.cut_to(num_rows)
        self._set_clock()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row.

        Raises:
            ValueError: If a metric has the name of one of the record's own fields.
        """
        fields = {
            "stage": self.stage,
            "epoch": metrics.get("epoch"),
            "update": step,
            "examples_seen": self.examples_seen,
        }
        taken = ({"row", "time"} | set(fields)) - {"epoch"}
        if clash := sorted(taken.intersection(metrics)):
            raise ValueError(
                f"metric names must not be fields of the record, got {', '.join(clash)}. "
                f"Log it under another name, such as train/{clash[0]}."
            )
        history = self._history
        seconds = round(time.monotonic() - self._zero, 3)
        row = history.append({**fields, "time": seconds, **metrics})
        if self.mirror is not None:
            for unsent in [*self._missed(self.mirror, row), row]:
                self.mirror.log_row(unsent)

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: ``recipe.yaml`` beside the record has them."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Rewrite ``history.csv`` from the record."""
        # After a failure (a full disk, say) its own error matters, not this copy's.
        quietly = contextlib.suppress(OSError) if status != "success" else contextlib.nullcontext()
        with quietly:
            if self.num_rows:
                write_csv(read_history(self.path), self.path.with_suffix(".csv"))

    @rank_zero_only
    def close(self, status: str = "success") -> None:
        """Finalise the record, and finish the mirror's run; to be called after the last row."""
        self.finalize(status)
        if self.mirror is not None:
            self.mirror.finish(exit_code=0 if status == "success" else 1)

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return str(self.path.parent)

    @property
    def name(self) -> str:
        """Empty: the folder is the run's own."""
        return ""

    @property
    def version(self) -> str:
        """Empty: a run has one record."""
        return ""

    @property
    def _history(self) -> History:
        if self._opened is None:
            self._opened = History(self.path)
            self._set_clock()
        return self._opened

    def _set_clock(self) -> None:
        """Go on from the time of the last row."""
        last = self._history.last
        self._zero = time.monotonic() - (last["time"] if last else 0.0)

    def _missed(self, mirror: WandbMirror, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows before ``row`` that an earlier process recorded and did not send."""
        _ = mirror.experiment  # W&B may know better what has arrived
        if not mirror.active or mirror.rows_sent >= row["row"]:
            return []
        return read_history(self.path)[mirror.rows_sent : row["row"]]


class RecordState(L.Callback):
    """Observes: makes a checkpoint between two epochs and the record agree, row for row.

    Save with ``trainer.save_checkpoint`` in a callback's ``on_train_epoch_start`` (before other
    callbacks' hooks of that name) or ``on_train_end``. Later than ``on_train_epoch_end``, where
    Lightning's ``ModelCheckpoint`` saves, Lightning still writes the epoch's last rows and steps
    the plateau schedules; a checkpoint from there resumes without either.

    Lightning takes a checkpoint from ``on_train_epoch_start`` for one of an epoch whose batches are
    all done, and with ``max_steps`` one from ``on_train_end`` too; and it makes the first iterator
    of a resumed fit before ``on_train_epoch_start``, where others come after it. This callback
    stores the checkpoint as one of a finished epoch, and has a resumed epoch begin as any other.

    Args:
        record: The logger whose rows are counted, and cut when a fit resumes.
    """

    def __init__(self, record: HistoryLogger) -> None:
        self.record = record
        self._between_epochs = False

    def state_dict(self) -> dict[str, Any]:
        """Length of the record."""
        return {"num_rows": self.record.num_rows}

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store an epoch that is ready but not started as not yet ready."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
        if progress["total"]["ready"] > progress["total"]["started"]:
            for count in progress.values():
                count["ready"] -= 1

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Cut the record back; only for a fit: a test of an old checkpoint leaves it alone."""
        state = checkpoint["callbacks"].get(self.state_key)
        if state is None or trainer.state.fn != "fit":
            return
        self.record.cut_to(state["num_rows"])
        total = checkpoint["loops"]["fit_loop"]["epoch_progress"]["total"]
        self._between_epochs = len(set(total.values())) == 1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a new epoch rather than go on with the finished one."""
        if self._between_epochs:
            trainer.fit_loop.on_iteration_done()
            trainer.fit_loop.epoch_loop.restarting = False
            self._between_epochs = False


def _is_writer() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0
