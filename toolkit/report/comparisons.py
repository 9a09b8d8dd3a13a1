"""Figures of results: paired differences with their intervals, and every seed's value."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from toolkit.report.canvas import Drawing, draw
from toolkit.report.looks import INK, MUTED, PAPER, SERIES, WIDTH, Look, panels_of
from toolkit.report.record import StudyRecord
from toolkit.report.words import in_unit, metric_words, number, unit

__all__ = ["differences", "seed_values"]

_PAIRED = ("difference", "control", "step", "slope")
_BETTER, _WORSE, _NEUTRAL = SERIES[3], SERIES[1], SERIES[0]
_GAP, _LINE, _ROW = 0.14, 0.16, 0.38  # inches
_SMALL = 0.1  # below it two decimals say too little


def differences(record: StudyRecord) -> list[Drawing]:
    """For each metric that claims compare variants in: differences, one block per claim."""
    by_metric: dict[str, list[dict[str, Any]]] = {}
    for claim in record.study["claims"]:
        estimates = claim["evidence"].get("estimates", [])
        if any(estimate["role"] in _PAIRED for estimate in estimates):
            by_metric.setdefault(claim["evidence"]["metric"], []).append(claim)
    return [
        _forest(f"differences-{i}", metric, claims)
        for i, (metric, claims) in enumerate(by_metric.items())
    ]


def seed_values(record: StudyRecord, metric: str, looks: Mapping[str, Look]) -> Drawing:
    """Every seed's value of a metric, by variant, with mean and standard deviation."""
    scale = in_unit(metric)
    panels = panels_of(looks)
    variants = [name for names in panels.values() for name in names]

    def plot(figure: Figure, axes: Axes) -> None:
        for row, name in enumerate(variants):
            moments = record.study["variants"][name]["metrics"].get(metric)
            if moments is not None and moments["mean"] is not None:
                _strip(axes, row, moments, scale, looks[name])
        for names in panels.values():
            _plain_line(axes, record, metric, [variants.index(name) for name in names], variants)
        axes.set_yticks(range(len(variants)), [_short(name, 26) for name in variants])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(variants) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(metric_words(metric) + unit(metric))

    alt = f"{metric_words(metric)} of every seed by variant"
    return draw("seeds", alt, (WIDTH, 0.75 + 0.33 * len(variants)), plot)


def _strip(axes: Axes, row: int, moments: Mapping[str, Any], scale: float, look: Look) -> None:
    values = [scale * value for value in moments["values"] if value is not None]
    mean = scale * moments["mean"]
    if moments["std"] is not None:
        spread = scale * moments["std"]
        axes.plot([mean - spread, mean + spread], [row, row], color=look.color, lw=1.4, zorder=2)
    axes.scatter(
        values, [row] * len(values), s=26, marker=look.marker, color=look.color,
        alpha=0.45, linewidths=0, zorder=3,
    )  # fmt: skip
    axes.plot([mean], [row], marker="|", ms=13, mew=2.2, color=look.color, zorder=4)


def _plain_line(
    axes: Axes, record: StudyRecord, metric: str, rows: Sequence[int], variants: Sequence[str]
) -> None:
    """A vertical line through a panel at the mean of its first variant, to compare with."""
    moments = record.study["variants"][variants[rows[0]]]["metrics"].get(metric)
    if moments is not None and moments["mean"] is not None and len(rows) > 1:
        level = in_unit(metric) * moments["mean"]
        axes.plot(
            [level, level], [rows[0], rows[-1] + 0.4], color=MUTED, lw=0.8, ls=(0, (2, 2)), zorder=1
        )


def _forest(name: str, metric: str, claims: Sequence[Mapping[str, Any]]) -> Drawing:
    scale = in_unit(metric)
    blocks = [
        (_title_lines(claim), claim["evidence"].get("expect", ""), estimates)
        for claim in claims
        if (estimates := [e for e in claim["evidence"]["estimates"] if e["role"] in _PAIRED])
    ]
    height = sum(_GAP + _LINE * len(lines) + _ROW * len(rows) for lines, _, rows in blocks)

    def plot(figure: Figure, axes: Axes) -> None:
        place = 0.0
        for lines, expect, estimates in blocks:
            place += _GAP
            for line in lines:
                _words(axes, 0.0, place, line, weight="bold", color=INK)
                place += _LINE
            for estimate in estimates:
                _interval(axes, place, estimate, scale, expect)
                place += _ROW
        axes.axvline(0, color=MUTED, lw=1, zorder=1)
        axes.set_ylim(height + 0.05, 0)
        axes.set_yticks([])
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        points = " (points)" if scale > 1 else ""
        axes.set_xlabel(f"Difference in {metric_words(metric).lower()}{points}")

    alt = f"Paired differences in {metric_words(metric).lower()} with 95 % intervals"
    return draw(name, alt, (WIDTH, height + 0.55), plot)


def _title_lines(claim: Mapping[str, Any]) -> list[str]:
    text = claim["text"] or claim["name"]
    return textwrap.wrap(text, 46, max_lines=2, placeholder="\u2026")


def _words(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Text at a share of the width, over the grid, that leaves the layout alone."""
    back = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
    text_artist = axes.text(
        x, y, text, transform=axes.get_yaxis_transform(), va="center", bbox=back, zorder=5, **look
    )
    text_artist.set_in_layout(False)


def _interval(
    axes: Axes, top: float, estimate: Mapping[str, Any], scale: float, expect: str
) -> None:
    """One difference: its name and numbers in words, below them dots, interval and mean."""
    low, high = estimate["low"], estimate["high"]
    color = _side_color(low, high, expect)
    mean = scale * estimate["mean"]
    ends = [] if low is None else [scale * low, scale * high]
    digits = 2 if max(map(abs, [mean, *ends])) >= _SMALL else None
    words = number(mean, digits)
    if ends:
        words += f"  [{number(ends[0], digits)}, {number(ends[1], digits)}]"
    label = estimate["label"].replace(" - ", " \u2212 ")
    role = "  (control)" if estimate["role"] == "control" else ""
    _words(axes, 0.0, top + 0.05, _short(label, 44) + role, size=7.5, color=MUTED)
    _words(axes, 1.0, top + 0.05, words, size=7.5, color=MUTED, ha="right")
    line = top + 0.22
    values = [scale * value for value in estimate["values"]]
    axes.scatter(values, [line] * len(values), s=14, color=color, alpha=0.3, linewidths=0)
    if low is not None:
        axes.plot([scale * low, scale * high], [line, line], color=color, lw=2.2, zorder=3)
    axes.plot([mean], [line], marker="o", ms=5.5, color=color, mec=PAPER, mew=1, zorder=4)


def _side_color(low: float | None, high: float | None, expect: str) -> str:
    """Whether an interval lies on the expected side of 0, on the other, or straddles it."""
    if low is None or high is None or low <= 0 <= high:
        return _NEUTRAL
    return _BETTER if (low > 0) == (expect in ("higher", "increasing")) else _WORSE


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\u2026"
