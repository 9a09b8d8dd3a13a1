"""One rank of one run, in a process of its own, and what it tells its parent."""

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, TextIO

from toolkit.run.folder import Run

__all__ = ["work"]


def work(run: Run, rank: int, environment: Mapping[str, str], link: Connection) -> None:
    """Train a run as one of its ranks, and end.

    Args:
        run: What to train.
        rank: This process's rank among those of the run.
        environment: Variables to set before anything looks at them.
        link: The parent's end gets pairs of a kind of event and its content; when it closes, this
            process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(link,), daemon=True).start()
    os.environ.update(environment)
    suffix = f".rank{rank}" if rank else ""
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / f"output{suffix}.log").open("a", encoding="utf-8") as log:
            _redirect(log)
    except OSError as error:
        link.send(("failed", f"{run.folder} must be a folder to write in, got {error}."))
    else:
        _train(run, rank, link)
        with contextlib.suppress(OSError):  # of a full disk
            sys.stdout.flush()
    link.close()


def _train(run: Run, rank: int, link: Connection) -> None:
    from toolkit.run.lock import FolderInUseError, FolderLock
    from toolkit.run.training import explain, train

    def send(kind: str, content: Any = None) -> None:
        with contextlib.suppress(BrokenPipeError):
            link.send((kind, content))

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        send("warning", str(message))

    if rank == 0:
        warnings.showwarning = show
    try:
        with FolderLock(run.folder) if rank == 0 else contextlib.nullcontext():
            if rank == 0 and run.is_finished():  # by another process, since the runs were listed
                send("found", run.result())
            else:
                send("finished", train(run, lambda event: send("progress", event)))
    except FolderInUseError as error:
        result = run.result() if run.is_finished() else None  # by whoever is about to leave it
        send(*(("locked", str(error)) if result is None else ("found", result)))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent has to know
        send("failed", explain(error, run))
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
