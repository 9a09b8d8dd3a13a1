"""One training of (recipe, variant, seed), in its own folder and its own process."""

from toolkit.run.folder import Run, environment
from toolkit.run.lock import FolderInUseError, FolderLock
from toolkit.run.processes import Event, prepare, run_all

__all__ = ["Event", "FolderInUseError", "FolderLock", "Run", "environment", "prepare", "run_all"]
