"""Callbacks that every run has: seeds by epoch, and a guard against a loss that is not finite."""

import math
import random
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor

from toolkit import distributed

__all__ = ["EpochSeeder", "NonFiniteGuard", "NonFiniteLossError"]


class NonFiniteLossError(RuntimeError):
    """The training loss became NaN or infinite."""


class EpochSeeder(L.Callback):
    """Changes training: seeds all generators from (seed, epoch, rank) when an epoch begins.

    So a run that continues from the end of an epoch draws the same numbers as one that was never
    interrupted, on every rank, and a second stage draws what a plain run would draw.

    Args:
        seed: The run's seed.
    """

    runs_in_separation = True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Seed torch, CUDA, NumPy and Python."""
        words = np.random.SeedSequence([self.seed, trainer.current_epoch, distributed.rank()])
        seed = int(words.generate_state(1)[0])
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - other libraries draw from the global generator
        random.seed(seed)


class NonFiniteGuard(L.Callback):
    """Changes training: stops, or skips the update, where the loss is NaN or infinite.

    The ranks agree on the verdict, so that none of them waits for another. On a GPU the loss of
    an update is looked at one update later, so that no update waits for the host.

    Args:
        action: ``"stop"`` raises :class:`NonFiniteLossError`; ``"skip"`` leaves the weights
            alone for that update and logs the count as ``train/skipped_updates``.

    Raises:
        NonFiniteLossError: Names the update and the value.
    """

    runs_in_separation = True

    def __init__(self, action: Literal["stop", "skip"] = "stop") -> None:
        self.action = action
        self.num_skipped = 0
        self._loss: Tensor | None = None
        self._seen: tuple[int, Tensor] | None = None

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Keep the loss of this pass."""
        self._loss = loss.detach()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Look at the loss before its gradient is used."""
        if self._loss is None:
            return
        loss, self._loss = self._loss, None
        if self.action == "skip":
            if self._bad(loss):
                self.num_skipped += 1
                for parameter in pl_module.parameters():
                    parameter.grad = None
            return
        previous, self._seen = self._seen, (trainer.global_step, loss)
        if loss.is_cuda:
            self._check(previous)
        else:
            self._check(self._seen)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the last loss of the epoch, before any checkpoint is written."""
        self._check(self._seen)
        self._seen = None
        if self.action == "skip":
            pl_module.log("train/skipped_updates", float(self.num_skipped))

    def state_dict(self) -> dict[str, Any]:
        """The number of skipped updates."""
        return {"num_skipped": self.num_skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of skipped updates."""
        self.num_skipped = state_dict["num_skipped"]

    def _check(self, seen: tuple[int, Tensor] | None) -> None:
        if seen is not None and self._bad(seen[1]):
            raise NonFiniteLossError(
                f"the training loss must be finite, got {seen[1].item()} on rank "
                f"{distributed.rank()} at update {seen[0]}. Lower the learning rate, look at the "
                "data, or set nonfinite: skip."
            )

    def _bad(self, loss: Tensor) -> bool:
        """Whether the loss is not finite on any rank; every rank asks at the same points."""
        if distributed.world_size() == 1:  # reading the number takes less than operations on it
            return not math.isfinite(loss.item())
        bad = (~torch.isfinite(loss)).float()
        return bool(distributed.max_across_ranks(bad))
