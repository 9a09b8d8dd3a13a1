"""SAM's second pass inside Lightning: what it must find again and what it must not leave behind."""

from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from callbacks._passes import Passes, num_rows
from toolkit.optim import SAM

__all__ = ["SharpnessAware"]

_TWICE = (
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


class SharpnessAware(L.Callback):
    """Changes training: lets :class:`toolkit.optim.SAM` and ``ASAM`` step inside a Trainer.

    An optimizer cannot reach the module. This callback surrounds SAM's two passes so that the
    second leaves nothing behind but its gradient:

    - buffers (running statistics, ``num_batches_tracked``) and the states of all torchmetrics
      submodules are as the first pass left them;
    - ``self.log`` and ``self.log_dict`` are silent in the second pass (loggers called directly are
      not);
    - ``gradient_clip_val`` and ``configure_gradient_clipping`` act on the second gradient only;
    - the first pass of a local perturbation runs forward and backward without averaging gradients;
    - what ``training_step`` returned in the first pass, detached, is what other callbacks get;
    - with SAM's ``m``, each pass sees its chunk of the batch (of every tensor, at any depth, with
      as many rows as the batch); returned tensors with a row per example are joined in order, other
      floating-point tensors averaged over examples, anything else is the last chunk's.

    ``training_step`` runs twice per update, and so do the hooks ``on_before_zero_grad``,
    ``optimizer_zero_grad``, ``on_before_backward``, ``backward``, ``on_after_backward`` and
    ``on_before_optimizer_step``, of the module and of callbacks; those in use are named in one line
    as the fit starts. Updates, schedules and ``trainer.global_step`` advance once.

    Logs nothing. Keeps no state: SAM's lies in the optimizer.

    Raises:
        RuntimeError: In ``fit``, with manual optimization, gradient accumulation, 16-mixed
            precision, or a strategy other than one device and DDP; in a step, with
            ``dataloader_iter``.
    """

    runs_in_separation = True  # UsefulUpsampling's first stage steps SAM too

    def __init__(self) -> None:
        self._passes: Passes | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse what SAM cannot be right under, before anything is built."""
        if stage == "fit":
            _check(trainer, pl_module)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Surround the optimizer's passes; say which hooks fire twice."""
        if not self._attached(trainer, pl_module):
            names = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers)
            rank_zero_warn(
                f"SharpnessAware must come with SAM or ASAM to do anything, got {names}. "
                "Use toolkit.optim.SAM, or remove the callback."
            )
            return
        twice = _hooks_that_fire_twice(trainer, pl_module)
        if twice:
            rank_zero_info(f"SAM makes two passes per update; these fire in both: {twice}.")

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Follow a change of optimizer, and tell SAM the size of the batch where it divides it."""
        # Optimizers change within a fit when training restarts in stages, accumulation by schedule.
        passes = self._attached(trainer, pl_module)
        if passes is not None:
            _check_accumulation(trainer)
            if passes.optimizer.m is not None:
                passes.optimizer.batch_size = num_rows(batch)

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add up the gradients of chunks before anything clips or reads them."""
        if self._passes is not None and self._passes.in_second:
            self._passes.optimizer.fold()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the optimizer as it was."""
        self._detach()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leave the optimizer as it was."""
        self._detach()

    def _attached(self, trainer: L.Trainer, module: L.LightningModule) -> Passes | None:
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        if not isinstance(optimizer, SAM):
            return None
        if self._passes is None or self._passes.optimizer is not optimizer:
            self._detach()
            self._passes = Passes(trainer, module, optimizer)
        return self._passes

    def _detach(self) -> None:
        if self._passes is not None:
            self._passes.detach()
            self._passes = None


def _hooks_that_fire_twice(trainer: L.Trainer, pl_module: L.LightningModule) -> str:
    found: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    owners = [(pl_module, L.LightningModule), *((c, L.Callback) for c in found)]
    return ", ".join(
        f"{type(owner).__name__}.{hook}"
        for owner, base in owners
        if not isinstance(owner, SharpnessAware)
        for hook in _TWICE
        if getattr(type(owner), hook, None) is not getattr(base, hook, None)
    )


def _check(trainer: L.Trainer, pl_module: L.LightningModule) -> None:
    if not pl_module.automatic_optimization:
        raise RuntimeError(
            "automatic_optimization must be True with SAM, which runs both passes, got False. Let "
            "Lightning optimise, or call SAM.step(closure) in a plain PyTorch loop."
        )
    _check_accumulation(trainer)
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise RuntimeError(
            f"precision must not scale the loss with SAM, got {trainer.precision!r}: Lightning "
            "then passes the optimizer no closure. Use precision='bf16-mixed'."
        )
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy) or not isinstance(
        strategy, DDPStrategy | SingleDeviceStrategy
    ):
        raise RuntimeError(
            "strategy must be a single device or DDP with SAM, whose norm is over all parameters, "
            f"got {type(strategy).__name__}. Use strategy='ddp'."
        )


def _check_accumulation(trainer: L.Trainer) -> None:
    if trainer.accumulate_grad_batches != 1:
        raise RuntimeError(
            "accumulate_grad_batches must be 1 with SAM, as it perturbs per batch, got "
            f"{trainer.accumulate_grad_batches}. Use a larger batch_size, and SAM's m to divide it."
        )
