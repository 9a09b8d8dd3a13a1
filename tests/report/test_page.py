"""The page of a study, as files and in a real browser."""

import csv
import re
import shutil
import xml.etree.ElementTree as ET

import pytest

from toolkit.history import read_json, write_json
from toolkit.report import write_report

SIZES = [(390, False), (1400, False), (1400, True)]


@pytest.fixture(scope="session")
def page(study_folder):
    return write_report(study_folder)


@pytest.fixture(scope="session")
def names(study_folder):
    return list(read_json(study_folder / "study.json")["variants"])


def html_of(folder):
    return write_report(folder).read_text(encoding="utf-8")


class TestInABrowser:
    @pytest.fixture(params=SIZES, ids=["phone", "desktop", "dark"])
    def opened(self, request, browser, page):
        width, dark = request.param
        browser.open(page, width, dark=dark)
        return browser, width

    def test_the_viewport_is_as_wide_as_asked(self, opened):
        browser, width = opened
        assert browser.evaluate("window.innerWidth") == width

    def test_nothing_overflows_the_page(self, opened):
        browser, width = opened
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        # Only boxes that scroll by themselves may hold something wider than the page.
        too_wide = browser.evaluate(
            """[...document.querySelectorAll('body *')].filter(e =>
                 !e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right >
                 document.documentElement.clientWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert too_wide == []

    def test_wide_tables_scroll_in_their_box(self, browser, page):
        browser.open(page, 390)
        wide = browser.evaluate(
            """[...document.querySelectorAll('.scroll')].filter(
                 e => e.scrollWidth > e.clientWidth + 1).length"""
        )
        assert wide >= 3

    def test_figures_are_drawn(self, opened):
        browser, width = opened
        boxes = browser.evaluate(
            """[...document.querySelectorAll('figure svg')].map(e => {
                 const b = e.getBoundingClientRect(); return [b.width, b.height]})"""
        )
        # forest, seeds, 2 metrics and 2 margins in 2 panels, 8 groups, 2 shares
        assert len(boxes) == 1 + 1 + 8 + 8 + 2
        assert all(150 < w <= width and h > 100 for w, h in boxes)

    def test_text_of_figures_stays_inside_them(self, opened):
        browser, _ = opened
        cut = browser.evaluate(
            """[...document.querySelectorAll('figure svg')].flatMap(svg => {
                 const box = svg.getBoundingClientRect();
                 return [...svg.querySelectorAll('text')].filter(t => {
                   const b = t.getBoundingClientRect();
                   return b.left < box.left - 1 || b.right > box.right + 1
                       || b.top < box.top - 1 || b.bottom > box.bottom + 1;
                 }).map(t => t.textContent)})"""
        )
        assert cut == []

    def test_text_of_figures_is_legible(self, opened):
        browser, _ = opened
        heights = browser.evaluate(
            """[...document.querySelectorAll('figure svg text')].map(t =>
                 parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)"""
        )
        assert min(heights) > 8.5

    def test_every_variant_is_named(self, opened, names):
        browser, _ = opened
        rows = browser.evaluate(
            "[...document.querySelectorAll('tbody th')].map(e => e.innerText.trim())"
        )
        legends = browser.evaluate(
            "[...document.querySelectorAll('figure text')].map(e => e.textContent)"
        )
        assert len(names) == 8
        assert set(names) <= set(rows)
        assert set(names) <= set(legends)

    def test_pictures_are_shown(self, opened):
        browser, _ = opened
        loaded = browser.evaluate(
            "[...document.images].map(e => e.complete && e.naturalWidth > 0 && e.alt !== '')"
        )
        assert loaded == [True] * 4

    def test_printed_on_paper_nothing_is_cut(self, browser, page):
        browser.open(page, 794, dark=True, media="print")  # 210 mm
        assert browser.evaluate("document.documentElement.scrollWidth") == 794
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"

    def test_ids_are_unique(self, browser, page):
        browser.open(page, 1400)
        doubled = browser.evaluate(
            """(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
                 return ids.filter((id, i) => ids.indexOf(id) !== i) })()"""
        )
        assert doubled == []

    def test_names_are_text_and_never_markup(self, browser, small_study):
        nasty = "<b onclick=alert(1)>$x_{&</b>"
        meta = {"recipe": "toy", "title": nasty, "description": nasty, "paper": nasty}
        folder = small_study(variants=["sgd"], seeds=[0, 1], meta=meta, claims={})
        study = read_json(folder / "study.json")
        study["failed"] = [{"variant": nasty, "seed": 3, "error": nasty}]
        write_json(study, folder / "study.json")
        browser.open(write_report(folder), 1400)
        assert browser.evaluate("document.querySelectorAll('b[onclick]').length") == 0
        assert browser.evaluate("document.querySelector('h1').innerText") == nasty
        assert browser.evaluate("document.body.innerText").count(nasty) >= 5


class TestFiles:
    def test_page_needs_no_network_and_no_scripts(self, page):
        html = page.read_text(encoding="utf-8")
        assert "<script" not in html
        assert "@import" not in html
        addresses = re.findall(r'(?:src|href)="([^"]{0,40})', html)
        assert all(a.startswith(("data:image/png;base64,", "#")) for a in addresses)

    def test_figures_stand_alone(self, page, names):
        files = sorted((page.parent / "figures").glob("*.svg"))
        assert len(files) == 20
        texts = [ET.parse(file).getroot().itertext() for file in files]
        assert all("var(--" not in file.read_text(encoding="utf-8") for file in files)
        words = {text for of_file in texts for text in of_file}
        assert set(names) <= words

    def test_results_have_a_row_per_run(self, page):
        with (page.parent / "results.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 40
        result = read_json(page.parent / "sam_useful" / "seed3" / "result.json")
        row = next(r for r in rows if (r["variant"], r["seed"]) == ("sam_useful", "3"))
        assert float(row["test/error"]) == result["metrics"]["test/error"]
        assert int(row["updates"]) == result["updates"]

    def test_verdicts_come_with_their_evidence(self, page):
        html = page.read_text(encoding="utf-8")
        study = read_json(page.parent / "study.json")
        verdicts = {claim["name"]: claim["verdict"] for claim in study["claims"]}
        assert verdicts["useful_at_equal_updates"] == "not tested"
        assert set(verdicts.values()) == {"supported", "refuted", "inconclusive", "not tested"}
        assert html.count('<article class="card') == len(verdicts)
        assert "must have equal updates, got 420 and 300 on average" in html
        assert "6 claims, each judged at 95 %" in html

    def test_drawing_again_changes_no_byte(self, study_folder, page):
        files = ["report.html", "results.csv", "study.json", "figures/seeds.svg"]
        before = [(study_folder / name).read_bytes() for name in files]
        write_report(study_folder)
        assert [(study_folder / name).read_bytes() for name in files] == before

    def test_figures_of_an_older_report_go(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        (folder / "figures").mkdir()
        (folder / "figures" / "old.svg").write_text("<svg/>")
        write_report(folder)
        assert not (folder / "figures" / "old.svg").exists()

    def test_verdicts_follow_the_record(self, small_study):
        claims = {"sam_helps": {
            "_target_": "toolkit.claims.Comparison", "text": "SAM helps", "source": "Fig. 1",
            "metric": "test/error", "arm": "sam", "baseline": "sgd", "expect": "lower",
        }}  # fmt: skip
        folder = small_study(variants=["sgd", "sam"], claims=claims)
        assert "card supported" in html_of(folder)
        for seed in range(5):
            path = folder / "sam" / f"seed{seed}" / "result.json"
            result = read_json(path)
            result["metrics"]["test/error"] += 0.1
            write_json(result, path)
        assert "card refuted" in html_of(folder)


class TestPartialStudies:
    def test_one_run_without_history_or_claims_has_a_page(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0], claims={})
        for name in ("history.jsonl", "environment.json", "recipe.yaml"):
            (folder / "sgd" / "seed0" / name).unlink()
        html = html_of(folder)
        assert "Results" in html
        assert "How training went" not in html
        assert "What came out" not in html

    def test_failed_and_missing_runs_are_told(self, small_study):
        folder = small_study(variants=["sgd", "sam"], seeds=[0, 1])
        shutil.rmtree(folder / "sam")
        error = {"status": "failed", "error": "the loss is NaN at update 7"}
        write_json(error, folder / "sgd" / "seed1" / "result.json")
        html = html_of(folder)
        assert "the loss is NaN at update 7" in html
        assert re.search(r"<b>1</b> failed", html)
        assert "sam" in html

    def test_a_panel_whose_variants_have_no_runs_is_left_out(self, small_study):
        """A legend without a curve made matplotlib warn in the middle of the verdicts."""
        folder = small_study(variants=["sgd", "sgd_useful", "sam", "sam_useful"], seeds=[0, 1])
        for name in ("sam", "sam_useful"):
            shutil.rmtree(folder / name)
        html_of(folder)
        curves = [path.name for path in (folder / "figures").glob("curve-val-error*")]
        assert curves
        assert not any("sam" in name for name in curves)

    def test_runs_alone_are_enough(self, small_study):
        folder = small_study(variants=["sgd", "sam"], seeds=[0, 1])
        (folder / "study.json").unlink()
        assert "<h1>toy</h1>" in html_of(folder)

    def test_many_variants_that_form_no_grid_share_a_panel(self, small_study):
        folder = small_study(variants=["sgd"], seeds=[0, 1], claims={})
        for i in range(11):
            shutil.copytree(folder / "sgd", folder / f"width{i}")
        write_report(folder)
        curve = (folder / "figures" / "curve-val-error.svg").read_text(encoding="utf-8")
        assert all(f"width{i}" in curve for i in range(11))

    def test_folder_of_something_else_is_refused(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"must hold study\.json or"):
            write_report(tmp_path)
        assert list(tmp_path.iterdir()) == []
