"""What a report reads: the summary of a study and the files of its runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from toolkit.claims import summarize
from toolkit.history import read_history, read_json, reading

__all__ = ["RunRecord", "StudyRecord", "main_metric", "result_metrics"]


@dataclass(frozen=True)
class RunRecord:
    """The folder of one run; each file is read when it is first asked for."""

    variant: str
    seed: int
    folder: Path

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Rows of the training stage, in order."""
        rows = read_history(self.folder / "history.jsonl")
        return [row for row in rows if row.get("stage", "training") == "training"]

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe; empty if there is none."""
        path = self.folder / "recipe.yaml"
        # The base loader keeps scalars as they are written, which is what should be shown.
        with reading(path, "Restore it, or delete its folder to train that run again."):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            content = yaml.load(text, yaml.BaseLoader)
        return content if isinstance(content, dict) else {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and hardware."""
        return read_json(self.folder / "environment.json") or {}

    @cached_property
    def selection(self) -> dict[str, Any] | None:
        """What USEFUL selected; ``None`` where it was off."""
        return read_json(self.folder / "useful.json")

    @cached_property
    def pictures(self) -> dict[str, NDArray[Any]] | None:
        """``images``, ``selected``, ``targets``, ``indices``; ``None`` if none were kept."""
        return _archive(self.folder / "pictures.npz")

    @cached_property
    def forgotten(self) -> dict[str, NDArray[Any]] | None:
        """``images``, ``targets``, ``indices``, ``forgetting_score``; ``None`` if none kept."""
        return _archive(self.folder / "forgotten.npz")

    @cached_property
    def examples(self) -> dict[str, NDArray[Any]] | None:
        """Scores, targets and clusters by example, not the arrays by epoch; ``None`` if absent.

        Names are those of :class:`callbacks.ExampleDynamics`.
        """
        return _archive(self.folder / "examples.npz", without=("loss", "margin", "correct"))

    def series(self, key: str, axis: str) -> NDArray[np.float64]:
        """Rows that have a number under ``key``, as ``(rows, 2)``: ``axis``, value."""
        pairs = [
            (row[axis], row[key])
            for row in self.history
            if row.get(key) is not None and row.get(axis) is not None
        ]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)


@dataclass(frozen=True)
class StudyRecord:
    """A study's summary and its runs.

    Attributes:
        folder: ``runs/<recipe>``.
        study: The content of ``study.json``, judged again.
        runs: Finished runs, by variant in the recipe's order.
    """

    folder: Path
    study: dict[str, Any]
    runs: dict[str, list[RunRecord]]

    @classmethod
    def read(cls, folder: Path) -> "StudyRecord":
        """Read a study's folder.

        Raises:
            FileNotFoundError: If it holds neither ``study.json`` nor a run.
        """
        study = summarize(folder)
        runs = {
            name: [
                RunRecord(name, seed, folder / name / f"seed{seed}") for seed in variant["seeds"]
            ]
            for name, variant in study["variants"].items()
        }
        return cls(folder, study, runs)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of all variants."""
        return tuple(self.runs)

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe's ``report`` settings."""
        return self.study["meta"].get("report") or {}

    @property
    def metric(self) -> str | None:
        """The metric that the study is about, see :func:`main_metric`."""
        return main_metric(self.study)

    def metrics(self) -> tuple[str, ...]:
        """Every metric that a result has, in order of appearance."""
        return result_metrics(self.study)

    def history_keys(self) -> tuple[str, ...]:
        """Every key that a history has, in order of appearance."""
        return tuple(dict.fromkeys(key for run in self for row in run.history for key in row))

    def __iter__(self) -> Iterator[RunRecord]:
        return (run for runs in self.runs.values() for run in runs)


def _archive(path: Path, without: Sequence[str] = ()) -> dict[str, NDArray[Any]] | None:
    if not path.exists():
        return None
    with (
        reading(path, "Delete that file."),
        path.open("rb") as handle,  # NumPy leaves a damaged file that it opened itself open
        np.load(handle, allow_pickle=False) as file,
    ):
        return {name: file[name] for name in file.files if name not in without}


def result_metrics(study: dict[str, Any]) -> tuple[str, ...]:
    """Every metric that a result of the study has, in order of appearance."""
    variants = study["variants"].values()
    return tuple(dict.fromkeys(key for variant in variants for key in variant["metrics"]))


def main_metric(study: dict[str, Any]) -> str | None:
    """The recipe's ``report.metric``, else the test error, accuracy or first test metric."""
    chosen = (study["meta"].get("report") or {}).get("metric")
    if chosen is not None:
        return str(chosen)
    keys = result_metrics(study)
    wanted = [key for key in ("test/error", "test/acc") if key in keys]
    tests = [key for key in keys if key.startswith("test/")]
    return next(iter([*wanted, *tests, *keys]), None)
