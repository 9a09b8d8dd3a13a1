"""How slow and fast examples were learnt: scores by variant, histograms, pictures."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from toolkit.report.canvas import Drawing, draw
from toolkit.report.looks import INK, SERIES, WIDTH
from toolkit.report.markup import Html, tag
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.tables import table
from toolkit.report.upsampled import side_by_side
from toolkit.report.words import number

__all__ = ["clusters_of", "histograms", "note", "score_tables", "sheets"]

_NOTE = (
    "How often an example was right in one epoch and wrong in the next; the first epoch in which "
    "it was right; the epoch from which on it was never wrong (if there is none, the number of "
    "epochs plus 1). As trained, an example that came several times in an epoch at its last visit; "
    "mean \u00b1 standard deviation over seeds. Slow and fast are the separation stage's clusters."
)
_SCORES = {
    "forgetting_score": ("Forgetting score", "Times forgotten"),
    "first_learned": ("First learnt", "First learnt"),
    "learned_for_good": ("Learnt for good", "Learnt for good"),
}
_SIDES = {"fast": 0, "slow": 1}
_COLORS = {"fast": SERIES[0], "slow": SERIES[1], "all": SERIES[2]}
_BINS = 12
_SHOWN = 20


def clusters_of(record: StudyRecord, run: RunRecord) -> tuple[NDArray[Any] | None, str | None]:
    """Per example 0 (fast), 1 (slow) or -1, and the variant in which they were found.

    They are the run's own, else those of the first variant that has some at the same seed, over
    examples of the same classes in the same order; ``(None, None)`` without any.
    """
    others = [other for other in record if other.seed == run.seed and other is not run]
    for candidate in (run, *others):
        found = candidate.examples
        if (
            found is not None
            and run.examples is not None
            and (found["cluster"] >= 0).any()
            and np.array_equal(found["targets"], run.examples["targets"])
        ):
            return found["cluster"], candidate.variant
    return None, None


def score_tables(record: StudyRecord) -> Html | None:
    """Mean and standard deviation over seeds of each score, over all, fast and slow examples."""
    known = _observed(record)
    if not known:
        return None
    tables = []
    for score, (words, _) in _SCORES.items():
        rows: list[list[str | None]] = []
        for variant, runs in known.items():
            by_run = [_split(record, run, score) for run in runs]
            sides = ("all", *_SIDES)
            rows.append([variant, *(_moments([of.get(side) for of in by_run]) for side in sides)])
        tables.append(table([words, "all", "fast", "slow"], rows, kind="numbers"))
    return tag("div", *tables, class_="figures")


def note(record: StudyRecord) -> str | None:
    """What the scores are, and by whose clusters variants without their own are shown."""
    borrowed = {
        variant: dict.fromkeys(
            source for run in runs if (source := clusters_of(record, run)[1]) not in (None, variant)
        )
        for variant, runs in _observed(record).items()
    }
    if not borrowed:
        return None
    words = [f"{variant} by those of {', '.join(of)}" for variant, of in borrowed.items() if of]
    return _NOTE + (f" Without clusters of its own: {'; '.join(words)}." if words else "")


def histograms(record: StudyRecord) -> list[Drawing]:
    """Each score's distribution over slow and over fast examples, all seeds; one per variant."""
    drawings = []
    for place, (variant, runs) in enumerate(_observed(record).items()):
        pooled = {score: _pooled([_split(record, run, score) for run in runs]) for score in _SCORES}
        drawings.append(_histogram(f"examples-{place}", variant, pooled))
    return drawings


def sheets(record: StudyRecord) -> Html | None:
    """Pictures of fast and slow examples by when they were learnt, and of the most forgotten."""
    parts: list[Html] = []
    pictured = next((run for run in record if run.pictures and run.examples), None)
    if pictured is not None:
        parts += _clusters_sheets(record, pictured)
    forgetful = next((run for run in record if run.forgotten is not None), None)
    shown = None if forgetful is None else forgetful.forgotten
    if forgetful is not None and shown is not None and len(shown["images"]):
        scores = [int(score) for score in shown["forgetting_score"]]
        where = f"{forgetful.variant}, seed {forgetful.seed}"
        title = f"Most often forgotten ({where}): {scores[0]} to {scores[-1]} times"
        parts.append(tag("h4", title))
        parts.append(side_by_side(shown["images"], f"{len(scores)} examples, {title.lower()}"))
    return tag("div", *parts, class_="sheet", style="margin-top: 16px") if parts else None


