"""The end of a study on a terminal: its table and its verdicts."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from toolkit.report.record import main_metric
from toolkit.report.words import metric_words, number, plus_minus
from toolkit.suggest import listed

__all__ = ["terminal_table"]

_SHOWN_RUNS = 4
_COLORS = {"supported": "green", "refuted": "red", "inconclusive": "yellow", "not tested": "dim"}


def terminal_table(study: dict[str, Any]) -> RenderableType:
    """Table of variants and a line per claim, for ``rich``.

    Args:
        study: The content of ``study.json``.
    """
    metric = main_metric(study)
    metrics = [] if metric is None else [metric]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant")
    for head in ("n", *map(metric_words, metrics), "seconds", "updates", "examples seen"):
        table.add_column(head, justify="right")
    shown = {name: variant for name, variant in study["variants"].items() if variant["n"]}
    for name, variant in shown.items():
        cells = [name, str(variant["n"])]
        for metric in metrics:
            moments = variant["metrics"].get(metric, {"mean": None, "std": None})
            cells.append(plus_minus(metric, moments["mean"], moments["std"]))
        cells.append(number(variant["seconds"]["mean"], 1))
        cells += [number(variant[key]["mean"], 0) for key in ("updates", "examples_seen")]
        table.add_row(*map(Text, cells))
    top: list[RenderableType] = [Text(), table] if shown else []
    return Group(*top, Text(), *map(_claim, study["claims"]), *_failures(study["failed"]))


def _claim(claim: dict[str, Any]) -> Text:
    line = Text(f"{claim['verdict']}: ", style=f"bold {_COLORS[claim['verdict']]}")
    sentence = claim["sentence"].removeprefix("not tested: ").replace("; ", "\n  ")
    return line.append(f"{claim['text'] or claim['name']}\n", style="bold default").append(
        f"  {sentence}", style="not bold default"
    )


def _failures(failed: Sequence[dict[str, Any]]) -> list[Text]:
    """A line per kind of failure: what is wrong with all runs is said once."""
    where: dict[str, list[str]] = {}
    for failure in failed:
        error = failure["error"] or "unknown"
        where.setdefault(error, []).append(f"{failure['variant']}/seed{failure['seed']}")
    return [
        Text(f"{listed(runs, _SHOWN_RUNS)} failed: {error}", style="red")
        for error, runs in where.items()
    ]
