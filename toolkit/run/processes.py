"""Runs side by side on one machine: a fresh process for each rank of each run."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from toolkit.run.folder import Run
from toolkit.run.worker import work

__all__ = ["Event", "prepare", "run_all"]

_CONTEXT = multiprocessing.get_context("forkserver")
_GRACE_SECONDS = 5.0
_PRELOADED = (
    "toolkit.run.training",
    "toolkit.data",
    "toolkit.models",
    "toolkit.nets",
    "toolkit.optim",
    "callbacks",
    "jsonargparse",
    "sklearn.cluster",
    "sklearn.datasets",
    # Else wandb imports this in each run, which takes 2 s.
    "wandb.sdk.launch",
)


@dataclass(frozen=True)
class Event:
    """Something that a run tells while it trains.

    Attributes:
        run: Which run.
        kind: ``started``, ``progress``, ``warning``, ``finished``, ``failed`` or ``locked``.
        content: What it tells: progress numbers, a warning, a result or an error in one line.
    """

    run: Run
    kind: str
    content: Any = None


Listener = Callable[[Event], None]


def prepare() -> None:
    """Start importing what every run needs, in the process that runs are forked from.

    It goes on beside the caller's own imports, so call it as early as possible.
    """
    _CONTEXT.set_forkserver_preload(list(_PRELOADED))
    forkserver.ensure_running()


def run_all(runs: Iterable[Run], jobs: int, listen: Listener, gpus: int = 0) -> list[Event]:
    """Train all runs, ``jobs`` of them at a time, and say how each ended.

    A run that fails does not stop the others. With ``gpus``, the runs that are under way get
    different ones.

    Args:
        runs: What to train.
        jobs: Runs at a time.
        listen: Hears every event, in this process.
        gpus: GPUs of this machine to hand out.

    Raises:
        KeyboardInterrupt: After every process under way has been ended.
    """
    waiting = deque(runs)
    free_gpus = list(range(gpus))
    active: list[_Job] = []
    outcomes: list[Event] = []
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.popleft()
                try:
                    active.append(_Job(run, free_gpus))
                except (OSError, EOFError) as error:  # no process or file to be had, say
                    outcomes.append(Event(run, "failed", f"could not be started: {error!r}."))
                    listen(outcomes[-1])
                else:
                    listen(Event(run, "started"))
            wait([item for job in active for item in job.waitables()], timeout=1.0)
            for job in list(active):
                outcome = job.poll(listen)
                if outcome is not None:
                    active.remove(job)
                    free_gpus.extend(job.gpus)
                    outcomes.append(outcome)
                    listen(outcome)
    finally:
        for job in active:
            job.end()
    return outcomes


@dataclass
class _Rank:
    process: BaseProcess
    link: Connection
    final: tuple[str, Any] | None = None
    open: bool = True


@dataclass
class _Job:
    """The processes of one run."""

    run: Run
    free_gpus: list[int]
    gpus: list[int] = field(default_factory=list)
    ranks: list[_Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.run.num_ranks
        if self.free_gpus:
            self.gpus = [self.free_gpus.pop(0) for _ in range(min(size, len(self.free_gpus)))]
        try:
            self._start(size)
        except BaseException:
            self.end()
            self.free_gpus.extend(self.gpus)
            raise

    def _start(self, size: int) -> None:
        port = _free_port() if size > 1 else 0
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe()
            environment = _environment(rank, size, port, self.gpus)
            process = _CONTEXT.Process(target=work, args=(self.run, rank, environment, theirs))
            with _without_main():
                process.start()
            theirs.close()
            self.ranks.append(_Rank(process, ours))

    def waitables(self) -> list[Any]:
        """What becomes ready when a rank says something or ends."""
        links = [rank.link for rank in self.ranks if rank.open]
        return [*links, *(rank.process.sentinel for rank in self.ranks if rank.process.is_alive())]

    def poll(self, listen: Listener) -> Event | None:
        """Hand on what the ranks said; how the run ended, once it has."""
        for rank in self.ranks:
            self._receive(rank, listen)
        bad = [rank for rank in self.ranks if self._has_failed(rank)]
        if bad:
            # The other ranks wait for the one that did not train, and would do so for ever.
            self.end()
            told = [rank.final for rank in bad if rank.final is not None]
            kind, content = told[0] if told else ("failed", self._death(bad[0]))
            return Event(self.run, "finished" if kind == "found" else kind, content)
        if any(rank.final is None or rank.process.is_alive() for rank in self.ranks):
            return None
        final = self.ranks[0].final
        return Event(self.run, *final) if final is not None else None

    def end(self) -> None:
        """End every process of the run."""
        for rank in self.ranks:
            if rank.process.is_alive():
                rank.process.kill()
        for rank in self.ranks:
            rank.process.join(_GRACE_SECONDS)
            rank.link.close()
            rank.open = False

    def _receive(self, rank: _Rank, listen: Listener) -> None:
        while rank.open:
            try:
                if not rank.link.poll():
                    return
                kind, content = rank.link.recv()
            except (EOFError, OSError):
                rank.open = False
                return
            if kind in ("finished", "found", "failed", "locked"):
                rank.final = (kind, content)
            else:
                listen(Event(self.run, kind, content))

    def _has_failed(self, rank: _Rank) -> bool:
        if rank.final is not None:
            return rank.final[0] != "finished"
        return not rank.process.is_alive() and not rank.open

    def _death(self, rank: _Rank) -> str:
        code = rank.process.exitcode
        size = self.run.resolved.get("data", {}).get("batch_size")
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = f" Out of memory, with batch size {size}?" if name == "SIGKILL" else ""
            return f"its process was ended by {name}.{hint}"
        return f"its process ended with exit code {code}; see {self.run.folder / 'output.log'}."


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from importing the caller's script, which would run it again."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


def _environment(rank: int, size: int, port: int, gpus: list[int]) -> dict[str, str]:
    """Variables for one rank's process, as Lightning reads them from its own launcher."""
    variables: dict[str, str] = {}
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = _visible(gpus)
    if size > 1:
        variables |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NODE_RANK": "0",
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
        }
    return variables


def _visible(gpus: list[int]) -> str:
    """The chosen ones of the GPUs that this process may see."""
    mine = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = mine.split(",") if mine else [str(gpu) for gpu in range(max(gpus) + 1)]
    return ",".join(names[gpu] for gpu in gpus)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
