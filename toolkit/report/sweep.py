"""Figures of results along a setting that the variants sweep."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toolkit.report.canvas import Drawing, draw
from toolkit.report.looks import INK, MUTED, SERIES, WIDTH
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.words import in_unit, metric_words, unit

__all__ = ["line_words", "sweeps"]


def sweeps(record: StudyRecord) -> list[Drawing]:
    """A figure per metric of the recipe's ``report.sweep``, against the setting it names.

    ``sweep: {over: model.rho, metrics: [test/acc], line: theory/stall_radius}``: ``over`` is a
    dotted key of the runs' recipes, ``null`` there counts as 0; ``line``, which may be left out, a
    metric in the setting's unit, drawn as a vertical line at its mean and a band over all seeds.
    ``by``, which may be left out too, is a second setting: one line for each of its values.
    """
    settings = record.settings.get("sweep") or {}
    places = {
        name: place
        for name, runs in record.runs.items()
        if runs and (place := _setting(runs[0], str(settings.get("over", "")))) is not None
    }
    if len(set(places.values())) < 2:
        return []
    return [
        _drawn(record, str(metric), str(settings["over"]), places, settings.get("line"))
        for metric in settings.get("metrics", [])
        if str(metric) in record.metrics()
    ]


def line_words(record: StudyRecord) -> str:
    """What the vertical line of the sweep is; empty if there is none."""
    line = (record.settings.get("sweep") or {}).get("line")
    if not line:
        return ""
    return f" Vertical: {metric_words(str(line)).lower()}, mean and range over seeds."


def _setting(run: RunRecord, key: str) -> float | None:
    value: Any = run.recipe
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part, "null")
    try:
        return 0.0 if value in ("null", "~", "") else float(value)
    except (TypeError, ValueError):
        return None


def _values(record: StudyRecord, name: str, metric: str) -> list[float]:
    moments = record.study["variants"][name]["metrics"].get(metric)
    return [value for value in moments["values"] if value is not None] if moments else []


def _drawn(
    record: StudyRecord, metric: str, over: str, places: Mapping[str, float], line: str | None
) -> Drawing:
    scale = in_unit(metric)
    by = (record.settings.get("sweep") or {}).get("by")
    groups: dict[str, list[str]] = {}
    for name in places:
        value = None if by is None else _setting(record.runs[name][0], str(by))
        groups.setdefault("" if value is None else f"{by} {value:g}", []).append(name)

    def plot(figure: Figure, axes: Axes) -> None:
        for i, (label, names) in enumerate(groups.items()):
            color = SERIES[i % len(SERIES)]
            means = []
            for name in sorted(names, key=places.__getitem__):
                values = [scale * value for value in _values(record, name, metric)]
                where = [places[name]] * len(values)
                axes.scatter(where, values, s=16, color=color, alpha=0.35, lw=0)
                if values:
                    means.append((places[name], float(np.mean(values))))
            if means:
                axes.plot(*zip(*means, strict=True), color=color, marker="o", ms=4, label=label)
        if len(groups) > 1:
            figure.legend(loc="outside lower center", ncols=min(4, len(groups)))
        known = [value for name in places for value in _values(record, name, line or "")]
        if known:
            axes.axvspan(min(known), max(known), color=SERIES[1], alpha=0.12, lw=0)
            axes.axvline(float(np.mean(known)), color=SERIES[1], ls=(0, (4, 2)))
        axes.set_title(metric_words(metric) + unit(metric))
        axes.set_xlabel(over, color=INK)
        axes.tick_params(axis="both", labelcolor=MUTED)

    slug = "-".join(re.findall(r"\w+", metric))
    return draw(f"sweep-{slug}", f"{metric_words(metric)} against {over}", (WIDTH, 2.6), plot)
