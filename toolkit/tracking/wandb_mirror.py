"""The record's rows at Weights & Biases; whatever happens there, the run goes on."""

import netrc
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_only

from toolkit.history import read_json, write_json

__all__ = ["WandbMirror", "logged_in"]


class WandbMirror(WandbLogger):
    """Sends the rows of the record to Weights & Biases; whatever happens there, the run goes on.

    Give it to :class:`HistoryLogger`, which hands over each row, and to the trainer after the
    record, so that callbacks that look for a ``WandbLogger`` find it. Numbers that Lightning logs
    come once, with the rows; anything else (images, tables) joins the latest row.

    A W&B step is the number of a row, so it grows over stages; ``epoch``, ``update`` and
    ``examples_seen`` are axes of their own. ``wandb.json`` keeps the run's id and the number of
    rows in finished parts: a resumed run has the same id, no row is sent twice, and what a killed
    process left unfinished is sent again from the record. An absent value (NaN) is left out.
    If W&B cannot be reached at the start, the run is kept offline; if it fails later, one warning
    says so and nothing more is sent.

    Args:
        folder: The run's folder.
        name: Name of the run.
        group: Name of the study.
        config: The resolved recipe.
        mode: ``"disabled"`` does nothing at all. ``"auto"`` is the environment variable
            ``WANDB_MODE``, else ``"online"`` if :func:`logged_in`, else ``"offline"``.
        project: The project; by default the environment variable ``WANDB_PROJECT``, else ``group``.
        entity: User or team.
        tags: Tags of the run.

    Attributes:
        rows_sent: Rows ``0..rows_sent - 1`` have been sent.
        active: Whether rows are sent: not disabled, and W&B has not failed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        name: str,
        group: str,
        config: Mapping[str, Any] | None = None,
        mode: str = "auto",
        project: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.folder = Path(folder)
        self.mode = _resolved(mode)
        self.active = self.mode != "disabled"
        stored = read_json(self.folder / "wandb.json") or {}
        self.rows_sent: int = stored.get("rows_sent", 0)
        self._finished_parts: list[str] = stored.get("parts", [])
        self._open_step = self.rows_sent
        super().__init__(
            name=name,
            save_dir=self.folder,
            version=stored.get("id", uuid.uuid4().hex[:12]),
            project=project or os.environ.get("WANDB_PROJECT", group),
            entity=entity,
            group=group,
            tags=list(tags),
            config=dict(config or {}),
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; where there is none, an object that takes any call and does nothing."""
        if self._experiment is None and self.active:
            self._experiment = self._guarded(self._start)
        return self._experiment if self.active else DummyLogger().experiment

    @rank_zero_only
    def log_row(self, row: Mapping[str, Any]) -> None:
        """Send a row of the record, unless it has been sent."""
        number = row["row"]
        if number < self.rows_sent or not self.active:
            return
        values = {key: value for key, value in row.items() if key != "row" and value is not None}
        self._send(values, number)
        if self.active:
            self.rows_sent = number + 1
            self._open_step = number

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Send what is not a number; numbers come with the rows of the record."""
        media = {key: value for key, value in metrics.items() if not isinstance(value, int | float)}
        if media:
            self._send(media, self._open_step)

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Add the module's hyperparameters to the run's config."""
        if self.active:
            self._guarded(lambda: super(WandbMirror, self).log_hyperparams(*args, **kwargs))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Finish the run after a failure; after a success more rows may come (a test, say)."""
        if status != "success":
            self.finish(exit_code=1)

    @rank_zero_only
    def finish(self, exit_code: int = 0) -> None:
        """Finish the run at W&B with this exit code; a later row would open it again."""
        run, self._experiment = self._experiment, None
        if run is None or not self.active:
            return
        self._guarded(lambda: run.finish(exit_code=exit_code))
        if self.active:
            self._finished_parts.append(Path(run.dir).parent.name)
            self._store()

    def _send(self, values: Mapping[str, Any], step: int) -> None:
        if self.active:
            # Not committed: a step stays open until the next, so that media can join it.
            self._guarded(lambda: self.experiment.log(dict(values), step=step, commit=False))

    def _start(self) -> Any:
        """Open the run, or its next part."""
        # wandb takes half a second to import, which only a tracked run should cost.
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)  # else W&B writes to a temporary folder
        self._discard_unfinished_parts()
        try:
            run = self._open(wandb, self.mode)
        except Exception as error:
            if self.mode != "online":
                raise
            warnings.warn(f"{_failed(error)} The run is kept offline.", stacklevel=2)
            run = self._open(wandb, "offline")
        if not run.offline:
            self.rows_sent = run.starting_step  # W&B knows best what has arrived
        self._open_step = self.rows_sent
        for axis in ("epoch", "update", "examples_seen"):
            run.define_metric(axis)
        self._store()
        return run

    def _open(self, wandb: Any, mode: str) -> Any:
        known = wandb.Settings.model_fields
        settings = {key: value for key, value in _SETTINGS.items() if key in known}
        arguments = {key: value for key, value in self._wandb_init.items() if key != "anonymous"}
        return wandb.init(
            **arguments,
            mode=mode,
            reinit="create_new",  # leaves a run of the user's own alone
            settings=wandb.Settings(**settings),
        )

    def _discard_unfinished_parts(self) -> None:
        """Remove what killed processes left offline; its rows are sent again."""
        for part in self.folder.glob(f"wandb/offline-run-*-{self._id}"):
            if part.name not in self._finished_parts:
                shutil.rmtree(part)

    def _store(self) -> None:
        stored = {"id": self._id, "rows_sent": self.rows_sent, "parts": self._finished_parts}
        write_json(stored, self.folder / "wandb.json")

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """The result of a call to W&B; ``None``, one warning, and no more calls if it fails."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - whatever W&B raises, the run goes on
            self.active = False
            warnings.warn(
                f"{_failed(error)} The run goes on without it; its own record is complete.",
                stacklevel=3,
            )
            return None


def logged_in() -> bool:
    """Whether the environment or the netrc file holds credentials for W&B."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _resolved(mode: str) -> str:
    if mode not in _MODES:
        raise ValueError(
            f"mode must be one of {', '.join(_MODES)}, got {mode!r}. "
            f"Set wandb.mode in the recipe to one of them."
        )
    if mode != "auto":
        return mode
    asked = {"dryrun": "offline", "run": "online"}
    named = os.environ.get("WANDB_MODE", "")
    named = asked.get(named, named)
    return named if named in _MODES[1:] else ("online" if logged_in() else "offline")


def _failed(error: Exception) -> str:
    return f"Weights & Biases failed ({type(error).__name__}: {error})."


_MODES = ("auto", "online", "offline", "disabled")

# Nothing about the machine, the process or the code leaves it, nothing is sampled in the
# background, and an unreachable server costs a bounded time.
_SETTINGS = {
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_git": True,
    "symlink": False,
    "init_timeout": 30.0,
    "finish_timeout": 60.0,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
