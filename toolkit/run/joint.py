"""Trains several runs as one program, each with its own folder, lock, record and result."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor

from toolkit import history
from toolkit.data.resident import ResidentBatch, ResidentData, joined_batch
from toolkit.models.joint import (
    JointModel,
    NoMemberLeftError,
    join_models,
    non_finite_text,
)
from toolkit.run.folder import Run
from toolkit.run.guard import NonFiniteLossError
from toolkit.run.lock import FolderInUseError, FolderLock
from toolkit.run.training import (
    explain,
    make_trainer,
    mirror,
    numbers,
    quiet,
    seeded_data,
    seeded_model,
    write_inputs,
)
from toolkit.saving import save_atomically
from toolkit.tracking import HistoryLogger

__all__ = ["train_together"]

Tell = Callable[[Run, str, Any], None]

SAVE_SECONDS = 30.0
"""A killed program loses no more than this; saving 60 members takes a second."""


def train_together(runs: Sequence[Run], tell: Tell) -> None:
    """Train runs of joint models to their results; those that can join do so.

    Members join whose models have one class, the same shapes, settings that a program shares,
    trainer and number of updates done. One that fails, or whose folder somebody else holds, is
    left out. Results do not depend on which others train along.

    Args:
        runs: Of :class:`toolkit.models.JointModel` models.
        tell: Hears for each run how it ended (``finished``, ``found``, ``failed`` or ``locked``)
            and, for the first of a program, its progress.
    """
    quiet()
    with contextlib.ExitStack() as locks:
        programs: dict[Any, list[_Member]] = {}
        data: dict[str, L.LightningDataModule] = {}  # variants of a seed often share it
        for run in runs:
            member = _opened(run, locks, data, tell)
            if member is not None:
                programs.setdefault(member.join_key(), []).append(member)
        for members in programs.values():
            program = _Program(members, tell)
            try:
                program.train()
            except Exception as error:  # noqa: BLE001 - it must not cost the other programs
                for member in program.unended:
                    tell(member.run, "failed", explain(error, member.run))


@dataclass
class _Member:
    """A run with its parts, brought to where it was."""

    run: Run
    model: JointModel
    data: ResidentData
    record: HistoryLogger
    seconds: float

    def join_key(self) -> Any:
        """Equal for members of one program."""
        shared = repr((self.run.resolved["trainer"], self.run.resolved["threads"]))
        return shared, self.model.join_key(self.data.batch)

    def examples_seen(self, updates: int) -> int:
        """Of full-batch updates."""
        targets = self.data.batch.get("targets")
        return updates * (1 if targets is None else targets.shape[1])


class _Records(Logger):
    """Hands each member's numbers to its own record."""

    def __init__(self, members: Sequence[_Member]) -> None:
        super().__init__()
        self.members = members

    def log_members(self, values: Mapping[str, Tensor], update: int, active: Tensor) -> None:
        """A row for each member that still trains."""
        columns = {key: value.tolist() for key, value in values.items()}
        for m in active.nonzero().flatten().tolist():
            member = self.members[m]
            member.record.examples_seen = member.examples_seen(update)
            member.record.log_metrics({key: of[m] for key, of in columns.items()}, step=update)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Nothing: what Lightning logs by itself is not of one member."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: ``recipe.yaml`` has them."""

    @property
    def name(self) -> str:
        """Empty: the members have folders of their own."""
        return ""

    @property
    def version(self) -> str:
        """Empty."""
        return ""


