"""When observing callbacks see a batch and record, and how their values reach the record."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

__all__ = ["Split", "SplitObserver", "check_schedule", "is_due", "is_skipped", "record_values"]

Split = Literal["train", "val", "test"]


class SplitObserver(L.Callback):
    """Hands the batches of each split to :meth:`_note`, and the ends of its epochs to :meth:`_log`.

    Of several validation or test loaders the first is observed; Lightning's sanity check is not.
    """

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget what an unfinished epoch left."""
        self._begin("train", pl_module)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note the batch."""
        self._note("train", trainer, outputs, batch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the epoch."""
        self._log("train", trainer, pl_module)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the last validation."""
        self._begin("val", pl_module)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note the batch."""
        if dataloader_idx == 0 and not trainer.sanity_checking:
            self._note("val", trainer, outputs, batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the validation."""
        if not trainer.sanity_checking:
            self._log("val", trainer, pl_module)

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the last test."""
        self._begin("test", pl_module)

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note the batch."""
        if dataloader_idx == 0:
            self._note("test", trainer, outputs, batch)

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the test."""
        self._log("test", trainer, pl_module)

    def _begin(self, split: Split, pl_module: L.LightningModule) -> None:
        raise NotImplementedError

    def _note(self, split: Split, trainer: L.Trainer, outputs: Any, batch: Any) -> None:
        raise NotImplementedError

    def _log(self, split: Split, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        raise NotImplementedError


def check_schedule(every: int, splits: Sequence[str]) -> None:
    """Check what observing callbacks take alike.

    Raises:
        ValueError: If ``every`` is not positive or a split is unknown.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1 epoch, got {every}. 1 records each.")
    if not splits or not set(splits) <= set(get_args(Split)):
        raise ValueError(f"splits must be some of {get_args(Split)}, got {list(splits)}.")


def is_due(trainer: L.Trainer, every: int) -> bool:
    """Whether the current epoch is recorded: each ``every``-th and the last, all outside a fit."""
    done = trainer.current_epoch + 1
    return not _is_fitting(trainer) or done % every == 0 or done == trainer.max_epochs


def is_skipped(outputs: Any) -> bool:
    """Whether a step returned ``None``, which Lightning hands on as ``None`` or ``{}``."""
    return outputs is None or (isinstance(outputs, Mapping) and not outputs)


def record_values(
    trainer: L.Trainer, pl_module: L.LightningModule, values: Mapping[str, Tensor]
) -> None:
    """Hand values that are the same on every rank to ``callback_metrics`` and the loggers.

    Call it on every rank, from an epoch-end or batch-end hook. The step that loggers get is the
    last update done, counted from 0, which is also the step of Lightning's own epoch rows. Outside
    of ``trainer.fit`` the values go through ``log_dict``, so that ``trainer.test`` and
    ``trainer.validate`` return them.

    Args:
        trainer: The Lightning trainer.
        pl_module: Its module.
        values: 0-d tensors; NaN is allowed.
    """
    if not _is_fitting(trainer):
        pl_module.log_dict(dict(values), on_step=False, on_epoch=True, sync_dist=True)
        return
    # Not log_dict: Lightning 2.6 takes 0.3 ms per key and epoch, as much as an epoch of a small
    # net for a hundred keys, and advises to reduce each key, which was done already.
    trainer.callback_metrics.update(values)
    if trainer.loggers:
        numbers = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
        numbers["epoch"] = trainer.current_epoch  # as Lightning's own rows have it
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=max(trainer.global_step - 1, 0))


def _is_fitting(trainer: L.Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING
