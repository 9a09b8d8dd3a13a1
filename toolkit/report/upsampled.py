"""What USEFUL upsampled: shares per class, and pictures of slow against fast examples."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import matplotlib.image
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from toolkit.report.canvas import Drawing, draw
from toolkit.report.looks import INK, SERIES, WIDTH
from toolkit.report.markup import Html, tag
from toolkit.report.record import RunRecord, StudyRecord

__all__ = [
    "class_shares",
    "contact_sheet",
    "selected_runs",
    "selection_kind",
    "selection_words",
    "shares",
    "side_by_side",
]

_CLUSTERS = ("fast", "slow")


def selected_runs(record: StudyRecord) -> list[RunRecord]:
    """The first run of each variant that chose by what was learnt; random choices show nothing."""
    first = [runs[0] for runs in record.runs.values() if runs]
    return [
        run
        for run in first
        if run.selection is not None and selection_kind(run) not in ("random", "longer")
    ]


def selection_kind(run: RunRecord) -> str:
    """By what rule a run selected: ``slow``, ``fast``, ``random``, ..."""
    kind = (run.selection or {}).get("settings", {}).get("selection")
    return str(kind or _find(run.recipe.get("callbacks", {}), "selection") or "slow")


def selection_words(run: RunRecord) -> str:
    """How many examples a run selected, and when; and the classes that were not clustered."""
    selection = run.selection or {}
    count, total = len(selection["selected"]), selection["num_examples"]
    epochs = selection["separation_epochs"]
    when = "one epoch" if epochs == 1 else f"{epochs} epochs"
    share = 100 * count / max(1, total)
    text = f"{count:,} of {total:,} training examples ({share:.0f} %), chosen after {when}."
    skipped = [str(k) for k in selection.get("skipped_classes", [])]
    if not skipped:
        return text
    classes = f"class{'es' * (len(skipped) > 1)} {', '.join(skipped)}"
    return f"{text} Nothing of {classes}: fewer than two examples or different outputs."


def class_shares(run: RunRecord) -> dict[str, tuple[int, int]]:
    """``{class: (examples upsampled, examples)}``; empty where the record does not tell."""
    kind = selection_kind(run)
    if kind not in _CLUSTERS:
        return {}
    return {
        str(row["class"]): (row[kind]["count"], sum(row[side]["count"] for side in _CLUSTERS))
        for row in (run.selection or {}).get("classes", [])
    }


def shares(run: RunRecord, number: int) -> Drawing | None:
    """Share of each class that a run upsampled."""
    sizes = class_shares(run)
    total = sum(size for _, size in sizes.values())
    if not total:
        return None
    overall = 100 * sum(count for count, _ in sizes.values()) / total

    def plot(figure: Figure, axes: Axes) -> None:
        heights = [100 * count / max(1, size) for count, size in sizes.values()]
        places = range(len(sizes))
        axes.bar(places, heights, width=0.72, color=SERIES[1])
        axes.axhline(overall, color=INK, lw=0.9, ls=(0, (3, 2)))
        axes.set_xticks(places, list(sizes) if len(sizes) <= 20 else [""] * len(sizes))
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("Class (dashed: all classes)")
        axes.set_ylim(0, max(5.0, 1.12 * max(heights)))
        axes.set_title("Share of each class that was upsampled (%)")

    alt = f"Share of each class that {run.variant} upsampled"
    return draw(f"upsampled-{number}", alt, (WIDTH, 2.0), plot)


def contact_sheet(pictures: Mapping[str, NDArray[Any]], *, selected: bool) -> Html | None:
    """The upsampled (or the other) examples side by side, as one embedded picture."""
    chosen = np.flatnonzero(pictures["selected"] == selected)
    if not len(chosen):
        return None
    chosen = chosen[np.argsort(pictures["targets"][chosen], kind="stable")]
    kind = "upsampled" if selected else "other"
    classes = _classes(pictures["targets"][chosen])
    return side_by_side(
        pictures["images"][chosen], f"{len(chosen)} {kind} examples of the classes {classes}"
    )


def side_by_side(images: NDArray[Any], alt: str) -> Html:
    """Pictures ``(n, height, width, channels)``, n > 0, in rows of ten, as one embedded picture."""
    if images.shape[-1] == 1:
        images = np.repeat(images, 3, axis=-1)
    count, height, width, _ = images.shape
    columns = min(10, count)
    rows = -(-count // columns)
    # Whole multiples keep pixels square; transparent lines keep the pictures apart.
    zoom = max(1, 48 // max(height, width))
    gap = max(2, height * zoom // 12)
    cell_height, cell_width = height * zoom + gap, width * zoom + gap
    sheet = np.zeros((rows * cell_height - gap, columns * cell_width - gap, 4), np.uint8)
    for i, image in enumerate(images[..., :3].repeat(zoom, axis=1).repeat(zoom, axis=2)):
        top, left = (i // columns) * cell_height, (i % columns) * cell_width
        sheet[top : top + height * zoom, left : left + width * zoom, :3] = image
        sheet[top : top + height * zoom, left : left + width * zoom, 3] = 255
    file = io.BytesIO()
    matplotlib.image.imsave(file, sheet, format="png")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return tag("img", src=f"data:image/png;base64,{data}", alt=alt)


def _classes(targets: NDArray[Any]) -> str:
    return ", ".join(str(value) for value in np.unique(targets))


def _find(node: Any, key: str) -> Any:
    """The first value under ``key`` in nested mappings."""
    if not isinstance(node, Mapping):
        return None
    if key in node:
        return node[key]
    return next((found for value in node.values() if (found := _find(value, key))), None)
