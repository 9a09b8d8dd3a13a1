"""Two trainings inside one ``trainer.fit``: all that needs Lightning's private parts.

Lightning 2.6 sets a fit up once and runs one loop. Here the loop of stage one takes the place of
the trainer's own before the optimizers are first made, so that everything that looks at the
trainer sees stage one; for stage two the trainer's own loop, not yet used, comes back. The private
parts that are relied on: ``_FitLoop`` and its ``_data_source``, ``_combined_loader``,
``_data_fetcher``; the restart flags of ``_Loop``; ``_checkpoint_connector._loaded_checkpoint``;
``_logger_connector.reset_results`` and ``reset_metrics``; ``_signal_connector``.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ProgressBar
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from torch import Tensor

from callbacks._state import Rng, read_rng, same_rng, set_rng
from toolkit.data.reindex import loader_generators, num_examples, upsampled_loader
from toolkit.data.selection import UpsampledSet

__all__ = [
    "SeparationLoop",
    "Stages",
    "TrainingSource",
    "is_trial",
    "runs_in_separation",
    "separation_record",
]


def is_trial(trainer: L.Trainer) -> bool:
    """Whether Lightning runs one batch or so of everything, and wants no files."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined] # set by a function


def runs_in_separation(callback: L.Callback) -> bool:
    """Whether a callback takes part in stage one.

    Its attribute of that name decides; without one only Lightning's progress bars and
    ``GradientAccumulationScheduler`` do. So checkpoints, early stopping, averages of weights and
    observers see nothing of stage one.
    """
    kept = isinstance(callback, ProgressBar | GradientAccumulationScheduler)
    return bool(getattr(callback, "runs_in_separation", kept))


@dataclasses.dataclass
class TrainingSource(_DataLoaderSource):
    """Where Lightning gets the training loader: the user's, or that over the upsampled data.

    Attributes:
        found: What is upsampled; ``None`` is the user's loader itself.
        factor: How often each of the selected examples occurs.
        generators: The user's loader's own generators, with the state in which they were found.
    """

    found: UpsampledSet | None = None
    factor: int = 1
    generators: list[tuple[torch.Generator, Tensor]] = dataclasses.field(default_factory=list)

    def dataloader(self) -> Any:
        """The loader.

        Raises:
            TypeError: If it cannot be upsampled.
            ValueError: If it has another number of examples than were selected from.
        """
        loader = self.given()
        if self.found is None:
            return loader
        return upsampled_loader(loader, self.found, self.factor)

    def use(self, found: UpsampledSet, factor: int) -> None:
        """Draw from the upsampled data from now on."""
        self.found, self.factor = found, factor

    def given(self) -> Any:
        """The user's loader, checked."""
        loader = super().dataloader()
        count = num_examples(loader)
        size = None if self.found is None else self.found.num_examples
        if size is not None and count is not None and count != size:
            raise ValueError(
                f"the training data must hold the {size} examples that were selected from, "
                f"got {count}. Use the same data, or select anew."
            )
        for generator in loader_generators(loader):
            if not any(generator is known for known, _ in self.generators):
                self.generators.append((generator, generator.get_state()))
        return loader

    def rewind(self) -> None:
        """Put the generators back to the state in which they were found."""
        for generator, state in self.generators:
            generator.set_state(state)


class SeparationLoop(_FitLoop):
    """Lightning's fit loop that ends after the separation stage, with hooks between epochs.

    Schedules and the number of updates are still defined on the trainer's ``max_epochs``.
    """

    def __init__(self, trainer: L.Trainer, model: _FitLoop, source: TrainingSource) -> None:
        super().__init__(trainer, 0, model.max_epochs)
        self.epoch_loop.max_steps = model.max_steps
        self.epoch_loop.val_loop._data_source = model.epoch_loop.val_loop._data_source
        self._data_source = source
        self.is_finished: Callable[[int], bool] = lambda epochs: False
        self.on_ready: Callable[[], None] = lambda: None
        self.on_epoch: Callable[[], None] = lambda: None

    @property
    def epochs(self) -> int:
        """Epochs done."""
        current: Any = self.epoch_progress.current
        return int(current.processed)

    @property
    def done(self) -> bool:
        """Whether the stage is over."""
        return self.is_finished(self.epochs) or super().done

    def on_run_start(self) -> None:
        """Lightning's own, then ours: nothing is drawn between it and the first batch."""
        super().on_run_start()
        self.on_ready()

    def on_advance_end(self) -> None:
        """Lightning's own, then ours: everything of the epoch is done."""
        super().on_advance_end()
        self.on_epoch()

    def continue_from(self, state: dict[str, Any]) -> None:
        """Go on after the epoch at whose end :meth:`state_dict` was taken."""
        self.load_state_dict(state)
        loops: list[_Loop] = [self]
        for loop in loops:  # Lightning's restarts are for checkpoints from inside an epoch
            loop._restarting = loop._loaded_from_state_dict = False
            loop._resuming_from_checkpoint = False
            loops += [child for child in vars(loop).values() if isinstance(child, _Loop)]


