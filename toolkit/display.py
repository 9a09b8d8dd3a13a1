"""Shows a study under way: bars over runs and epochs on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from toolkit.run import Event

__all__ = ["Display"]


class Display:
    """Hears the events of a study's runs and shows them.

    Args:
        num_runs: How many runs there are to do.
        console: Where to show it.
    """

    def __init__(self, num_runs: int, console: Console) -> None:
        self.console = console
        self.num_runs = num_runs
        self.done = 0
        self._began = time.monotonic()
        self._warned: set[str] = set()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("runs", total=num_runs, note="")
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        show = {
            "started": self._started,
            "progress": self._progress,
            "warning": self._warning,
        }.get(event.kind, self._ended)
        show(event)

    def _started(self, event: Event) -> None:
        self._tasks[event.run.name] = self._bars.add_task(event.run.name, total=None, note="")

    def _progress(self, event: Event) -> None:
        told = event.content
        note = "" if told["loss"] is None else f"loss {told['loss']:.3g}"
        if told["stage"] != "training":
            note = f"{told['stage']} {note}"
        if event.run.name not in self._tasks:  # one of several in a process
            self._started(event)
        task = self._tasks[event.run.name]
        self._bars.update(task, completed=told["epoch"], total=told["epochs"], note=note)

    def _warning(self, event: Event) -> None:
        text = str(event.content)
        if text not in self._warned:
            self._warned.add(text)
            self._line(f"warning ({event.run.name}): {text}")

    def _ended(self, event: Event) -> None:
        self.done += 1
        task = self._tasks.pop(event.run.name, None)
        if task is not None:
            self._bars.remove_task(task)
        self._bars.update(self._all, completed=self.done)
        if event.kind != "finished":
            word = "in use" if event.kind == "locked" else event.kind
            self._line(f"{event.run.name} {word}: {event.content}")
        elif not self.console.is_terminal:
            seconds = time.monotonic() - self._began
            self._line(
                f"[{self.done}/{self.num_runs}] {event.run.name} finished "
                f"({event.content['seconds']:.1f} s; {seconds:.0f} s in all)"
            )

    def _line(self, text: str) -> None:
        # Not wrapped: a log is read by programs too.
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
