"""All faults of all variants, with file, line and the variants concerned."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from toolkit.config import RecipeError, check, instantiate, load_recipe

Write = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_a_right_recipe_passes(write: Write) -> None:
    check(load_recipe(write("")))


def test_faults_of_all_parts_are_told_once_with_place_and_variants(
    write: Write, faults_of: Faults
) -> None:
    path = write(
        """
        checkpoint: {monitor: val/eror, mode: min}
        report: {metric: test/acc, metrics: [test/erorr]}
        variants:
          a: {}
          b: {model.optimizer.momentun: 3}
          c: {extends: b, trainer.max_epoch: 4, data.root: "${nowhere}"}
        claims:
          first: {_target_: config_parts.Claim, arm: a, baseline: b, metric: test/lss, controls: 3}
          second: {_target_: config_parts.Clam}
        """
    )
    faults = faults_of(check, load_recipe(path, ["model.net.width=wide"]))
    expected = [
        "command line: model.net.width: must be a whole number, got 'wide'.",
        "mine.yaml:16: model.optimizer.momentun: (variants b, c) is no argument of SGD.",
        "mine.yaml:17: trainer.max_epoch: (variant c) is no argument of Trainer.",
        "mine.yaml:17: data.root: (variant c) must name a key of the recipe, got '${nowhere}'.",
        "mine.yaml:12: checkpoint.monitor: must be a metric that the run records, such as",
        "mine.yaml:13: report.metrics: must be a metric that the run records",
        "mine.yaml:19: claims.first.metric: must be a metric that the run records",
        "mine.yaml:19: claims.first.controls: must be a list of text, got 3.",
        "mine.yaml:20: claims.second._target_: must name a class or function; config_parts.Clam",
    ]
    for line in expected:
        assert sum(line in fault for fault in faults) == 1, line
    assert len(faults) == len(expected)


def test_only_the_chosen_variants_are_checked(write: Write, faults_of: Faults) -> None:
    recipe = load_recipe(write("variants: {a: {}, b: {data.rot: x}}"))
    check(recipe, ["a"])
    faults = faults_of(check, recipe, ["b"])
    assert "data.rot: is no argument of Data." in faults[0]
    assert "Did you mean 'root'?" in faults[0]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("callbacks.margin.epochs=3", "callbacks.margin.epochs: must be below trainer.max_epochs"),
        ("callbacks.margin.every=0", "callbacks.margin.every: must be at least 1, got 0."),
        ("trainer.callbacks=[]", "must be left out: the run sets it; write it at the top level."),
        ("trainer.logger=false", "trainer.logger: must be left out: the run sets it."),
        ("trainer.precision=bf17", "trainer.precision: must be one of.*Did you mean 'bf16'"),
        ("device='${seed}'", "device: must be cpu or gpu, got 0"),
        ("checkpoint={monitor: val/margn/min, mode: min}", "Did you mean 'val/margin/min'"),
        ("checkpoint={monitor: seconds, mode: min}", "checkpoint.monitor: must be a metric"),
    ],
)
def test_what_only_the_whole_recipe_shows_is_told(write: Write, word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        check(load_recipe(write(""), [word]))
    assert len(caught.value.faults) == 1


def test_metrics_that_a_callback_declares_are_known(write: Write) -> None:
    for name in ("val/margin/median", "val/worst_group_acc", "train/loss"):
        check(load_recipe(write(""), [f"checkpoint={{monitor: {name}, mode: max}}"]))


def test_a_foreign_callback_that_declares_nothing_may_log_anything(write: Write) -> None:
    words = ["callbacks.own={_target_: config_parts.Foreign}"]
    words += ["checkpoint={monitor: val/f1, mode: max}"]
    check(load_recipe(write(""), words))


def test_strategies_and_plugins_of_the_trainer_are_nodes(write: Write, faults_of: Faults) -> None:
    node = "{_target_: lightning.pytorch.strategies.DDPStrategy, find_unused_parameters: true}"
    check(load_recipe(write(""), [f"trainer.strategy={node}"]))
    faults = faults_of(
        check, load_recipe(write(""), ["trainer.strategy={_target_: torch.nn.ReLU}"])
    )
    assert "trainer.strategy: must be text or a node whose _target_ makes a Strategy" in faults[0]


def test_nothing_is_built_of_model_and_data(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("is built")

    monkeypatch.setattr(nn.Linear, "reset_parameters", refuse)
    recipe = load_recipe(write(""))
    check(recipe)
    with pytest.raises(RecipeError, match="is built"):
        instantiate(recipe.resolve("default", 0)["model"], recipe.packages)