def _observed(record: StudyRecord) -> dict[str, list[RunRecord]]:
    """Runs that have an archive, by variant."""
    found = {
        variant: [run for run in runs if run.examples is not None]
        for variant, runs in record.runs.items()
    }
    return {variant: runs for variant, runs in found.items() if runs}


def _clusters_sheets(record: StudyRecord, run: RunRecord) -> list[Html]:
    """One sheet per cluster, in the order in which its pictured examples were learnt for good."""
    pictures, examples = run.pictures or {}, run.examples or {}
    cluster, _ = clusters_of(record, run)
    indices = pictures["indices"]
    if cluster is None or indices.max(initial=0) >= len(cluster):
        return []
    parts = []
    for side, value in _SIDES.items():
        epochs = examples["learned_for_good"][indices]
        chosen = np.flatnonzero((cluster[indices] == value) & ~np.isnan(epochs))
        chosen = chosen[np.argsort(epochs[chosen], kind="stable")][:_SHOWN]
        if len(chosen):
            mean = number(float(np.nanmean(examples["learned_for_good"][cluster == value])), 1)
            title = (
                f"{side.capitalize()} examples ({run.variant}, seed {run.seed}), the earliest "
                f"learnt first; all of them were learnt for good in epoch {mean} on average"
            )
            parts.append(tag("h4", title))
            parts.append(side_by_side(pictures["images"][chosen], f"{len(chosen)} {side} examples"))
    return parts


def _split(record: StudyRecord, run: RunRecord, score: str) -> dict[str, NDArray[np.float64]]:
    """A score of all visited examples of a run, and of those of each cluster where known."""
    values = (run.examples or {})[score]
    visited = ~np.isnan(values)
    parts = {"all": values[visited]}
    cluster, _ = clusters_of(record, run)
    for side, value in _SIDES.items() if cluster is not None else ():
        parts[side] = values[visited & (cluster == value)]
    return parts


def _pooled(parts: Sequence[dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    """Fast and slow examples of all runs, else all examples."""
    sides = tuple(_SIDES) if any("slow" in of for of in parts) else ("all",)
    return {side: np.concatenate([of[side] for of in parts if side in of]) for side in sides}


def _moments(by_run: Sequence[NDArray[np.float64] | None]) -> str:
    means = [float(values.mean()) for values in by_run if values is not None and len(values)]
    if not means:
        return "\u2013"
    text = number(statistics.fmean(means), 2)
    return f"{text} \u00b1 {number(statistics.stdev(means), 2)}" if len(means) > 1 else text


def _histogram(
    name: str, variant: str, scores: dict[str, dict[str, NDArray[np.float64]]]
) -> Drawing:
    def plot(figure: Figure, axes: Axes) -> None:
        axes.remove()
        panels = figure.subplots(1, len(scores), sharey=True)
        for panel, (score, parts) in zip(panels, scores.items(), strict=True):
            edges = _edges(np.concatenate([*parts.values()]))
            for side, values in parts.items():
                shares = 100 * np.histogram(values, edges)[0] / max(1, len(values))
                color = _COLORS[side]
                panel.stairs(shares, edges, fill=True, color=color, alpha=0.25)
                panel.stairs(shares, edges, color=color, lw=1.4, label=side)
            panel.set_title(_SCORES[score][1], size=7.5, weight="normal", loc="center")
            panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            panel.set_xlabel("times" if score == "forgetting_score" else "epoch")
            panel.grid(visible=False, axis="x")
        short = variant if len(variant) < 32 else variant[:31] + "\u2026"
        figure.suptitle(
            f"{short}, % of examples", size=9, weight="bold", color=INK, x=0.02, ha="left"
        )
        if len(next(iter(scores.values()))) > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2)

    alt = f"How slow and fast examples of {variant} were learnt: histograms of three scores"
    return draw(name, alt, (WIDTH, 2.3), plot)


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of bins of equal whole width around whole numbers."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 1)
    width = -(-(high - low + 1) // _BINS)
    count = -(-(high - low + 1) // width)
    return np.asarray(low - 0.5 + width * np.arange(count + 1), np.float64)
