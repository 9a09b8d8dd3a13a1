"""One self-contained page over a study, and the files beside it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from toolkit.history import replacing, write_csv, write_json
from toolkit.report import comparisons, curves, dynamics, panels, sweep, tables, upsampled
from toolkit.report.canvas import Drawing
from toolkit.report.cards import card, tally
from toolkit.report.looks import Look, looks_of
from toolkit.report.markup import Html, tag
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.style import CSS

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Draw a study from its record alone: page, table, figures, and its summary anew.

    Writes ``report.html`` (no network, no scripts), ``results.csv`` (a row per finished run),
    ``figures/*.svg`` and ``study.json``.

    Args:
        folder: ``runs/<recipe>``, with the run folders and, for title and claims, ``study.json``.

    Returns:
        The path of ``report.html``.

    Raises:
        FileNotFoundError: If the folder holds neither ``study.json`` nor a run.
    """
    folder = Path(folder)
    record = StudyRecord.read(folder)
    write_json(record.study, folder / "study.json")
    write_csv(_csv_rows(record), folder / "results.csv")
    builder = _Page(record, looks_of(record.variants))
    content = builder.build()
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    current = {drawing.save(figures) for drawing in builder.drawings}
    for stale in set(figures.glob("*.svg")) - current:
        stale.unlink()
    path = folder / "report.html"
    with replacing(path) as temporary:
        # A name from the file system may hold bytes that were not decoded.
        temporary.write_text(content, encoding="utf-8", errors="surrogateescape")
    return path


