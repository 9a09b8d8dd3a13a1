"""Figures over training: means of variants with bands over seeds, and groups of each variant."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from toolkit.report.canvas import Drawing, draw
from toolkit.report.looks import INK, MUTED, PAPER, SERIES, WIDTH, Look, panels_of
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.words import in_unit, metric_words, unit

__all__ = ["curve_metrics", "curves", "group_curves", "group_keys", "margin_metrics"]

_POINTS = 120
_AXES = {"update": "Updates", "epoch": "Epochs", "examples_seen": "Examples seen"}


@dataclass(frozen=True)
class _Band:
    """Mean and standard deviation over seeds along an axis."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def curve_metrics(record: StudyRecord) -> list[str]:
    """What to draw over training, as far as the histories have it.

    The recipe's ``report.curves``, else training loss and the validation twin of the study's
    metric.
    """
    keys = record.history_keys()
    wanted = record.settings.get("curves")
    if wanted is None:
        twin = re.sub(r"^test/", "val/", record.metric or "")
        wanted = ["train/loss", twin if twin in keys else "val/loss"]
    return [key for key in dict.fromkeys(map(str, wanted)) if key in keys]


def margin_metrics(record: StudyRecord) -> list[str]:
    """Margins to draw: smallest and median on the training set, normalised, on validation."""
    keys = record.history_keys()
    wanted = ("train/margin/min", "train/margin/median", "train/normalized_margin/median",
              "val/margin/median")  # fmt: skip
    found = [key for key in wanted if key in keys]
    return found or [key for key in keys if re.match(r"(train|val)/margin/[^/]+$", key)][:2]


def curves(record: StudyRecord, metric: str, looks: Mapping[str, Look]) -> list[Drawing]:
    """A metric over training: one panel per group of looks, all on the same axes.

    With the recipe's ``report.log_x`` the axis of updates is logarithmic, without update 0.
    """
    axis = str(record.settings.get("x", "update"))
    log_x = bool(record.settings.get("log_x", False))
    bands = {name: _band(record.runs[name], metric, axis, log=log_x) for name in looks}
    known = {name: band for name, band in bands.items() if band is not None}
    if not known:
        return []
    scale = in_unit(metric)
    low, high, log = _limits(known.values(), scale)
    right = max(float(band.x[-1]) for band in known.values())
    left = min(float(band.x[0]) for band in known.values())

    def panel(title: str, names: Sequence[str]) -> Drawing:
        def plot(figure: Figure, axes: Axes) -> None:
            for name in names:
                if name in known:
                    _draw_band(axes, known[name], scale, looks[name], name, log=log)
            axes.set_title(
                f"{metric_words(metric)}{unit(metric)}" + (f", {title}" if title else "")
            )
            _finish(axes, (low, high), right, _AXES.get(axis, axis), log=log)
            if log_x:
                axes.set_xscale("log")
                axes.set_xlim(left, right)
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
            columns = 2 if max(map(len, names)) < 24 else 1
            figure.legend(loc="outside lower center", ncols=columns)

        rows = math.ceil(len(names) / 2)
        alt = f"{metric_words(metric)} over training: {', '.join(names)}"
        slug = "-".join(re.findall(r"\w+", f"{metric} {title}"))
        return draw(f"curve-{slug}", alt, (WIDTH, 2.55 + 0.17 * rows), plot)

    return [
        panel(title, names)
        for title, names in panels_of(looks).items()
        if not known.keys().isdisjoint(names)
    ]


def group_keys(keys: Iterable[str], split: str) -> list[str]:
    """Keys of accuracies per group, or per class where there are no groups."""
    keys = list(keys)
    for family in ("group_acc", "class_acc"):
        found = [key for key in keys if key.startswith(f"{split}/{family}/")]
        if found:
            return found
    return []


