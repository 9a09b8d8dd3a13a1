"""study.json: means over seeds, claims, and the same again from the record alone."""

import json
import statistics

import pytest

from toolkit.claims import (
    Comparison,
    build_study,
    claim_from_node,
    read_results,
    summarize,
)
from toolkit.config import list_recipes, load_recipe
from toolkit.history import read_json, write_json

NODE = {
    "_target_": "toolkit.claims.Comparison",
    "text": "SAM is better",
    "source": "Fig. 4",
    "metric": "test/error",
    "arm": "sam",
    "baseline": "sgd",
    "expect": "lower",
    "tolerance": 0,
    "requires": {"variant": "sgd", "metric": "test/error", "at_most": 1},
}
ERRORS = {"sgd": (0.08, 0.09, 0.09), "sam": (0.05, 0.06, 0.05)}


def run(variant, seed, error):
    return {
        "recipe": "toy",
        "variant": variant,
        "seed": seed,
        "status": "finished",
        "seconds": 1.5 + seed,
        "updates": 100,
        "epochs": 10,
        "examples_seen": 3200,
        "metrics": {"test/error": error, "test/nan": None},
    }


@pytest.fixture
def results():
    return {
        variant: {seed: run(variant, seed, error) for seed, error in enumerate(errors)}
        for variant, errors in ERRORS.items()
    }


@pytest.fixture
def folder(tmp_path, results):
    for variant, runs in results.items():
        for seed, content in runs.items():
            write_json(content, tmp_path / variant / f"seed{seed}" / "result.json")
    return tmp_path


def study_of(results):
    return build_study({"recipe": "toy", "title": "Toy"}, results, {"helps": NODE})


def test_moments_are_those_of_the_sample(results):
    study = study_of(results)
    errors = study["variants"]["sgd"]["metrics"]["test/error"]
    assert study["title"] == "Toy"
    assert study["variants"]["sgd"]["n"] == 3
    assert errors["values"] == [0.08, 0.09, 0.09]
    assert errors["mean"] == pytest.approx(0.26 / 3)
    assert errors["std"] == pytest.approx(statistics.stdev([0.08, 0.09, 0.09]))
    assert study["variants"]["sgd"]["seconds"]["values"] == [1.5, 2.5, 3.5]


def test_absent_values_and_the_std_of_one_are_null(results):
    study = study_of({"sgd": {0: results["sgd"][0]}})
    metrics = study["variants"]["sgd"]["metrics"]
    assert metrics["test/error"]["std"] is None
    assert metrics["test/nan"] == {"mean": None, "std": None, "values": [None]}
    json.dumps(study, allow_nan=False)


def test_variants_keep_the_recipes_order_even_without_runs(results):
    study = study_of({"zero": {}, **results})
    assert list(study["variants"]) == ["zero", "sgd", "sam"]
    assert study["variants"]["zero"]["n"] == 0


def test_failed_runs_are_listed_and_not_counted(results):
    results["sam"][1] = {"status": "failed", "error": "out of memory"}
    study = study_of(results)
    assert study["failed"] == [{"variant": "sam", "seed": 1, "error": "out of memory"}]
    assert study["variants"]["sam"]["seeds"] == [0, 2]
    assert study["claims"][0]["verdict"] == "not tested"


def test_summary_from_the_record_equals_the_study_as_written(folder, results):
    write_json(study_of(results), folder / "study.json")
    written = read_json(folder / "study.json")
    write_json(summarize(folder), folder / "study.json")
    assert read_json(folder / "study.json") == written
    assert written["claims"][0]["verdict"] == "supported"


def test_summary_follows_the_record(folder, results):
    write_json(study_of(results), folder / "study.json")
    for seed, error in enumerate((0.2, 0.21, 0.2)):
        write_json(run("sam", seed, error), folder / "sam" / f"seed{seed}" / "result.json")
    assert summarize(folder)["claims"][0]["verdict"] == "refuted"


def test_summary_keeps_failures_that_have_no_result(folder, results):
    results["sam"][7] = {"status": "failed", "error": "out of memory"}
    write_json(study_of(results), folder / "study.json")
    assert summarize(folder)["failed"] == [{"variant": "sam", "seed": 7, "error": "out of memory"}]


def test_runs_without_a_study_are_summarised_without_claims(folder):
    study = summarize(folder)
    assert study["recipe"] == folder.name
    assert study["claims"] == []
    assert study["variants"]["sam"]["n"] == 3


def test_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold study\.json or .*, got neither"):
        summarize(tmp_path)


def test_claim_that_cannot_be_built_is_not_tested(folder, results):
    study = study_of(results)
    study["claim_nodes"]["mine"] = {"_target_": "no_such_package.Claim", "text": "t", "source": "s"}
    write_json(study, folder / "study.json")
    mine = summarize(folder)["claims"][1]
    assert (mine["text"], mine["verdict"]) == ("t", "not tested")
    assert "no_such_package" in mine["sentence"]


def test_results_are_read_in_the_order_of_seeds(folder):
    write_json(run("sgd", 10, 0.1), folder / "sgd" / "seed10" / "result.json")
    write_json({}, folder / "sgd" / "seed_old" / "result.json")
    assert list(read_results(folder)["sgd"]) == [0, 1, 2, 10]


def test_node_builds_the_claim_it_describes():
    claim = claim_from_node(NODE)
    assert isinstance(claim, Comparison)
    assert claim.requires is not None
    assert claim.requires.at_most == 1.0


@pytest.mark.parametrize(
    "change",
    [{"_target_": "toolkit.claims.Nothing"}, {"armm": "sgd"}, {"requires": {"variant": "sgd"}}],
)
def test_node_that_fits_no_claim_is_refused(change):
    with pytest.raises(ValueError, match="must be a class that takes its arguments"):
        claim_from_node({**NODE, **change})


def test_node_of_another_class_is_refused():
    with pytest.raises(ValueError, match=r"must have text, source, requires and judge"):
        claim_from_node({"_target_": "collections.OrderedDict"})


@pytest.mark.parametrize("recipe", list_recipes())
def test_claims_of_shipped_recipes_are_built_as_the_summary_builds_them(recipe: str) -> None:
    """A floor written as a node, as recipes must write it, once made every claim *not tested*."""
    nodes = load_recipe(recipe).claims
    claims = {name: claim_from_node(node) for name, node in nodes.items()}
    assert claims
    for name, node in nodes.items():
        floor = node.get("requires")
        assert (floor is None) == (claims[name].requires is None)
        if floor is not None:
            assert claims[name].requires.at_least == floor["at_least"]
