"""Several metrics of a variant on the same axes, beside what a theory says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toolkit.report.canvas import Drawing, draw
from toolkit.report.curves import AXES, Band, band_of, log_axis
from toolkit.report.looks import INK, MUTED, SERIES, WIDTH
from toolkit.report.record import StudyRecord

__all__ = ["panels"]


def panels(record: StudyRecord) -> list[Drawing]:
    """A figure per entry of the recipe's ``report.panels`` and variant.

    ``{title: Loss, curves: {plus: val/loss/plus, ...}, theory: {plus: theory/loss/plus, ...}}``:
    ``curves`` are drawn with bands over seeds, ``theory``, which may be left out, dashed in the
    same colours. Dotted lines mark where the first two change places, by the theory if it is there.
    """
    return [
        drawing
        for number, panel in enumerate(record.settings.get("panels") or [])
        for name in record.runs
        if (drawing := _drawn(record, f"panel-{number}-{name}", panel, name)) is not None
    ]


def _drawn(record: StudyRecord, slug: str, panel: Mapping[str, Any], name: str) -> Drawing | None:
    axis, log_x = str(record.settings.get("x", "update")), bool(record.settings.get("log_x"))

    def bands(part: str) -> dict[str, Band]:
        keys = panel.get(part) or {}
        found = {
            label: band_of(record.runs[name], str(key), axis, log=log_x)
            for label, key in keys.items()
        }
        return {label: band for label, band in found.items() if band is not None}

    curves, theory = bands("curves"), bands("theory")
    if not curves:
        return None

    def plot(figure: Figure, axes: Axes) -> None:
        for color, (label, band) in zip(SERIES[1:], curves.items(), strict=False):
            axes.fill_between(
                band.x, band.mean - band.std, band.mean + band.std, color=color, alpha=0.2, lw=0
            )
            axes.plot(band.x, band.mean, color=color, label=label)
            if label in theory:
                said = theory[label]
                axes.plot(said.x, said.mean, color=INK, ls=(0, (3, 2)), lw=1.1, label=None)
        for x in _changes(list((theory or curves).values())):
            axes.axvline(x, color=MUTED, lw=1, ls=(0, (1, 2)))
        axes.set_title(f"{panel.get('title', '')}, {name}")
        axes.set_xlabel(AXES.get(axis, axis))
        axes.tick_params(axis="both", labelcolor=MUTED)
        if log_x:
            first = next(iter(curves.values()))
            log_axis(axes, float(first.x[0]), float(first.x[-1]))
        figure.legend(loc="outside lower center", ncols=len(curves))

    alt = f"{panel.get('title', 'Metrics')} of {name} over training: {', '.join(curves)}"
    return draw(slug, alt, (WIDTH, 2.7), plot)


def _changes(bands: Sequence[Band]) -> list[float]:
    """Where the first two curves change places, after they have first come apart."""
    if len(bands) < 2 or len(bands[0].x) != len(bands[1].x):
        return []
    gap = bands[0].mean - bands[1].mean
    apart = np.abs(gap) > 1e-3 * np.abs(gap).max()
    x, sign = bands[0].x[apart], np.sign(gap[apart])
    return [float(x[i + 1]) for i in range(len(sign) - 1) if sign[i] != sign[i + 1]]