def group_curves(record: StudyRecord, looks: Mapping[str, Look]) -> list[Drawing]:
    """Validation accuracy of every group over training, a panel per variant, the worst named."""
    keys = group_keys(record.history_keys(), "val")
    axis = str(record.settings.get("x", "update"))
    panels = {
        name: {
            key: band for key in keys if (band := _band(record.runs[name], key, axis)) is not None
        }
        for name in looks
    }
    known = [band for bands in panels.values() for band in bands.values()]
    if not known:
        return []
    # What happens late is what tells groups apart; the first epochs may start below the axis.
    low = max(0.0, min(float(band.mean[len(band.mean) // 3 :].min()) for band in known) - 0.02)
    right = max(float(band.x[-1]) for band in known)

    def panel(number: int, name: str, bands: Mapping[str, _Band]) -> Drawing:
        worst = min(bands, key=lambda key: float(bands[key].mean[-1]))

        def plot(figure: Figure, axes: Axes) -> None:
            for key, band in bands.items():
                color, width = (SERIES[1], 1.8) if key == worst else (SERIES[0], 0.8)
                alpha = 1.0 if key == worst else 0.55
                axes.plot(band.x, 100 * band.mean, color=color, lw=width, alpha=alpha)
            axis_of = bands[worst].x
            rows = [np.interp(axis_of, band.x, band.mean) for band in bands.values()]
            axes.plot(axis_of, 100 * np.mean(rows, axis=0), color=INK, lw=1.6, ls=(0, (4, 1.5)))
            axes.set_title(name if len(name) < 30 else name[:29] + "\u2026")
            _finish(axes, (100 * low, 100.0), right, _AXES.get(axis, axis), log=False)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
            label = f"worst at the end: {worst.split('/', 2)[2]}"
            axes.text(
                0.98, 0.06, label, transform=axes.transAxes, ha="right", color=SERIES[1],
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.8},
            )  # fmt: skip

        alt = f"Validation accuracy of every group over training, {name}"
        return draw(f"groups-{number}", alt, (2.4, 1.8), plot)

    return [panel(i, name, bands) for i, (name, bands) in enumerate(panels.items()) if bands]


def _band(runs: Sequence[RunRecord], key: str, axis: str, *, log: bool = False) -> _Band | None:
    """Seeds brought to one axis by linear interpolation, over the range that all of them cover."""
    series = [found for run in runs if len(found := run.series(key, axis))]
    if log:
        series = [shown for found in series if len(shown := found[found[:, 0] > 0])]
    if not series:
        return None
    first = max(found[0, 0] for found in series)
    last = min(found[-1, 0] for found in series)
    longest = max(series, key=len)[:, 0]
    if all(np.array_equal(found[:, 0], longest) for found in series):
        x = longest if len(longest) <= 4 * _POINTS else np.linspace(first, last, 4 * _POINTS)
    else:
        x = np.linspace(first, max(first, last), min(_POINTS, len(longest)))
    values = np.stack([np.interp(x, found[:, 0], found[:, 1]) for found in series])
    std = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(x)
    return _Band(x, values.mean(axis=0), std)


def _draw_band(axes: Axes, band: _Band, scale: float, look: Look, label: str, *, log: bool) -> None:
    low, high = scale * (band.mean - band.std), scale * (band.mean + band.std)
    if log:  # a band that reaches 0 has no lower end on a logarithmic axis
        low = np.maximum(low, scale * band.mean / 10)
    axes.fill_between(band.x, low, high, color=look.color, alpha=0.16, linewidth=0)
    mark = "o" if len(band.x) == 1 else None
    axes.plot(band.x, scale * band.mean, color=look.color, ls=look.dash, label=label, marker=mark)


def _limits(bands: Iterable[_Band], scale: float) -> tuple[float, float, bool]:
    """Limits that all panels share, and whether the axis should be logarithmic."""
    means = scale * np.concatenate([band.mean for band in bands])
    low, high = float(means.min()), float(means.max())
    if low > 0 and high / low > 15:
        return low / 1.3, high * 1.2, True
    pad = 0.06 * (high - low) or 0.05 * (abs(high) or 1.0)
    return (max(0.0, low - pad) if low >= 0 else low - pad), high + pad, False


def _finish(
    axes: Axes, limits: tuple[float, float], right: float, label: str, *, log: bool
) -> None:
    if log:
        axes.set_yscale("log")
        if limits[1] < 200 * limits[0]:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(*limits)
    axes.set_xlim(0, right or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel(label)
    axes.tick_params(axis="both", labelcolor=MUTED)
