"""Figures along a setting, and the logarithmic axis of updates."""

import re
from pathlib import Path
from typing import Any

import pytest

from toolkit.history import History, write_json
from toolkit.report.curves import curves
from toolkit.report.looks import looks_of
from toolkit.report.record import StudyRecord
from toolkit.report.sweep import line_words, sweeps

SWEEP = {"over": "model.rho", "metrics": ["stalled"], "line": "theory/radius"}


def study(folder: Path, rhos: dict[str, str], **settings: Any) -> StudyRecord:
    """Two seeds of each variant; the recipe holds the radius."""
    for name, rho in rhos.items():
        for seed in range(2):
            run = folder / name / f"seed{seed}"
            history = History(run / "history.jsonl")
            for update in (0, 1, 10, 100):
                history.append({"update": update, "train/loss": 1.0 + update + seed})
            metrics = {"stalled": float(seed), "theory/radius": 0.1 + 0.02 * seed}
            write_json({"status": "finished", "metrics": metrics}, run / "result.json")
            (run / "recipe.yaml").write_text(
                f"model:\n  rho: {rho}\nseed: {seed}\nlr: {len(name)}\n"
            )
    meta = {"report": settings}
    write_json({"meta": meta, "variants": {rho: {} for rho in rhos}}, folder / "study.json")
    return StudyRecord.read(folder)


def test_a_sweep_is_drawn_against_the_setting_it_names(tmp_path: Path) -> None:
    record = study(tmp_path, {"gd": "null", "sam": "0.05", "wide": "0.2"}, sweep=SWEEP)
    (drawing,) = sweeps(record)
    assert "Stalled against model.rho" in drawing.alt
    assert "model.rho" in drawing.svg
    assert "theory radius, mean and range over seeds" in line_words(record)


def test_a_second_setting_gives_a_line_for_each_of_its_values(tmp_path: Path) -> None:
    rhos = {"a": "0.1", "bb": "0.1", "c": "0.2", "dd": "0.2"}
    (drawing,) = sweeps(study(tmp_path, rhos, sweep={**SWEEP, "by": "lr"}))
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.svg)
    assert {"lr 1", "lr 2"} <= set(words)


@pytest.mark.parametrize("rhos", [{"gd": "null"}, {"gd": "0.1", "sam": "0.1"}, {"gd": "text"}])
def test_without_two_settings_there_is_no_sweep(tmp_path: Path, rhos: dict[str, str]) -> None:
    assert sweeps(study(tmp_path, rhos, sweep=SWEEP)) == []


def test_a_recipe_without_a_sweep_has_none(tmp_path: Path) -> None:
    record = study(tmp_path, {"gd": "0.1", "sam": "0.2"})
    assert sweeps(record) == []
    assert line_words(record) == ""


def test_a_logarithmic_axis_leaves_update_0_out_and_is_labelled_plainly(tmp_path: Path) -> None:
    record = study(tmp_path, {"gd": "0.1"}, log_x=True)
    (drawing,) = curves(record, "train/loss", looks_of(record.variants))
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.svg)
    assert {"1", "10", "100"} <= set(words)
    assert not any("$" in word for word in words)
