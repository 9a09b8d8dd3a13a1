"""Callbacks that every run has to count examples and to say how far it is."""

from collections.abc import Callable
from typing import Any

import lightning as L
from torch import Tensor

from toolkit import distributed
from toolkit.tracking import HistoryLogger

__all__ = ["ExamplesSeen", "ProgressReporter"]


class ExamplesSeen(L.Callback):
    """Observes: counts the training examples of all ranks and stages, for the record's axis.

    Args:
        history: The record; its attribute ``examples_seen`` is kept up to date.
    """

    runs_in_separation = True

    def __init__(self, history: HistoryLogger) -> None:
        self.history = history
        self.in_stage = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a stage, unless it continues from a checkpoint."""
        if trainer.global_step == 0:
            self.in_stage = 0

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add the global batch."""
        count = _global_count(batch)
        self.in_stage += count
        self.history.examples_seen += count

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"in_stage": self.in_stage, "all": self.history.examples_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts."""
        self.in_stage = state_dict["in_stage"]
        self.history.examples_seen = state_dict["all"]


class ProgressReporter(L.Callback):
    """Observes: tells a listener after each epoch how far the run is.

    Args:
        history: The record, which knows the stage.
        tell: Called on rank 0 with ``stage``, ``epoch`` (epochs done), ``epochs`` and ``loss``.
    """

    runs_in_separation = True

    def __init__(self, history: HistoryLogger, tell: Callable[[dict[str, Any]], None]) -> None:
        self.history = history
        self.tell = tell

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell it."""
        if not distributed.is_main():
            return
        loss = trainer.callback_metrics.get("train/loss")
        self.tell(
            {
                "stage": self.history.stage,
                "epoch": trainer.current_epoch + 1,
                "epochs": trainer.max_epochs,
                "loss": None if loss is None else float(loss),
            }
        )


def _global_count(batch: Any) -> int:
    """Examples in the global batch that this rank's batch is a part of."""
    if not isinstance(batch, dict):
        first = batch[0] if isinstance(batch, tuple | list) else batch
        return len(first) * distributed.world_size()
    targets: Tensor = batch["targets"] if "targets" in batch else batch["inputs"]
    share = len(targets) * distributed.world_size()
    # weight = local * ranks / global, see ArrayLoader.
    return round(share / float(batch["weight"])) if "weight" in batch else share
