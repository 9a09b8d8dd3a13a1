"""Writes to a terminal, a file or a pipe, whatever it can show and however long it is read."""

import contextlib
import io
import os
import sys

from rich.console import Console

__all__ = ["LastingConsole", "accept_any_text"]

_LOG_WIDTH = 160
"""Of a page where there is no terminal: a log is cut by whoever reads it."""


class LastingConsole(Console):
    """A console that falls silent when its reader goes away, as ``head`` does; the study goes on.

    Rich's own ends the process, and with it the runs under way. Where there is no terminal, the
    page is wide: a log is cut by whoever reads it.

    Args:
        quiet: Whether to show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        if not self.is_terminal:
            self.width = _LOG_WIDTH

    def on_broken_pipe(self) -> None:
        """Show nothing more."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no real file
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def accept_any_text() -> None:
    """Let this process write text that its terminal's encoding lacks: it shows question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
