"""Words, looks, tables and bands of a report, and its command line."""

import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from toolkit.history import History, read_json, write_json
from toolkit.report import terminal_table
from toolkit.report.__main__ import main
from toolkit.report.curves import Band, curves
from toolkit.report.looks import looks_of, panels_of
from toolkit.report.markup import Html, tag
from toolkit.report.page import write_report
from toolkit.report.panels import _changes, panels
from toolkit.report.record import RunRecord, StudyRecord
from toolkit.report.tables import configuration_table, environment_table
from toolkit.report.upsampled import contact_sheet, selection_words


def text_of(renderable):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


class TestMarkup:
    def test_text_and_attributes_are_escaped(self):
        assert tag("p", "<a>", title='"<') == '<p title="&quot;&lt;">&lt;a&gt;</p>'

    def test_markup_is_not_escaped_twice(self):
        assert tag("p", tag("b", "&")) == "<p><b>&amp;</b></p>"
        assert isinstance(tag("p"), Html)

    def test_none_is_left_out(self):
        assert tag("p", None, "x", id=None, hidden=True, title=False) == "<p hidden>x</p>"


class TestLooks:
    def test_a_grid_of_names_gets_a_panel_per_head_and_a_colour_per_tail(self):
        names = ["sgd", "sgd_useful", "sgd_random", "sam", "sam_useful", "sam_random"]
        looks = looks_of(names)
        assert panels_of(looks) == {"sgd": names[:3], "sam": names[3:]}
        assert looks["sgd_useful"].color == looks["sam_useful"].color
        assert looks["sgd"].marker != looks["sam"].marker
        assert len({looks[name].color for name in names[:3]}) == 3

    @pytest.mark.parametrize("count", [1, 4, 21])
    def test_other_names_share_a_panel_and_look_different(self, count):
        looks = looks_of([f"width{i}" for i in range(count)])
        assert list(panels_of(looks)) == [""]
        assert len({(look.color, str(look.dash)) for look in looks.values()}) == count


class TestRecord:
    def test_series_are_those_of_the_training_stage(self, tmp_path):
        history = History(tmp_path / "history.jsonl")
        history.append({"stage": "separation", "update": 1, "val/error": 0.9})
        history.append({"stage": "training", "update": 1, "val/error": 0.5})
        history.append({"stage": "training", "update": 2, "train/loss": 0.1})
        history.append({"stage": "training", "update": 3, "val/error": None})
        history.append({"stage": "training", "update": 4, "val/error": 0.25})
        series = RunRecord("sgd", 0, tmp_path).series("val/error", "update")
        np.testing.assert_array_equal(series, [[1, 0.5], [4, 0.25]])

    def test_runs_of_different_length_give_a_band_over_their_common_range(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0, 1], claims={})
        path = folder / "sgd" / "seed1" / "history.jsonl"
        History(path).cut_to(12)
        record = StudyRecord.read(folder)
        (drawing,) = curves(record, "val/error", looks_of(record.variants))
        assert "Validation error (%)" in drawing.svg

    def test_panels_show_several_metrics_of_a_variant_beside_the_theory(self, small_study):
        panel = {
            "title": "Losses",
            "curves": {"train": "train/loss", "none": "train/none"},
            "theory": {"train": "train/loss"},
        }
        meta = {"recipe": "t", "title": "T", "report": {"panels": [panel], "log_x": True}}
        folder = small_study(seeds=[0], meta=meta, claims={})
        record = StudyRecord.read(folder)
        drawn = panels(record)
        assert len(drawn) == len(record.runs)
        assert drawn[0].alt == f"Losses of {next(iter(record.runs))} over training: train"
        assert "Dashed: what the theory says" in write_report(folder).read_text()
        assert "mathdefault" not in drawn[0].svg

    def test_where_two_curves_change_places_is_found_after_they_have_come_apart(self):
        x = np.arange(1.0, 9.0)
        gap = np.array([0.0, 0.0, -1.0, -0.5, 0.0, 1.0, 2.0, -1.0])
        first, second = Band(x, gap, 0 * x), Band(x, 0 * x, 0 * x)
        assert _changes([first, second]) == [6.0, 8.0]
        assert _changes([first]) == []

    def test_the_recipe_chooses_metric_and_curves(self, small_study):
        report = {"metric": "test/acc", "curves": ["val/error"], "x": "epoch"}
        folder = small_study(variants=["sgd"], seeds=[0], meta={"recipe": "t", "report": report})
        record = StudyRecord.read(folder)
        assert record.metric == "test/acc"
        (drawing,) = curves(record, "val/error", looks_of(record.variants))
        assert "Epochs" in drawing.svg


