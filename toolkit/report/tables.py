"""Tables of a page: results, groups, configuration, environment, failed runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolkit.report.curves import group_keys
from toolkit.report.markup import Html, join, tag
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.words import in_unit, metric_words, number, plus_minus

__all__ = [
    "configuration_table",
    "environment_table",
    "failed_table",
    "flatten",
    "group_table",
    "headline_metrics",
    "results_table",
    "seconds_words",
    "table",
]

_BUDGETS = (("epochs", "epochs"), ("updates", "updates"), ("examples_seen", "examples seen"))
_VOLATILE = ("seed", "threads")


def table(
    head: Sequence[str | None],
    rows: Iterable[Sequence[str | None]],
    *,
    kind: str = "",
    caption: str | None = None,
) -> Html:
    """A table in a box of its own that scrolls where it is wider than the page."""
    header = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    content = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", header),
        tag("tbody", *body),
        class_=kind or None,
    )
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def headline_metrics(record: StudyRecord) -> list[str]:
    """Metrics of the result table: the recipe's, else the study's metric and the worst group."""
    wanted = record.settings.get("metrics")
    if wanted is None:
        wanted = [record.metric, "test/worst_group_acc"]
    keys = record.metrics()
    return [key for key in dict.fromkeys(wanted) if key in keys]


def results_table(record: StudyRecord) -> Html:
    """Mean and standard deviation of the metrics, time and budget, a row per variant."""
    metrics = headline_metrics(record)
    budgets = [
        (key, label)
        for key, label in _BUDGETS
        if any(v[key]["mean"] is not None for v in record.study["variants"].values())
    ]
    head = ["Variant", "runs", *(metric_words(m) for m in metrics), "time per run"]
    rows: list[list[str | None]] = []
    for name, variant in record.study["variants"].items():
        row: list[str | None] = [name, str(variant["n"])]
        for metric in metrics:
            moments = variant["metrics"].get(metric, {"mean": None, "std": None})
            row.append(plus_minus(metric, moments["mean"], moments["std"]))
        row.append(seconds_words(variant["seconds"]["mean"]))
        row += [number(variant[key]["mean"], _whole(variant[key]["mean"])) for key, _ in budgets]
        rows.append(row)
    return table([*head, *(label for _, label in budgets)], rows, kind="numbers")


def group_table(record: StudyRecord) -> Html | None:
    """Test accuracy of each group by variant, the worst of each variant marked."""
    keys = group_keys(record.metrics(), "test")
    variants = {n: v for n, v in record.study["variants"].items() if v["n"]}
    if not keys or not variants:
        return None
    means = {
        name: {key: variant["metrics"].get(key, {}).get("mean") for key in keys}
        for name, variant in variants.items()
    }
    worst = {
        name: min((value for value in of.values() if value is not None), default=None)
        for name, of in means.items()
    }
    rows: list[list[str | None]] = []
    for key in keys:
        row: list[str | None] = [key.split("/", 2)[2]]
        for name in variants:
            value = means[name][key]
            text = number(None if value is None else in_unit(key) * value, 1)
            lowest = value is not None and value == worst[name]
            row.append(tag("strong", text, class_="worst") if lowest else text)
        rows.append(row)
    kind = "Group" if "/group_acc/" in keys[0] else "Class"
    return table([kind, *variants], rows, kind="numbers")


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Dotted keys of a nested configuration; lists and scalars as text.

    Example:
        >>> flatten({"model": {"lr": 0.1}, "callbacks": {}, "sizes": [1, 2]})
        {'model.lr': '0.1', 'callbacks': '{}', 'sizes': '[1, 2]'}
    """
    if not isinstance(node, Mapping) or not node:
        if isinstance(node, list):
            return {prefix: f"[{', '.join(map(str, node))}]"}
        return {prefix: str(node)}
    flat: dict[str, str] = {}
    for key, value in node.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def configuration_table(record: StudyRecord) -> Html | None:
    """Dotted keys in which the variants differ, a column per variant."""
    flat = {name: flatten(runs[0].recipe) for name, runs in record.runs.items() if runs}
    flat = {name: keys for name, keys in flat.items() if keys}
    keys = dict.fromkeys(
        key for of in flat.values() for key in of if key.split(".")[0] not in _VOLATILE
    )
    differing = [key for key in keys if len({of.get(key) for of in flat.values()}) > 1]
    if len(flat) < 2 or not differing:
        return None
    rows = []
    for key in differing:
        cells = [of.get(key, "\u2013") for of in flat.values()]
        rows.append([tag("code", _breakable(key)), *(_setting(cell, cells[0]) for cell in cells)])
    return table(["Key", *flat], rows, kind="settings")


def environment_table(runs: Sequence[RunRecord]) -> Html | None:
    """Versions and hardware; where runs differ, every value that occurs."""
    flat = [flatten(run.environment) for run in runs if run.environment]
    if not flat:
        return None
    keys = dict.fromkeys(key for of in flat for key in of)
    rows = [[key, "; ".join(dict.fromkeys(of[key] for of in flat if key in of))] for key in keys]
    return table(["What", "Value"], rows, kind="settings pairs")


def failed_table(failed: Sequence[Mapping[str, Any]]) -> Html | None:
    """Runs that failed, with their errors."""
    if not failed:
        return None
    rows = [[str(f["variant"]), str(f["seed"]), str(f["error"] or "unknown")] for f in failed]
    return table(["Variant", "seed", "error"], rows, kind="settings")


def seconds_words(seconds: float | None) -> str:
    """A duration for people.

    Example:
        >>> seconds_words(8.25), seconds_words(95.0), seconds_words(7300.0), seconds_words(None)
        ('8.2 s', '1 min 35 s', '2 h 1 min', '\u2013')
    """
    if seconds is None:
        return "\u2013"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _breakable(text: str) -> Html:
    """A dotted path that may be broken after its dots."""
    first, *rest = text.split(".")
    return join(first, *(join(Html(".<wbr>"), part) for part in rest))


def _setting(value: str, first: str) -> Html:
    """A value, quiet where it is that of the first variant."""
    return tag("span", _breakable(value), class_="same" if value == first else "other")


def _whole(value: float | None) -> int:
    return 0 if value is None or value == round(value) or value >= 100 else 1
