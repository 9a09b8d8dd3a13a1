"""Runs inside processes that torchrun or SLURM started, one after the other."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

from toolkit.run.folder import Run
from toolkit.run.lock import FolderInUseError, FolderLock
from toolkit.run.processes import Event

__all__ = ["LaunchedRunError", "is_launched", "run_here"]


class LaunchedRunError(RuntimeError):
    """A run failed on this rank, which has to end so that the launcher ends the others."""


def is_launched() -> bool:
    """Whether a launcher started this process as one of several; sets the usual variables.

    SLURM's are translated to torchrun's.
    """
    environ = os.environ
    if "SLURM_PROCID" in environ and int(environ.get("SLURM_NTASKS", "1")) > 1:
        from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

        slurm = SLURMEnvironment()
        environ.setdefault("MASTER_ADDR", slurm.main_address)
        environ.setdefault("MASTER_PORT", str(slurm.main_port))
        environ.setdefault("WORLD_SIZE", environ["SLURM_NTASKS"])
        environ.setdefault("RANK", environ["SLURM_PROCID"])
        environ.setdefault("LOCAL_RANK", environ["SLURM_LOCALID"])
    return "RANK" in environ and int(environ.get("WORLD_SIZE", "1")) > 1


def run_here(runs: Sequence[Run], listen: Callable[[Event], None]) -> list[Event]:
    """Train rank 0's list of runs on all launched processes together, one run at a time.

    Raises:
        LaunchedRunError: If a run fails on this rank; says why in one line.
    """
    # Torch and Lightning, which is_launched, asked before anything else, can do without.
    from toolkit import distributed
    from toolkit.run.training import explain, train

    outcomes: list[Event] = []
    for run in distributed.broadcast_object([_over_launched(run) for run in runs]):

        def tell(content: dict[str, object], run: Run = run) -> None:
            listen(Event(run, "progress", content))

        listen(Event(run, "started"))
        try:
            with _held(run) as outcome:
                outcome = outcome or Event(run, "finished", train(run, tell))
        except Exception as error:
            # The other ranks may wait for this one in a collective: only the launcher can end
            # them, which it does when this process fails.
            raise LaunchedRunError(f"{run.name} failed: {explain(error, run)}") from error
        listen(outcome)
        outcomes.append(outcome)
    return outcomes


@contextlib.contextmanager
def _held(run: Run) -> Iterator[Event | None]:
    """Hold the run's folder; how the run has ended for us on every rank, if it is not ours."""
    from toolkit import distributed

    with contextlib.ExitStack() as stack:
        found = None
        if distributed.is_main():
            try:
                stack.enter_context(FolderLock(run.folder))
                if run.is_finished():  # by another process, since the runs were listed
                    found = Event(run, "finished", run.result())
            except FolderInUseError as error:
                found = Event(run, "locked", str(error))
        yield distributed.broadcast_object(found)


def _over_launched(run: Run) -> Run:
    """The run with as many devices and nodes as the launcher started."""
    world = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("SLURM_NTASKS_PER_NODE", world)))
    trainer = {**run.resolved["trainer"], "devices": local, "num_nodes": world // local}
    return dataclasses.replace(run, resolved={**run.resolved, "trainer": trainer})