class Stages:
    """Which of the two loops a trainer runs, and the passage from one to the other.

    To be made in a callback's ``setup``.

    Args:
        trainer: The trainer, about to fit.
        separate: Called after checkpoints were restored and before the optimizers are made;
            returns whether stage one comes first.
    """

    def __init__(self, trainer: L.Trainer, separate: Callable[[], bool]) -> None:
        self.trainer = trainer
        self.training_loop = trainer.fit_loop
        given = trainer.fit_loop._data_source
        self.source = TrainingSource(given.instance, given.name)
        self.training_loop._data_source = self.source
        self.separation_loop = SeparationLoop(trainer, self.training_loop, self.source)
        self._separate = separate
        self._before: Rng | None = None
        self._after: Rng | None = None
        # There is no hook between the restoring of callbacks and the making of optimizers.
        trainer.strategy.setup_optimizers = self._setup_optimizers  # type: ignore[method-assign]

    @property
    def separating(self) -> bool:
        """Whether the trainer is in stage one, or about to be."""
        return self.trainer.fit_loop is self.separation_loop

    def given_loader(self) -> Any:
        """The user's training loader, without drawing a random number."""
        rng = read_rng(self._device)
        loader = self.source.given()
        set_rng(rng, self._device)
        return loader

    def random_states(self) -> dict[str, Rng]:
        """The random states around the making of the optimizers, and now."""
        before, after = cast(Rng, self._before), cast(Rng, self._after)
        return {"before": before, "after": after, "start": read_rng(self._device)}

    @contextlib.contextmanager
    def separation(self) -> Iterator[None]:
        """Stage one's callbacks, record and signal handlers; validation is off.

        Validation stays on if a schedule needs its metrics.
        """
        trainer: Any = self.trainer  # Lightning does not annotate its callbacks
        callbacks, accumulation = trainer.callbacks, trainer.accumulate_grad_batches
        limit = trainer.limit_val_batches
        trainer.callbacks = [c for c in callbacks if runs_in_separation(c)]
        if not any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
            trainer.limit_val_batches = 0
        trainer._signal_connector.register_signal_handlers()
        try:
            with (
                separation_record(trainer.loggers),
                torch.autograd.set_detect_anomaly(trainer._detect_anomaly),
            ):
                yield
        finally:
            trainer._signal_connector.teardown()
            trainer.callbacks, trainer.accumulate_grad_batches = callbacks, accumulation
            trainer.limit_val_batches = limit

    def switch(self, found: UpsampledSet, factor: int, states: dict[str, Rng]) -> None:
        """Begin stage two: the trainer's own loop over the upsampled data, with fresh optimizers.

        Raises:
            RuntimeError: If ``configure_optimizers`` does not make new optimizers.
        """
        trainer = self.trainer
        used = [id(optimizer) for optimizer in self._optimizers()]
        self.separation_loop.teardown()
        trainer.fit_loop = self.training_loop
        trainer.should_stop = False
        self.source.use(found, factor)
        self.source.rewind()
        self._clear_record()
        set_rng(states["before"], self._device)
        trainer.strategy.setup_optimizers(trainer)
        if not same_rng(states["after"], states["start"]):  # others drew at the start of the fit
            set_rng(states["start"], self._device)
        if any(id(optimizer) in used for optimizer in self._optimizers()):
            raise RuntimeError(
                "configure_optimizers must make a new optimizer each time it is called, got the "
                "one of the separation stage. Build it inside configure_optimizers."
            )

    def forget_checkpoint(self) -> None:
        """Keep Lightning from restoring the rest of a checkpoint that was written in stage one."""
        self.trainer._checkpoint_connector._loaded_checkpoint = {}

    def close(self) -> None:
        """Give the trainer its loop back, however the fit ended."""
        vars(self.trainer.strategy).pop("setup_optimizers", None)
        if self.separating:
            self.separation_loop.teardown()
            self.trainer.fit_loop = self.training_loop

    def _setup_optimizers(self, trainer: L.Trainer) -> None:
        del trainer.strategy.setup_optimizers  # the class's own is meant from here on
        if self._separate():
            trainer.fit_loop = self.separation_loop
        self._before = read_rng(self._device)
        trainer.strategy.setup_optimizers(trainer)
        self._after = read_rng(self._device)

    def _clear_record(self) -> None:
        """Forget logged values of stage one: callback, progress bar and logged metrics."""
        self.trainer._logger_connector.reset_results()
        self.trainer._logger_connector.reset_metrics()

    def _optimizers(self) -> list[Any]:
        return [getattr(o, "optimizer", o) for o in self.trainer.optimizers]

    @property
    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device


@contextlib.contextmanager
def separation_record(loggers: list[Any]) -> Iterator[None]:
    """Prefix what is logged with ``separation/``, and tell loggers that know stages."""
    kept = [(vars(logger).get("log_metrics"), getattr(logger, "stage", None)) for logger in loggers]
    for logger, (_, stage) in zip(loggers, kept, strict=True):
        # On the object, so that it is still of its class to whoever looks.
        logger.log_metrics = _prefixed(logger.log_metrics)
        if isinstance(stage, str):
            logger.stage = "separation"
    try:
        yield
    finally:
        for logger, (own, stage) in zip(loggers, kept, strict=True):
            del logger.log_metrics
            if own is not None:
                logger.log_metrics = own
            if isinstance(stage, str):
                logger.stage = stage


def _prefixed(log_metrics: Callable[..., None]) -> Callable[..., None]:
    def log(metrics: dict[str, Any], step: int | None = None) -> None:
        named = {k if k == "epoch" else f"separation/{k}": v for k, v in metrics.items()}
        log_metrics(named, step=step)

    return log
