"""Runs side by side on one machine: a fresh process for each rank of each run, or for several."""

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

from toolkit.run.crews import crews
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

    Runs whose models train jointly are divided over ``jobs`` processes. A run that fails does not
    stop the others. With ``gpus``, the runs that are under way get different ones.

    Args:
        runs: What to train.
        jobs: Runs at a time.
        listen: Hears every event, in this process.
        gpus: GPUs of this machine to hand out.

    Raises:
        KeyboardInterrupt: After every process under way has been ended.
    """
    waiting = deque(crews(runs, jobs))
    free_gpus = list(range(gpus))
    active: list[_Job] = []
    outcomes: list[Event] = []
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                crew = waiting.popleft()
                try:
                    active.append(_Job(crew, free_gpus))
                except (OSError, EOFError) as error:  # no process or file to be had, say
                    text = f"could not be started: {error!r}."
                    _end([Event(run, "failed", text) for run in crew], outcomes, listen)
                else:
                    listen(Event(crew[0], "started"))
            wait([item for job in active for item in job.waitables()], timeout=1.0)
            for job in list(active):
                _end(job.poll(listen), outcomes, listen)
                if job.is_over():
                    active.remove(job)
                    free_gpus.extend(job.gpus)
    finally:
        for job in active:
            job.end()
    return outcomes


def _end(ends: Iterable[Event], outcomes: list[Event], listen: Listener) -> None:
    for outcome in ends:
        outcomes.append(outcome)
        listen(outcome)


@dataclass
class _Rank:
    process: BaseProcess
    link: Connection
    finals: dict[int, tuple[str, Any]] = field(default_factory=dict)
    open: bool = True


@dataclass
class _Job:
    """The processes of one run, or the one process of several that train jointly."""

    runs: tuple[Run, ...]
    free_gpus: list[int]
    gpus: list[int] = field(default_factory=list)
    ranks: list[_Rank] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        size = self.runs[0].num_ranks
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
            process = _CONTEXT.Process(target=work, args=(self.runs, rank, environment, theirs))
            with _without_main():
                process.start()
            theirs.close()
            self.ranks.append(_Rank(process, ours))

    def waitables(self) -> list[Any]:
        """What becomes ready when a rank says something or ends."""
        links = [rank.link for rank in self.ranks if rank.open]
        return [*links, *(rank.process.sentinel for rank in self.ranks if rank.process.is_alive())]

    def is_over(self) -> bool:
        """Whether every run has ended, and every process."""
        alive = any(rank.process.is_alive() for rank in self.ranks)
        return len(self.told) == len(self.runs) and not alive

    def poll(self, listen: Listener) -> list[Event]:
        """Hand on what the ranks said; how runs ended since the last poll."""
        for rank in self.ranks:
            self._receive(rank, listen)
        ends = []
        for number in range(len(self.runs)):
            outcome = None if number in self.told else self._outcome(number)
            if outcome is not None:
                self.told.add(number)
                ends.append(outcome)
        return ends

    def _outcome(self, number: int) -> Event | None:
        """How a run ended, once it has."""
        run = self.runs[number]
        bad = [rank for rank in self.ranks if self._has_failed(rank, number)]
        if bad:
            if len(self.ranks) > 1:
                # The others wait for the one that did not train, and would do so for ever.
                self.end()
            told = [rank.finals[number] for rank in bad if number in rank.finals]
            kind, content = told[0] if told else ("failed", self._death(bad[0]))
            return Event(run, "finished" if kind == "found" else kind, content)
        if any(number not in rank.finals for rank in self.ranks):
            return None
        return Event(run, *self.ranks[0].finals[number])

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
                number, kind, content = rank.link.recv()
            except (EOFError, OSError):
                rank.open = False
                return
            if kind in ("finished", "found", "failed", "locked"):
                rank.finals[number] = (kind, content)
            else:
                listen(Event(self.runs[number], kind, content))

    def _has_failed(self, rank: _Rank, number: int) -> bool:
        if number in rank.finals:
            return rank.finals[number][0] != "finished"
        return not rank.process.is_alive() and not rank.open

    def _death(self, rank: _Rank) -> str:
        code = rank.process.exitcode
        size = self.runs[0].resolved.get("data", {}).get("batch_size")
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            of = "" if size is None else f", with batch size {size}"
            hint = f" Out of memory{of}?" if name == "SIGKILL" else ""
            return f"its process was ended by {name}.{hint}"
        return f"its process ended with exit code {code}; see {self.runs[0].folder / 'output.log'}."


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