class _Page:
    """Builds the page, section by section, and keeps the figures drawn on the way."""

    def __init__(self, record: StudyRecord, looks: dict[str, Look]) -> None:
        self.record = record
        self.looks = looks
        self.drawings: list[Drawing] = []

    def build(self) -> str:
        study = self.record.study
        sections = (
            self._verdicts(),
            self._results(),
            self._sweep(),
            self._training(),
            self._margins(),
            self._groups(),
            self._upsampled(),
            self._examples(),
            self._configuration(),
            self._environment(),
        )
        again = f"python -m toolkit.report {self.record.folder}"
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", str(study["title"])),
            tag("style", Html(CSS)),
        )
        body = tag(
            "body",
            self._header(),
            tag("main", *sections),
            tag("footer", "Drawn from the record of the runs; drawn again by ", tag("code", again)),
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"

    def _header(self) -> Html:
        study, meta = self.record.study, self.record.study["meta"]
        variants = study["variants"].values()
        runs = sum(v["n"] for v in variants)
        seeds = sorted({seed for v in variants for seed in v["seeds"]})
        seconds = math.fsum(s for v in variants for s in v["seconds"]["values"] if s is not None)
        facts = [
            (str(len(variants)), "variant" if len(variants) == 1 else "variants"),
            (str(len(seeds)), "seed" if len(seeds) == 1 else "seeds"),
            (str(runs), "finished run" if runs == 1 else "finished runs"),
            (tables.seconds_words(seconds), "of training"),
        ]
        if study["failed"]:
            facts.append((str(len(study["failed"])), "failed"))
        return tag(
            "header",
            tag("p", f"Study \u00b7 {study['recipe']}", class_="eyebrow"),
            tag("h1", str(study["title"])),
            tag("p", str(meta["description"]), class_="lead") if meta.get("description") else None,
            tag("p", str(meta["paper"]), class_="paper") if meta.get("paper") else None,
            tag(
                "ul",
                *(tag("li", tag("b", value), f" {word}") for value, word in facts),
                class_="facts",
            ),
            tally(study["claims"]),
        )

    def _verdicts(self) -> Html | None:
        claims = self.record.study["claims"]
        if not claims:
            return None
        many = f"{len(claims)} claims, each" if len(claims) > 1 else "One claim,"
        note = (
            f"{many} judged at 95 % by paired differences over seeds (Student t); "
            "not corrected for their number."
        )
        forests = comparisons.differences(self.record)
        seeds = self._seed_strip()
        return _section(
            "What came out",
            note,
            tag("div", *map(card, claims), class_="cards"),
            self._figures(
                [*forests, *seeds],
                [*[_FOREST_CAPTION] * len(forests), *[_SEEDS_CAPTION] * len(seeds)],
            ),
        )

    def _seed_strip(self) -> list[Drawing]:
        metric = self.record.metric
        if metric is None:
            return []
        return [comparisons.seed_values(self.record, metric, self.looks)]

    def _results(self) -> Html | None:
        seeds = None if self.record.study["claims"] else self._figures(self._seed_strip())
        return _section(
            "Results",
            "Mean \u00b1 standard deviation over seeds; time and budgets are means per run.",
            tables.results_table(self.record),
            tables.failed_table(self.record.study["failed"]),
            seeds,
        )

    def _sweep(self) -> Html | None:
        drawings = sweep.sweeps(self.record)
        words = sweep.line_words(self.record)
        note = f"Every mark is a seed; line: mean over seeds.{words}"
        return _section("Results along a setting", note, self._figures(drawings))

    def _training(self) -> Html | None:
        rows = [self._figures(panels.panels(self.record))]
        rows += [
            self._figures(curves.curves(self.record, metric, self.looks))
            for metric in curves.curve_metrics(self.record)
        ]
        note = "Mean over seeds; bands are one standard deviation to each side."
        if any(panel.get("theory") for panel in self.record.settings.get("panels") or []):
            note += " Dashed: what the theory says; dotted: where two curves change places."
        return _section("How training went", note, *rows)

    def _margins(self) -> Html | None:
        rows = [
            self._figures(curves.curves(self.record, metric, self.looks))
            for metric in curves.margin_metrics(self.record)
        ]
        note = "The margin is the logit of the true class minus the largest other logit."
        return _section("Margins", note, *rows)

    def _groups(self) -> Html | None:
        drawings = curves.group_curves(self.record, self.looks)
        results = tables.group_table(self.record)
        note = (
            "Each thin line is the validation accuracy of one group, or class where the data has "
            "no groups (mean over seeds); dashed: their plain mean."
        )
        return _section(
            "Groups",
            note if drawings else None,
            self._figures(drawings, small=True),
            tag("h3", "Test accuracy (%), the lowest of each variant in colour")
            if results
            else None,
            results,
        )

    def _upsampled(self) -> Html | None:
        parts: list[Html | None] = []
        for i, run in enumerate(upsampled.selected_runs(self.record)):
            drawing = upsampled.shares(run, i)
            if drawing is not None:
                self.drawings.append(drawing)
            found = [drawing.inline() if drawing else None, _sheets(run)]
            parts.append(tag("h3", f"{run.variant}, seed {run.seed}"))
            parts.append(tag("p", upsampled.selection_words(run), class_="note"))
            parts.append(tag("div", *found, class_="figures") if any(found) else None)
        return _section("What was upsampled", None, *parts)

    def _examples(self) -> Html | None:
        return _section(
            "How examples were learnt",
            dynamics.note(self.record),
            dynamics.score_tables(self.record),
            self._figures(dynamics.histograms(self.record)),
            dynamics.sheets(self.record),
        )

    def _configuration(self) -> Html | None:
        differences = tables.configuration_table(self.record)
        first = next((run for run in self.record if run.recipe), None)
        if first is None:
            return None
        text = yaml.safe_dump(first.recipe, sort_keys=False, allow_unicode=True)
        whole = tag(
            "details", tag("summary", f"All of {first.variant}"), tag("pre", tag("code", text))
        )
        note = "The settings in which the variants differ; everything else is the same."
        return _section("Configuration", note if differences else None, differences, whole)

    def _environment(self) -> Html | None:
        return _section("Environment", None, tables.environment_table(list(self.record)))

    def _figures(
        self, drawings: Sequence[Drawing], captions: Sequence[str] = (), *, small: bool = False
    ) -> Html | None:
        if not drawings:
            return None
        self.drawings += drawings
        labels = [*captions, *[None] * (len(drawings) - len(captions))]
        figures = [d.inline(label) for d, label in zip(drawings, labels, strict=True)]
        return tag("div", *figures, class_="figures small" if small else "figures")


_FOREST_CAPTION = (
    "Line: 95 % interval of the mean difference; dots: seeds. Green lies on the expected side of "
    "0, orange on the other, grey reaches 0."
)
_SEEDS_CAPTION = (
    "Every mark is a seed; bar and line: mean \u00b1 standard deviation; "
    "dotted: mean of the first variant."
)


def _section(title: str, note: str | None, *parts: Html | None) -> Html | None:
    """A section, or nothing if it has no content."""
    if not any(parts):
        return None
    return tag("section", tag("h2", title), tag("p", note, class_="note") if note else None, *parts)


def _sheets(run: RunRecord) -> Html | None:
    """Pictures of what a run upsampled and of what it did not."""
    if run.pictures is None:
        return None
    kind = upsampled.selection_kind(run)
    opposite = {"slow": " (fast)", "fast": " (slow)"}.get(kind, "")
    titles = {True: f"Upsampled ({kind.replace('_', ' ')})", False: f"Not upsampled{opposite}"}
    if kind == "weighted":
        titles = {True: "Of more weight (slow)", False: "Of less weight (fast)"}
    parts = []
    for selected, title in titles.items():
        sheet = upsampled.contact_sheet(run.pictures, selected=selected)
        parts += [tag("h4", title), sheet] if sheet else []
    return tag("div", *parts, class_="sheet")


def _csv_rows(record: StudyRecord) -> list[dict[str, Any]]:
    rows = []
    for name, variant in record.study["variants"].items():
        for i, seed in enumerate(variant["seeds"]):
            row = {"variant": name, "seed": seed}
            for unit in ("seconds", "epochs", "updates", "examples_seen"):
                row[unit] = variant[unit]["values"][i]
            row.update({key: of["values"][i] for key, of in variant["metrics"].items()})
            rows.append(row)
    return rows
