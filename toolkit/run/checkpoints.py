"""Checkpoints that a killed write, a full disk or a NaN cannot spoil."""

import math
import os
import time
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import nn

from toolkit.history import reading
from toolkit.saving import save_atomically

__all__ = [
    "AtomicCheckpointIO",
    "FinalCheckpoint",
    "RunCheckpoint",
    "all_finite",
]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to the disk, then takes its place in one step."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any | None = None,
    ) -> None:
        """Replace the checkpoint at ``path``; the previous one stays if anything fails."""
        save_atomically(checkpoint, Path(path))

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            toolkit.history.DamagedFileError: If it is none; says what to delete.
        """
        folder = Path(path).parent.parent
        with reading(path, f"Delete {folder} to train that run again."):
            loaded: dict[str, Any] = super().load_checkpoint(Path(path), map_location, weights_only)
            _ = loaded["state_dict"], loaded["loops"]
            return loaded


class RunCheckpoint(L.Callback):
    """Observes: writes ``last.ckpt`` between epochs, and ``best.ckpt`` by one named metric.

    It acts when the next epoch begins, as :class:`toolkit.tracking.RecordState` needs it, so that
    checkpoint and record agree to the row. It must be the first of the callbacks, and
    :class:`FinalCheckpoint` the last.

    A checkpoint with a parameter that is not finite is never written, nor is a NaN ever the best.

    Args:
        folder: Where the files go.
        monitor: The metric that picks the best checkpoint, such as ``val/error``, or ``None``.
        mode: Whether a ``"min"`` or a ``"max"`` of it is best; the earliest of equals wins.
        every_n_epochs: How often ``last.ckpt`` is written; always at the end.
    """

    def __init__(
        self,
        folder: Path,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        every_n_epochs: int = 1,
    ) -> None:
        self.last = folder / "last.ckpt"
        self.best = folder / "best.ckpt"
        self.monitor = monitor
        self.mode = mode
        self.every_n_epochs = every_n_epochs
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.metrics: dict[str, float] = {}
        self.finished = False
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run, those before an interruption's checkpoint included."""
        return time.monotonic() - self._began

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Train no further where the checkpoint is of a finished training, stopped early too."""
        if self.finished:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what the past epoch left."""
        if trainer.current_epoch > 0:
            self._save(trainer, pl_module, due=trainer.current_epoch % self.every_n_epochs == 0)

    def finish(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the end of training."""
        self.finished = True
        self._save(trainer, pl_module, due=True)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, the latest metrics, whether training is done, the time spent."""
        return {
            "metrics": self.metrics,
            "finished": self.finished,
            "best_score": self.best_score,
            "best_epoch": self.best_epoch,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore all that, and count on from the time spent."""
        self.metrics = state_dict["metrics"]
        self.finished = state_dict["finished"]
        self.best_score = state_dict["best_score"]
        self.best_epoch = state_dict["best_epoch"]
        self._began = time.monotonic() - state_dict["seconds"]

    def _save(self, trainer: L.Trainer, pl_module: L.LightningModule, *, due: bool) -> None:
        self.metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if not all_finite(pl_module):
            return
        if self._improve(trainer):
            trainer.save_checkpoint(self.best, weights_only=True)
        if due:
            trainer.save_checkpoint(self.last)

    def _improve(self, trainer: L.Trainer) -> bool:
        """Whether the past epoch is the best so far; if so, remember it."""
        if self.monitor is None or self.monitor not in self.metrics:
            return False
        score = self.metrics[self.monitor]
        sign = 1 if self.mode == "min" else -1
        epoch = trainer.current_epoch - 1
        if not math.isfinite(score) or epoch == self.best_epoch:
            return False
        if self.best_score is not None and sign * score >= sign * self.best_score:
            return False
        self.best_score, self.best_epoch = score, epoch
        return True


class FinalCheckpoint(L.Callback):
    """Observes: writes the end of training, after every other callback has logged its last rows.

    Args:
        checkpoint: The callback that writes.
    """

    def __init__(self, checkpoint: RunCheckpoint) -> None:
        self.checkpoint = checkpoint

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write it."""
        self.checkpoint.finish(trainer, pl_module)


def all_finite(module: nn.Module) -> bool:
    """Whether no parameter or floating-point buffer holds a NaN or an infinity."""
    tensors = [t for t in module.state_dict().values() if t.is_floating_point()]
    if not tensors:
        return True
    largest = torch.stack([t.detach().abs().max().float() for t in tensors if t.numel()])
    return bool(torch.isfinite(largest).all())