class TestTables:
    def test_configuration_shows_what_differs_and_nothing_else(self, small_study):
        folder = small_study(variants=["sgd", "sgd_longer"], seeds=[0], claims={})
        table = configuration_table(StudyRecord.read(folder))
        assert table is not None
        assert table.count('scope="row"') == 1
        assert "max_epochs" in table
        assert '<span class="other">42</span>' in table

    def test_configuration_of_equal_variants_is_left_out(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        assert configuration_table(StudyRecord.read(folder)) is None

    def test_environments_that_differ_are_all_shown(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0, 1], claims={})
        path = folder / "sgd" / "seed1" / "environment.json"
        path.write_text(path.read_text().replace("3.11.2", "3.12.0"))
        table = environment_table(StudyRecord.read(folder).runs["sgd"])
        assert table is not None
        assert "<td>3.11.2; 3.12.0</td>" in table


class TestPictures:
    def test_a_side_without_examples_has_no_sheet(self):
        pictures = {
            "images": np.zeros((2, 8, 8, 3), np.uint8),
            "selected": np.array([True, True]),
            "targets": np.array([1, 0]),
        }
        assert contact_sheet(pictures, selected=False) is None
        sheet = contact_sheet(pictures, selected=True)
        assert sheet is not None
        assert 'alt="2 upsampled examples of the classes 0, 1"' in sheet


class TestSelection:
    @pytest.mark.parametrize(
        ("skipped", "end"),
        [
            ([], "chosen after 2 epochs."),
            ([3], "Nothing of class 3: fewer than two examples or different outputs."),
            ([3, 7], "Nothing of classes 3, 7: fewer than two examples or different outputs."),
        ],
    )
    def test_classes_that_were_not_clustered_are_listed(self, small_study, skipped, end):
        folder = small_study(variants=["sgd_useful"], seeds=[0], claims={})
        path = folder / "sgd_useful" / "seed0" / "useful.json"
        selection = read_json(path)
        selection |= {"skipped_classes": skipped, "separation_epochs": 2}
        write_json(selection, path)
        [run] = StudyRecord.read(folder).runs["sgd_useful"]
        assert selection_words(run).endswith(end)


class TestTerminal:
    def test_table_and_verdicts_are_printed(self, study_folder):
        text = text_of(terminal_table(read_json(study_folder / "study.json")))
        study = read_json(study_folder / "study.json")
        for name in study["variants"]:
            assert f"\n{name} " in text
        for claim in study["claims"]:
            assert f"{claim['verdict']}: " in text
        assert "Test error" in text
        assert "(95 % interval" in text

    def test_names_are_not_read_as_markup(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        study = read_json(folder / "study.json")
        study["failed"] = [{"variant": "[red]", "seed": 0, "error": "[/] no"}]
        assert "[red]/seed0 failed: [/] no" in text_of(terminal_table(study))


class TestCommandLine:
    def test_a_folder_of_studies_redraws_each(self, small_study, capsys):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        assert main([str(folder.parent)]) == 0
        assert (folder / "report.html").exists()
        assert f"report: {folder / 'report.html'}" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["nowhere", "."])
    def test_a_bad_path_ends_in_one_line(self, tmp_path, capsys, name):
        assert main([str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "must be the folder of a study (runs/<recipe>) or of studies (runs)" in error

    def test_an_unreadable_record_ends_in_one_line(self, small_study, capsys):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        (folder / "study.json").write_text("{")
        assert main([str(folder)]) == 2
        assert (
            "must be as it was written, got a damaged file (JSONDecodeError"
            in capsys.readouterr().err
        )

    def test_nothing_imports_torch(self):
        code = "import sys, toolkit.report, toolkit.claims; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
