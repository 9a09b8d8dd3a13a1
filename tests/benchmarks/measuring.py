"""What the benchmarks share: a stopwatch, turns, ratios, the table, the line on the machine.

Two sides take turns, as short as can be, so that what else runs on the machine hits both alike. A
ratio is the median over repetitions of the ratio of CPU times of one thread, which other processes
disturb least; next to it stand the lowest and the highest, and the median ratio of wall times.
"""

import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = [
    "Row",
    "Seconds",
    "Stopwatch",
    "alternate",
    "compare",
    "machine",
    "one_thread",
    "quiet",
    "table",
]


@dataclass(frozen=True)
class Seconds:
    """Duration of one repetition: CPU seconds of all threads of this process, and wall seconds."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Row:
    """A line of the table, as text."""

    name: str
    ours: str
    baseline: str
    ratio: str
    spread: str
    wall: str
    target: str
    met: bool


class Stopwatch:
    """Adds up the time between ``start`` and ``stop``, or within ``with`` blocks."""

    def __init__(self) -> None:
        self._cpu = self._wall = 0.0

    def start(self) -> None:
        """Go on."""
        self._cpu -= time.process_time()
        self._wall -= time.perf_counter()

    def stop(self) -> None:
        """Pause."""
        self._cpu += time.process_time()
        self._wall += time.perf_counter()

    def lap(self) -> Seconds:
        """What has been added up since the last lap; only while it is stopped."""
        taken = Seconds(self._cpu, self._wall)
        self._cpu = self._wall = 0.0
        return taken

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def alternate(
    sides: Sequence[Callable[[], Seconds | None]], repetitions: int
) -> list[list[Seconds]]:
    """Run the sides in turn, once to warm up and then ``repetitions`` times.

    Args:
        sides: Each does one repetition; one that returns seconds has timed the part that counts.
        repetitions: How many are kept.

    Returns:
        The durations of each side.
    """
    taken: list[list[Seconds]] = [[] for _ in sides]
    for repetition in range(repetitions + 1):
        for side, kept in zip(sides, taken, strict=True):
            watch = Stopwatch()
            with watch:
                own = side()
            if repetition:
                kept.append(own or watch.lap())
    return taken


def compare(
    name: str, ours: Sequence[Seconds], baseline: Sequence[Seconds], at_most: float, per: int = 1
) -> Row:
    """The ratio of two sides whose repetitions took turns.

    Args:
        name: What is compared.
        ours: One per repetition.
        baseline: Likewise.
        at_most: The target.
        per: Steps of a repetition; the two times in the row are of one step.
    """
    pairs = list(zip(ours, baseline, strict=True))
    ratios = [one.cpu / other.cpu for one, other in pairs]
    ratio = statistics.median(ratios)
    return Row(
        name=name,
        ours=f"{1000 * statistics.median(one.cpu for one in ours) / per:,.1f} ms",
        baseline=f"{1000 * statistics.median(one.cpu for one in baseline) / per:,.1f} ms",
        ratio=f"{ratio:.3f}",
        spread=f"{min(ratios):.3f} to {max(ratios):.3f} ({len(pairs)})",
        wall=f"{statistics.median(one.wall / other.wall for one, other in pairs):.3f}",
        target=f"<= {at_most}",
        met=ratio <= at_most,
    )


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| what | ours | baseline | ratio | lowest to highest (count) | wall | target | met |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = (row.name, row.ours, row.baseline, row.ratio, row.spread, row.wall, row.target)
        lines.append(f"| {' | '.join(cells)} | {'yes' if row.met else 'no'} |")
    return "\n".join(lines)


def machine() -> str:
    """Processor, cores, load and versions in one line."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread"
    )


def one_thread() -> None:
    """Compute with one thread, as runs side by side do; CPU time is then the time of the work."""
    torch.set_num_threads(1)


def quiet() -> None:
    """Keep Lightning's announcements out of the output."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