class _Program(L.Callback):
    """Observes: trains members together, saves them in between, and ends each."""

    def __init__(self, members: Sequence[_Member], tell: Tell) -> None:
        self.members = members
        self.tell = tell
        self.unended = list(members)
        self.model = join_models([member.model for member in members])
        self._began = self._saved = time.monotonic()

    def train(self) -> None:
        """Train to the end, and write every member's result."""
        batch = joined_batch([member.data.batch for member in self.members])
        if self.model.done < self.model.updates:
            self._fit(batch)
        else:
            self.model.prepare(batch)
            self.model.begin(batch)
        self._end_failed()
        if not self.unended:
            return
        if self.model.done < self.model.updates:
            raise RuntimeError(
                f"the trainer must not end before model.updates, {self.model.updates}, got an end "
                f"at {self.model.done}. Remove max_steps, max_time and limits from trainer."
            )
        values = {**self.model.observe(), **self.model.summarize()}
        for m, member in enumerate(self.members):
            if member in self.unended:
                self._finish(m, {key: value[m].item() for key, value in values.items()})

    def on_train_batch_end(self, *arguments: Any) -> None:
        """End members that failed, tell the progress, and save if it is time to."""
        self._end_failed()
        if not self.unended:
            return
        done, loss = self.model.done, float(arguments[2]["loss"])
        progress = {"stage": "training", "epoch": done, "epochs": self.model.updates, "loss": loss}
        self.tell(self.members[0].run, "progress", progress)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            for m, member in enumerate(self.members):
                if member in self.unended:
                    self._save(m)
            self._saved = time.monotonic()

    def _fit(self, batch: Mapping[str, Tensor]) -> None:
        first = self.members[0].run.resolved
        torch.set_num_threads(first["threads"])
        # The data has no end, so one epoch is the whole training, whatever max_epochs says.
        resolved = {**first, "trainer": {**first["trainer"], "max_epochs": 1}}
        trainer = make_trainer(
            resolved, [self], [], logger=_Records(self.members),
            default_root_dir=self.members[0].run.folder,
        )  # fmt: skip
        with contextlib.suppress(NoMemberLeftError):
            trainer.fit(self.model, train_dataloaders=ResidentBatch(batch), weights_only=True)

    def _seconds(self, member: _Member) -> float:
        """The member's share of the program's time, with that of earlier programs."""
        return member.seconds + (time.monotonic() - self._began) / len(self.members)

    def _save(self, m: int) -> None:
        member = self.members[m]
        state = {
            "state_dict": self.model.member_state(m),
            "updates": int(self.model.updates_done[m]),
            "num_rows": member.record.num_rows,
            "seconds": self._seconds(member),
        }
        save_atomically(state, member.run.checkpoints / "last.ckpt")

    def _end_failed(self) -> None:
        for m in self.model.failed.nonzero().flatten().tolist():
            member = self.members[m]
            if member in self.unended:
                self.unended.remove(member)
                member.record.close("failed")
                error = NonFiniteLossError(non_finite_text(int(self.model.updates_done[m])))
                self.tell(member.run, "failed", explain(error, member.run))

    def _finish(self, m: int, metrics: Mapping[str, float]) -> None:
        member, run = self.members[m], self.members[m].run
        self._save(m)
        member.record.close()
        self._send(member)
        result = {
            "recipe": run.recipe,
            "variant": run.variant,
            "seed": run.seed,
            "status": "finished",
            "seconds": round(self._seconds(member), 3),
            "updates": self.model.updates,
            "examples_seen": member.examples_seen(self.model.updates),
            "world_size": 1,
            "metrics": numbers(metrics),
        }
        history.write_json(result, run.folder / "result.json")
        self.unended.remove(member)
        self.tell(run, "finished", result)

    def _send(self, member: _Member) -> None:
        """Send the whole record to W&B, if the recipe says so: one member after the other."""
        sent_to = mirror(member.run)
        if sent_to is None:
            return
        _ = sent_to.experiment  # W&B may know better what has arrived
        for row in history.read_history(member.record.path):
            sent_to.log_row(row)
        sent_to.finish()


def _opened(
    run: Run, locks: contextlib.ExitStack, data: dict[str, L.LightningDataModule], tell: Tell
) -> _Member | None:
    """The run's parts, its folder held; ``None`` if it has ended already, one way or another."""
    try:
        locks.enter_context(FolderLock(run.folder))
        if run.is_finished():  # by another process, since the runs were listed
            tell(run, "found", run.result())
            return None
        return _restored(run, data)
    except FolderInUseError as error:
        result = run.result() if run.is_finished() else None  # by whoever is about to leave it
        tell(run, *(("locked", str(error)) if result is None else ("found", result)))
    except Exception as error:  # noqa: BLE001 - whatever it was, the others go on
        tell(run, "failed", explain(error, run))
    return None


def _restored(run: Run, known: dict[str, L.LightningDataModule]) -> _Member:
    write_inputs(run)
    key = repr((run.seed, run.resolved["data"]))
    if key not in known:
        known[key] = seeded_data(run)
    data, model = known[key], seeded_model(run)
    if not isinstance(model, JointModel) or not isinstance(data, ResidentData):
        raise TypeError(
            "model and data must be a JointModel and a ResidentData, got "
            f"{type(model).__name__} and {type(data).__name__}. Name others in the recipe."
        )
    record = HistoryLogger(run.folder)
    last = run.checkpoints / "last.ckpt"
    if not last.exists():
        record.cut_to(0)
        return _Member(run, model, data, record, 0.0)
    with history.reading(last, f"Delete {run.folder} to train that run again."):
        state = torch.load(last, weights_only=True)
        model.load_state_dict(state["state_dict"])
        seconds, num_rows = float(state["seconds"]), int(state["num_rows"])
    record.cut_to(num_rows)
    return _Member(run, model, data, record, seconds)
