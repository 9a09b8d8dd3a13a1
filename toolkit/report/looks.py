"""Colours and panels of variants, and the look of a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "GRID",
    "INK",
    "MUTED",
    "PAPER",
    "RC",
    "SERIES",
    "THEME",
    "WIDTH",
    "Look",
    "looks_of",
    "panels_of",
]

INK, MUTED, GRID, PAPER = "#1d2730", "#66727d", "#dfe4e8", "#ffffff"
# Neutral, then the palette of Okabe and Ito (2008), told apart with any colour vision.
SERIES = ("#56616c", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH = 3.6
"""Inches of a figure that takes one column of the page."""

_MARKERS = ("o", "s", "D", "^")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))

# In the page these colours become variables, so that it can follow a dark theme.
THEME: Mapping[str, str] = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--rule)",
    PAPER: "var(--card)",
    **{color: f"var(--series-{i})" for i, color in enumerate(SERIES)},
}

RC: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with $ is a name
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@dataclass(frozen=True)
class Look:
    """How a variant is drawn, the same in every figure."""

    panel: str
    color: str
    dash: Any
    marker: str


def looks_of(variants: Sequence[str]) -> dict[str, Look]:
    """A look per variant.

    Names that form a grid, such as ``sgd``, ``sgd_useful``, ``sam``, ``sam_useful``, get a panel
    per first word and a colour per remaining words, the plain ones neutral. Others share one
    panel, colours and then dashes in order.

    Example:
        >>> looks = looks_of(["sgd", "sgd_useful", "sam", "sam_useful"])
        >>> looks["sam_useful"].panel, looks["sam_useful"].color == looks["sgd_useful"].color
        ('sam', True)
    """
    parts = {name: name.partition("_")[::2] for name in variants}
    heads = list(dict.fromkeys(head for head, _ in parts.values()))
    sizes = [sum(head == other for other, _ in parts.values()) for head in heads]
    tails = list(dict.fromkeys(["", *(tail for _, tail in parts.values())]))
    if 2 <= len(heads) <= len(_MARKERS) and min(sizes) >= 2 and len(tails) <= len(SERIES):
        return {
            name: Look(head, SERIES[tails.index(tail)], "-", _MARKERS[heads.index(head)])
            for name, (head, tail) in parts.items()
        }
    return {
        name: Look(
            "",
            SERIES[i % len(SERIES)],
            _DASHES[i // len(SERIES) % len(_DASHES)],
            _MARKERS[i // len(SERIES) % len(_MARKERS)],
        )
        for i, name in enumerate(variants)
    }


def panels_of(looks: Mapping[str, Look]) -> dict[str, list[str]]:
    """``{panel: variants}``, in order."""
    panels: dict[str, list[str]] = {}
    for name, look in looks.items():
        panels.setdefault(look.panel, []).append(name)
    return panels
