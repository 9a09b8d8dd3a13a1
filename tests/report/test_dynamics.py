"""The section on how examples were learnt, from files written by hand."""

import re

import numpy as np
import pytest

from toolkit.report import write_report
from toolkit.report.dynamics import clusters_of, histograms, note, score_tables, sheets
from toolkit.report.record import StudyRecord

ABSENT = "\N{EN DASH}"
TITLE = "How examples were learnt"


def write_examples(folder, *, cluster, forgetting, first, good, targets=None):
    count = len(forgetting)
    np.savez(
        folder / "examples.npz",
        loss=np.zeros((3, count), np.float32),
        margin=np.zeros((3, count), np.float32),
        correct=np.ones((3, count), np.uint8),
        targets=np.arange(count) % 2 if targets is None else targets,
        cluster=np.array(cluster, np.int8),
        forgetting_score=np.array(forgetting, float),
        first_learned=np.array(first, float),
        learned_for_good=np.array(good, float),
    )


def write_forgotten(folder):
    np.savez(
        folder / "forgotten.npz",
        images=np.full((3, 8, 8, 1), 128, np.uint8),
        targets=np.array([1, 0, 1]),
        indices=np.array([5, 2, 3]),
        forgetting_score=np.array([4.0, 2.0, 2.0]),
    )


@pytest.fixture
def folder(small_study):
    """sgd without clusters, sgd_useful with, sam without the archive; two seeds each."""
    folder = small_study(variants=["sgd", "sgd_useful", "sam"], seeds=[0, 1], claims={})
    nan = np.nan
    for seed in (0, 1):
        write_examples(
            folder / "sgd" / f"seed{seed}",
            cluster=[-1] * 6,
            forgetting=[0, 0, 2, 2, nan, 8],
            first=[1, 1, 2, 2, nan, 3],
            good=[1, 1, 3, 3 + seed, nan, 4],
        )
        write_examples(
            folder / "sgd_useful" / f"seed{seed}",
            cluster=[0, 0, 1, 1, 1, -1],
            forgetting=[1, 3, 5, 7 + 2 * seed, nan, 0],
            first=[1, 2, 3, 3, nan, 1],
            good=[1, 2, 3, 4, nan, 1],
        )
    return folder


def rows_of(tables):
    """The cells of each row of each table, heads first."""
    return [
        [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", t)]
        for t in re.findall(r"<table.*?</table>", tables)
    ]


def test_the_tables_hold_means_over_seeds_of_all_fast_and_slow_examples(folder):
    record = StudyRecord.read(folder)
    forgetting, first, good = rows_of(score_tables(record))
    assert forgetting[0] == ["Forgetting score", "all", "fast", "slow"]
    # Without clusters of its own sgd is split by those of sgd_useful; the example in neither
    # cluster counts for all, the one never visited for nothing.
    assert forgetting[1] == ["sgd", "2.40 ± 0.00", "0.00 ± 0.00", "2.00 ± 0.00"]
    # Slow: (5 + 7) / 2 = 6 and (5 + 9) / 2 = 7 over the two seeds.
    assert forgetting[2] == ["sgd_useful", "3.40 ± 0.28", "2.00 ± 0.00", "6.50 ± 0.71"]
    assert first[1] == ["sgd", "1.80 ± 0.00", "1.00 ± 0.00", "2.00 ± 0.00"]
    assert good[1] == ["sgd", "2.50 ± 0.14", "1.00 ± 0.00", "3.25 ± 0.35"]
    assert len(forgetting) == 3
    assert note(record).endswith("Without clusters of its own: sgd by those of sgd_useful.")


def test_one_seed_has_no_deviation(small_study):
    folder = small_study(variants=["sgd_useful"], seeds=[0], claims={})
    scores = {"forgetting": [0, 1], "first": [1, 2], "good": [1, 3]}
    write_examples(folder / "sgd_useful" / "seed0", cluster=[0, 1], **scores)
    record = StudyRecord.read(folder)
    assert rows_of(score_tables(record))[0][1] == ["sgd_useful", "0.50", "0.00", "1.00"]
    assert "Without clusters" not in note(record)


def test_clusters_of_other_data_are_not_borrowed(folder):
    for seed in (0, 1):
        write_examples(
            folder / "sgd" / f"seed{seed}",
            cluster=[-1] * 6,
            forgetting=[0] * 6,
            first=[1] * 6,
            good=[1] * 6,
            targets=np.zeros(6, int),
        )
    record = StudyRecord.read(folder)
    assert clusters_of(record, record.runs["sgd"][0]) == (None, None)
    assert rows_of(score_tables(record))[0][1] == ["sgd", "0.00 ± 0.00", ABSENT, ABSENT]
    assert "Without clusters" not in note(record)


def test_histograms_show_every_variant_that_was_observed(folder):
    drawings = histograms(StudyRecord.read(folder))
    assert [drawing.alt.split(" were ")[0] for drawing in drawings] == [
        "How slow and fast examples of sgd",
        "How slow and fast examples of sgd_useful",
    ]
    for drawing in drawings:
        assert all(word in drawing.svg for word in ("fast", "slow", "Times forgotten"))


def test_pictures_are_those_of_both_clusters_and_of_the_most_forgotten(folder):
    where = folder / "sgd_useful" / "seed0"
    # The archive of the study has pictures of 40 examples, of which 6 have scores here.
    with np.load(where / "pictures.npz") as file:
        kept = {name: file[name][:6] for name in file.files}
    np.savez(where / "pictures.npz", **kept)
    write_forgotten(folder / "sgd" / "seed1")
    html = sheets(StudyRecord.read(folder))
    assert re.findall(r'alt="([^"]*)"', html) == [
        "2 fast examples",
        "2 slow examples",
        "3 examples, most often forgotten (sgd, seed 1): 4 to 2 times",
    ]
    assert "learnt for good in epoch 3.5 on average" in html


def test_the_section_is_drawn_only_where_there_is_an_archive(folder):
    assert TITLE in write_report(folder).read_text(encoding="utf-8")
    assert len(list((folder / "figures").glob("examples-*.svg"))) == 2
    for path in folder.rglob("examples.npz"):
        path.unlink()
    assert TITLE not in write_report(folder).read_text(encoding="utf-8")
    assert list((folder / "figures").glob("examples-*.svg")) == []


def test_a_damaged_archive_is_told_in_one_line(folder):
    path = folder / "sgd" / "seed0" / "examples.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"examples\.npz must be as it was written.*Delete that"):
        write_report(folder)


def test_scores_that_are_all_equal_have_a_histogram_too(folder):
    scores = {"forgetting": [0] * 6, "first": [1] * 6, "good": [1] * 6}
    write_examples(folder / "sgd" / "seed0", cluster=[-1] * 6, **scores)
    assert len(histograms(StudyRecord.read(folder))) == 2


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1400, True)])
def test_in_a_browser_the_section_fits_and_is_legible(browser, folder, width, dark):
    write_forgotten(folder / "sgd" / "seed0")
    browser.open(write_report(folder), width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
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
    heights = browser.evaluate(
        """[...document.querySelectorAll('figure svg text')].map(t =>
             parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)"""
    )
    assert min(heights) > 8.5
