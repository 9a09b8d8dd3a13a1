"""Stage one of USEFUL: train, score, select; its file; and the start of stage two."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from callbacks._scoring import Scores
from callbacks._selecting import (
    Settings,
    log_selection,
    log_values,
    selected_set,
    warn_of_noise,
)
from callbacks._stages import Stages, is_trial, runs_in_separation
from callbacks._state import (
    gather_rng,
    load_file,
    own_rng,
    read_rng,
    reset_metrics,
    restore_tensors,
    set_rng,
    tensors_hash,
    tensors_of,
)
from toolkit import distributed
from toolkit.data.selection import UpsampledSet
from toolkit.data.upsampling import flattening_epoch
from toolkit.saving import save_atomically

__all__ = ["Separation"]


class Separation:
    """Runs stage one, or what is left of it, and takes the trainer to the start of stage two.

    Args:
        trainer: The trainer, at its ``on_fit_start``.
        module: Its module, with the initial weights.
        owner: The callback whose stages these are.
        stages: The two loops.
        settings: See there.
        score: Scores the training data.
        path: The stage's own checkpoint; ``None`` keeps none.
        identity: What a file of the same run agrees in.
    """

    def __init__(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        owner: L.Callback,
        stages: Stages,
        settings: Settings,
        *,
        score: Callable[[], Scores],
        path: Path | None,
        identity: dict[str, Any],
    ) -> None:
        self.trainer = trainer
        self.module = module
        self.stages = stages
        self.settings = settings
        self.score = score
        self.path = path
        self.errors: list[float] = []
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined] # untyped
        later = callbacks[callbacks.index(owner) + 1 :]
        self._started_later = [callback for callback in later if runs_in_separation(callback)]
        self._callbacks = [c for c in callbacks if runs_in_separation(c) and c is not owner]
        self._modes = [(child, child.training) for child in module.modules()]
        self._start = self._read_start()
        self._identity = {**identity, "initial weights": tensors_hash(self._start["tensors"])}

    def run(self, *, continuing: bool) -> UpsampledSet:
        """Stage one up to the first moment of stage two.

        Args:
            continuing: Whether the weights are those of a checkpoint written in stage one, so that
                its file must be there and the initial weights cannot be compared.

        Raises:
            ValueError: If the file is of another run.
            RuntimeError: If stage one ended too early, or its file is gone.
        """
        file = load_file(self.path) if self.path is not None else None
        if file is not None:
            self._check_identity(file["identity"], continuing=continuing)
            self._start, self._identity = file["start"], file["identity"]
            self._load_callbacks(file["callbacks"])
            self._cut_records(file["num_rows"])
        elif continuing:
            raise RuntimeError(
                f"{self.path} must be there to continue from a checkpoint that was written in the "
                "separation stage, got no file. Start anew without a checkpoint."
            )
        if file is not None and file["selection"] is not None:
            found = UpsampledSet.from_state(file["selection"])
        else:
            found = self._train_and_select(file)
        self._begin_training(found)
        return found

    def _train_and_select(self, file: dict[str, Any] | None) -> UpsampledSet:
        loop = self.stages.separation_loop
        loop.is_finished = self._is_finished
        loop.on_epoch = self._on_epoch
        with self.stages.separation():
            for callback in self._started_later:
                callback.on_fit_start(self.trainer, self.module)
            self.module.on_fit_start()
            if file is None:
                self._add_error()
                self._save()
            else:
                self._continue(file)
            loop.run()
            if not self._is_finished(loop.epochs):
                raise RuntimeError(
                    "the separation stage must train all its epochs, got "
                    f"{loop.epochs} of {self.settings.separation_epochs}. Raise max_steps, or look "
                    "for what set trainer.should_stop."
                )
            found = self._select(self.score())
            log_selection(self.trainer, found)
            self._save(found)
        return found

    def _begin_training(self, found: UpsampledSet) -> None:
        """Everything as at the start of the fit, but for the data."""
        restore_tensors(self.module, self._start["tensors"])
        for child, training in self._modes:
            child.training = training
        reset_metrics(self.module)
        self.module.zero_grad()
        if self._start["precision"]:
            self.trainer.precision_plugin.load_state_dict(self._start["precision"])
        states = {name: own_rng(ranks) for name, ranks in self._start["rng"].items()}
        self.stages.switch(found, self.settings.factor, states)

    def _is_finished(self, epochs: int) -> bool:
        if is_trial(self.trainer):
            return epochs >= 1
        if self.settings.separation_epochs != "auto":
            return epochs >= self.settings.separation_epochs
        chosen = flattening_epoch(self.errors, self.trainer.max_epochs or 1)
        return chosen is not None and epochs >= chosen

    def _on_epoch(self) -> None:
        self._add_error()
        self._save()

    def _add_error(self) -> None:
        """Where the epoch is chosen by it, the training error so far."""
        if self.settings.separation_epochs != "auto":
            return
        self.errors.append(1 - float(self.score().correct.double().mean()))
        log_values(self.trainer, {"train_error": self.errors[-1]})

    def _select(self, scores: Scores) -> UpsampledSet:
        """Rank 0's selection on every rank: clustering per rank could differ in a last bit."""
        found, problem = None, None
        if distributed.is_main():
            warn_of_noise(self.trainer, self.settings.selection)
            try:
                epochs = self.stages.separation_loop.epochs
                data = self._identity["data"]
                found = selected_set(scores, self.settings, epochs, tuple(self.errors), data)
            except ValueError as error:
                problem = str(error)
        found, problem = distributed.broadcast_object((found, problem))
        if found is None:
            raise ValueError(problem)
        return found

    def _read_start(self) -> dict[str, Any]:
        states = self.stages.random_states()
        return {
            "tensors": tensors_of(self.module),
            "rng": {name: gather_rng(state) for name, state in states.items()},
            "precision": self.trainer.precision_plugin.state_dict(),
        }

    def _save(self, found: UpsampledSet | None = None) -> None:
        """Write the file: what a new process needs to go on from here bit for bit."""
        if self.path is None:
            return
        content = {
            "identity": self._identity,
            "start": self._start,
            "selection": None if found is None else found.state(),
            "callbacks": self._callback_states(),
            "num_rows": [_num_rows(logger) for logger in self.trainer.loggers],
            "progress": None if found is not None else self._progress(),
        }
        if distributed.is_main():
            save_atomically(content, self.path)
        distributed.barrier()

    def _progress(self) -> dict[str, Any]:
        strategy = self.trainer.strategy
        generators = [generator for generator, _ in self.stages.source.generators]
        return {
            "tensors": tensors_of(self.module),
            "loop": self.stages.separation_loop.state_dict(),
            "optimizers": [strategy.optimizer_state(o) for o in self.trainer.optimizers],
            "schedulers": [c.scheduler.state_dict() for c in self.trainer.lr_scheduler_configs],
            "precision": self.trainer.precision_plugin.state_dict(),
            "rng": gather_rng(read_rng(strategy.root_device)),
            "generators": [generator.get_state() for generator in generators],
            "errors": self.errors,
        }

    def _continue(self, file: dict[str, Any]) -> None:
        """Go on where the file was written."""
        progress, trainer = file["progress"], self.trainer
        restore_tensors(self.module, progress["tensors"])
        trainer.strategy.load_optimizer_state_dict({"optimizer_states": progress["optimizers"]})
        for config, state in zip(trainer.lr_scheduler_configs, progress["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        if progress["precision"]:
            trainer.precision_plugin.load_state_dict(progress["precision"])
        self.errors = progress["errors"]
        self.stages.separation_loop.continue_from(progress["loop"])
        self.stages.separation_loop.on_ready = lambda: self._restore_random(progress)

    def _restore_random(self, progress: dict[str, Any]) -> None:
        set_rng(own_rng(progress["rng"]), self.trainer.strategy.root_device)
        known = self.stages.source.generators
        for (generator, _), state in zip(known, progress["generators"], strict=False):
            generator.set_state(state)

    def _callback_states(self) -> dict[str, Any]:
        states = {callback.state_key: callback.state_dict() for callback in self._callbacks}
        return {key: state for key, state in states.items() if state}

    def _load_callbacks(self, states: dict[str, Any]) -> None:
        for callback in self._callbacks:
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])

    def _cut_records(self, num_rows: list[int | None]) -> None:
        """Take records back to the file's moment; what follows is replayed."""
        for logger, count in zip(self.trainer.loggers, num_rows, strict=False):
            if count is not None and hasattr(logger, "cut_to") and distributed.is_main():
                logger.cut_to(count)

    def _check_identity(self, found: dict[str, Any], *, continuing: bool) -> None:
        own = self._identity if not continuing else {**self._identity, "initial weights": None}
        if continuing:
            found = {**found, "initial weights": None}
        differing = [key for key in own | found if own.get(key) != found.get(key)]
        if differing:
            values = [f"{key} ({found.get(key)}, now {own.get(key)})" for key in differing]
            raise ValueError(
                f"{self.path} must be of this run, got another {', another '.join(values)}. It is "
                "left of a run that was interrupted: repeat that run's command to continue it, or "
                "remove the file to start anew."
            )


def _num_rows(logger: Any) -> int | None:
    count = getattr(logger, "num_rows", None)
    return count if isinstance(count, int) else None
