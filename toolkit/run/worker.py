"""One rank of a run, or several runs together, in a process of its own that tells its parent."""

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TextIO

from toolkit.run.crews import trains_jointly
from toolkit.run.folder import Run

__all__ = ["work"]


def work(runs: Sequence[Run], rank: int, environment: Mapping[str, str], link: Connection) -> None:
    """Train a run as one of its ranks, or several runs as one program, and end.

    Args:
        runs: What to train; several if their models train jointly.
        rank: This process's rank among those of the run.
        environment: Variables to set before anything looks at them.
        link: The parent's end gets for each event the number of the run, the kind and the
            content; when it closes, this process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(link,), daemon=True).start()
    os.environ.update(environment)
    suffix = f".rank{rank}" if rank else ""
    folder = runs[0].folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"output{suffix}.log").open("a", encoding="utf-8") as log:
            _redirect(log)
    except OSError as error:
        for number in range(len(runs)):
            text = f"{folder} must be a folder to write in, got {error}."
            link.send((number, "failed", text))
    else:
        _train(runs, rank, link)
        with contextlib.suppress(OSError):  # of a full disk
            sys.stdout.flush()
    link.close()


def _train(runs: Sequence[Run], rank: int, link: Connection) -> None:
    def send(run: Run, kind: str, content: Any = None) -> None:
        with contextlib.suppress(BrokenPipeError):
            link.send((runs.index(run), kind, content))

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        send(runs[0], "warning", str(message))

    if rank == 0:
        warnings.showwarning = show
    if trains_jointly(runs[0]):
        from toolkit.run.joint import train_together

        try:
            train_together(runs, send)
        except BaseException:  # the parent sees that this process ended, and the log says why
            with contextlib.suppress(OSError):
                traceback.print_exc()
            raise
    else:
        _train_one(runs[0], rank, send)


def _train_one(run: Run, rank: int, send: Callable[[Run, str, Any], None]) -> None:
    from toolkit.run.lock import FolderInUseError, FolderLock
    from toolkit.run.training import explain, train

    try:
        with FolderLock(run.folder) if rank == 0 else contextlib.nullcontext():
            if rank == 0 and run.is_finished():  # by another process, since the runs were listed
                send(run, "found", run.result())
            else:
                send(run, "finished", train(run, lambda event: send(run, "progress", event)))
    except FolderInUseError as error:
        result = run.result() if run.is_finished() else None  # by whoever is about to leave it
        send(run, *(("locked", str(error)) if result is None else ("found", result)))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent has to know
        send(run, "failed", explain(error, run))
        with contextlib.suppress(OSError):  # of a full disk
            traceback.print_exc()


def _end_with_parent(link: Connection) -> None:
    """Wait for the parent's end of the pipe to close, which it does when the parent dies."""
    with contextlib.suppress(EOFError, OSError):
        link.recv()
    os._exit(1)


def _redirect(log: TextIO) -> None:
    """Send what libraries print, from Python or below it, to the run's own log."""
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
