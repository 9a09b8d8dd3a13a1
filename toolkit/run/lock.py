"""A lock file that says who holds it, and that a dead process's lock does not hold."""

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

__all__ = ["FolderInUseError", "FolderLock"]

_BEAT_SECONDS = 10.0
_STALE_SECONDS = 60.0


class FolderInUseError(RuntimeError):
    """Somebody else, who is alive, holds the lock."""


class FolderLock:
    """Holds ``folder/.lock`` while a run is written, so that nobody else runs it too.

    The file names host, process and start of the process, and its time of change is renewed every
    10 s. A lock of this host is dead if that process is gone; a lock of another host, as on a
    shared file system, is dead if it was not renewed for 60 s by the file server's own clock; so
    is one without its content, as a machine that lost power leaves it.

    Args:
        folder: The folder to hold; made if absent.

    Raises:
        FolderInUseError: On entry, if a living process holds the lock.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / ".lock"
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()

    def __enter__(self) -> "FolderLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create():
            owner = _owner(self.path)
            if owner is None:  # released between two looks
                time.sleep(0.01)
                continue
            if _alive(owner, self.path):
                raise FolderInUseError(
                    f"{self.path.parent} is being written by process {owner['pid']} on "
                    f"{owner['host']}. Wait for it, or choose another --out."
                )
            self._remove_dead(owner)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        owner = _owner(self.path)
        if owner is not None and owner["token"] == self._token:
            self.path.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Make the lock with its content in one step: a link fails if the name is taken."""
        mine = self.path.with_name(f".lock.{self._token}")
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}
        mine.write_text(json.dumps({**owner, "start": _start_of(os.getpid())}), encoding="utf-8")
        try:
            os.link(mine, self.path)
        except FileExistsError:
            return False
        finally:
            mine.unlink(missing_ok=True)
        return True

    def _remove_dead(self, owner: dict[str, object]) -> None:
        """Take a dead lock away, and never one that replaced it in the meantime.

        Renaming is atomic, so one of several contenders gets the file; if what it got is not the
        dead lock it saw, it puts it back.
        """
        grave = self.path.with_name(f".lock.dead.{self._token}")
        try:
            os.rename(self.path, grave)
        except FileNotFoundError:
            return
        taken = _owner(grave)
        if taken is not None and taken["token"] != owner["token"]:
            os.link(grave, self.path)
        grave.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            try:
                os.utime(self.path)
            except OSError:
                return


def _owner(path: Path) -> dict[str, object] | None:
    try:
        owner: dict[str, object] = json.loads(path.read_bytes())
        return {key: owner[key] for key in ("host", "pid", "start", "token")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return {"host": "an unknown host", "pid": 0, "start": "", "token": ""}


def _alive(owner: dict[str, object], path: Path) -> bool:
    if owner["host"] == socket.gethostname():
        start = _start_of(int(str(owner["pid"])))
        return start is not None and start == owner["start"]
    return _file_age(path) < _STALE_SECONDS


def _file_age(path: Path) -> float:
    """Seconds since the file changed, by the clock of the file system that holds it."""
    probe = path.with_name(f".clock.{uuid.uuid4().hex}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    finally:
        probe.unlink(missing_ok=True)


def _start_of(pid: int) -> str | None:
    """When a process of this host began, to tell it from a later one of the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # no /proc: the number alone has to do
        return "unknown"
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
