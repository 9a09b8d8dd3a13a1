"""A matplotlib figure as a file, and as SVG inside a page."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toolkit.report.looks import PAPER, RC, THEME
from toolkit.report.markup import Html, tag

__all__ = ["Drawing", "draw"]


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: File name without suffix, unique in a report.
        alt: What it shows, for those who do not see it.
        svg: A standalone SVG file.
    """

    name: str
    alt: str
    svg: str

    def save(self, folder: Path) -> Path:
        """Write ``<name>.svg``."""
        path = folder / f"{self.name}.svg"
        path.write_text(self.svg, encoding="utf-8")
        return path

    def inline(self, caption: str | None = None) -> Html:
        """The figure for a page: colours as theme variables, ids made unique, scaled to fit."""
        svg = self.svg[self.svg.index("<svg") :]
        head, body = svg.split(">", 1)
        view = re.search(r'viewBox="[^"]*"', head)
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', body)
        body = re.sub(r'(xlink:href="#|url\(#)', rf"\1{self.name}-", body)
        for color, variable in THEME.items():
            body = body.replace(color, variable)
        box = view.group() if view else ""
        label = tag("title", self.alt)
        namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        opening = f'<svg {namespaces} {box} role="img" aria-labelledby="{self.name}-title">'
        title = label.replace("<title>", f'<title id="{self.name}-title">', 1)
        drawn = Html(f"{opening}{title}{body}")
        return tag("figure", drawn, tag("figcaption", caption) if caption else None)


def draw(
    name: str, alt: str, size: tuple[float, float], plot: Callable[[Figure, Axes], None]
) -> Drawing:
    """Call ``plot`` on a fresh figure of ``size`` inches, in the report's look."""
    # A fixed salt and no date: the same record gives the same file.
    with mpl.rc_context({**RC, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        plot(figure, axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None})
    return Drawing(name, alt, file.getvalue())
