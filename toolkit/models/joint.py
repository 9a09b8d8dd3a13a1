"""Models so small that several runs train as one program, many updates a training step."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import lightning as L
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toolkit.functional import next_log_point

__all__ = ["JointModel", "NoMemberLeftError", "join_models", "non_finite_text"]

M = TypeVar("M", bound="JointModel")
T = TypeVar("T")


class NoMemberLeftError(RuntimeError):
    """Every member of a program has met a loss that is not finite."""


class JointModel(L.LightningModule):
    """One or more runs, its members, that train as one program of exact updates.

    Every tensor of the state, and of the batch, has a leading dimension of members; a model as
    built from a recipe has one. :func:`join_models` puts several together, and ``toolkit.fit`` does
    so with the runs of a study that are still to be trained. A member's numbers must not depend on
    which others share its program: subclasses treat members one by one, or with operations that
    work on each alone, and draw random numbers from the member's own state.

    A training step makes up to ``updates_per_step`` updates of every member, by hand, on the whole
    data, which stays in memory (:class:`toolkit.data.ResidentData`). Numbers are recorded before
    the first update, after the updates ``round(10 ** (k / log_per_decade))`` and after the last;
    the record's ``update`` counts the updates done. Training ends after ``updates`` of them.

    A member whose loss is not finite keeps the weights before that update and is left out from
    then on. A single model can also be trained by a plain ``lightning.Trainer``.

    Args:
        updates: Updates of the whole training, at least 1.
        updates_per_step: Updates of one training step, at least 1; changes the speed only.
        log_per_decade: Points of the record for each factor of ten of the updates, at least 1.

    Attributes:
        updates_done: Of each member, ``(members,)``.
        failed: Whether a member has met a loss that is not finite, ``(members,)``.

    Raises:
        ValueError: If a number is below 1.
    """

    needs_cpu = False
    """Whether the updates are loops that run on the CPU only."""

    updates_done: Tensor
    failed: Tensor

    def __init__(
        self, updates: int, updates_per_step: int = 1000, log_per_decade: int = 20
    ) -> None:
        super().__init__()
        for name, value in (
            ("updates", updates),
            ("updates_per_step", updates_per_step),
            ("log_per_decade", log_per_decade),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.automatic_optimization = False
        self.updates = updates
        self.updates_per_step = updates_per_step
        self.log_per_decade = log_per_decade
        self.register_buffer("updates_done", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("failed", torch.zeros(1, dtype=torch.bool))
        self._has_begun = False
        self._loss = torch.tensor(torch.nan)

    @classmethod
    def check_recipe(cls, resolved: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
        """What a recipe asks for that such a program does not do."""
        trainer, checkpoint = resolved.get("trainer") or {}, resolved.get("checkpoint") or {}
        told = []
        if resolved.get("callbacks"):
            names = ", ".join(resolved["callbacks"])
            told.append(
                f"must have no callbacks, since its runs train as one program, got {names}. "
                "Remove them; it records its own numbers."
            )
        if checkpoint.get("monitor") or checkpoint.get("test") == "best":
            told.append("must have no checkpoint.monitor, since it keeps the last weights only.")
        if resolved.get("nonfinite") == "skip":
            told.append("must have nonfinite: stop; a member stops alone, the others go on.")
        if trainer.get("devices", 1) not in (1, "auto", [0]):
            told.append(f"must have trainer.devices 1, got {trainer['devices']}. Use --jobs.")
        accelerator = trainer.get("accelerator", "auto")
        if cls.needs_cpu and accelerator != "cpu":
            told.append(f"must have trainer.accelerator cpu, got {accelerator}.")
        return told

    @property
    def num_members(self) -> int:
        """Runs in this program."""
        return len(self.updates_done)

    @property
    def active(self) -> Bool[Tensor, " members"]:
        """Which members still train."""
        return ~self.failed

    @property
    def done(self) -> int:
        """Updates done by the members that still train."""
        left = self.updates_done[self.active]
        return int(left[0]) if len(left) else int(self.updates_done.max())

    @abstractmethod
    def prepare(self, batch: Mapping[str, Tensor]) -> None:
        """Check the batch, and derive from it whatever the updates need; cheap, changes no state.

        Raises:
            ValueError: If the data does not fit the model, in one line.
        """

    def begin(self, batch: Mapping[str, Tensor]) -> None:
        """Whatever else precedes the updates, after a restart too; by default nothing."""

    @abstractmethod
    def advance(self, num_updates: int) -> Int[Tensor, " members"]:
        """Make updates of every active member; how many each of them made.

        Fewer than asked for means that the loss of the next one was not finite.
        """

    @abstractmethod
    def observe(self) -> dict[str, Float[Tensor, " members"]]:
        """The numbers to record at this update, by key."""

    def summarize(self) -> dict[str, Float[Tensor, " members"]]:
        """Further numbers of the finished training; by default none."""
        return {}

    def settings(self) -> dict[str, Hashable]:
        """What all members of a program have to share; subclasses add theirs."""
        return {
            "class": type(self),
            "updates": self.updates,
            "updates_per_step": self.updates_per_step,
            "log_per_decade": self.log_per_decade,
        }

    def join_key(self, batch: Mapping[str, Tensor]) -> Hashable:
        """Equal for models that :func:`join_models` takes together: class, shapes, progress."""
        tensors = {**self.state_dict(), **batch}
        shapes = tuple((key, value.shape[1:], value.dtype) for key, value in tensors.items())
        return tuple(self.settings().items()), shapes, self.done

    def member_state(self, member: int) -> dict[str, Tensor]:
        """The state of one member, as a model that has it alone would save it."""
        return {key: value[member : member + 1].clone() for key, value in self.state_dict().items()}

    def map_members(self, function: Callable[[int], T], members: Iterable[int]) -> list[T]:
        """``function`` of each member's number, on as many threads as torch may use.

        Worth while for functions that let go of Python's lock, as compiled loops do.
        """
        if torch.get_num_threads() == 1:
            return [function(member) for member in members]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(function, members))

    def on_fit_start(self) -> None:
        """Take up the data of this fit."""
        self._has_begun = False

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Make the updates of a step, record on the way, and end training after the last."""
        if not self._has_begun:
            self.prepare(batch)
            self.begin(batch)
            self._has_begun = True
            if self.done == 0:
                self._record()
        target = min(self.done + self.updates_per_step, self.updates)
        while self.done < target and self.active.any():
            point = next_log_point(self.done, self.log_per_decade)
            asked = min(point, target) - self.done
            made = self.advance(asked)
            self.failed |= made < torch.where(self.failed, 0, asked)
            self.updates_done += made
            if self.active.any() and self.done in (point, self.updates):
                self._record()
        if self.done >= self.updates or not self.active.any():
            self.trainer.should_stop = True
        if not self.active.any():
            raise NoMemberLeftError(non_finite_text(int(self.updates_done[0])))
        return {"loss": self._loss}

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Log what is known of a single run at the end."""
        self.prepare(batch)
        values = {**self.observe(), **self.summarize()}
        self.log_dict({key: value[0] for key, value in values.items()}, batch_size=1)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """None: the updates are made by hand."""
        return []

    def _record(self) -> None:
        """Hand the numbers of this update to the loggers."""
        values = self.observe()
        self._loss = values["train/loss"].nanmean()
        for logger in self.trainer.loggers:
            log_members = getattr(logger, "log_members", None)
            if log_members is not None:
                log_members(values, self.done, self.active)
                continue
            named = {
                key if self.num_members == 1 else f"{key}/member{member}": float(value[member])
                for key, value in values.items()
                for member in range(self.num_members)
            }
            logger.log_metrics(named, step=self.done)


def join_models(models: Sequence[M]) -> M:
    """One program of all members of these, in this order; the models themselves are left alone.

    Args:
        models: At least one, all of one :meth:`JointModel.join_key`.
    """
    joint = copy.deepcopy(models[0])
    for name, parameter in joint.named_parameters():
        parameter.data = torch.cat([model.get_parameter(name).data for model in models])
    for name, _ in list(joint.named_buffers()):
        owner, _, last = name.rpartition(".")
        buffer = torch.cat([model.get_buffer(name) for model in models])
        setattr(joint.get_submodule(owner), last, buffer)
    return joint


def non_finite_text(update: int) -> str:
    """What ends a member, in one line."""
    return (
        f"the training loss must be finite, got none at update {update}. Lower the learning rate, "
        "or look at the data."
    )
