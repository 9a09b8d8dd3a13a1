"""What makes two runs the same run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.config import difference, fingerprint, load_recipe, to_yaml
from toolkit.config.yaml12 import parse_yaml

Write = Callable[..., Path]


@pytest.mark.parametrize(
    "word",
    [
        "title=other",
        "wandb={mode: disabled}",
        "seeds=0-9",
        "minutes=3",
        "variants={default: {}, other: {trainer.max_epochs: 9}}",
        "claims={c: {_target_: config_parts.Claim, arm: default}}",
        "trainer.devices=2",
        "trainer.accelerator=gpu",
        "trainer.strategy=ddp",
        "trainer.max_epochs=3.0",
        "data.root=/elsewhere",
    ],
)
def test_what_changes_no_result_changes_no_fingerprint(write: Write, word: str) -> None:
    base = "variants: {default: {}}"
    old = load_recipe(write(base)).resolve("default", 0)
    new = load_recipe(write(base), [word]).resolve("default", 0)
    assert fingerprint(new) == fingerprint(old)
    assert difference(old, new) == []


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("model.optimizer.lr=0.2", ["model.optimizer.lr: 0.1 -> 0.2"]),
        ("data.batch_size=8", ["data.batch_size: absent -> 8"]),
        ("~trainer.max_epochs", ["trainer.max_epochs: 3 -> absent"]),
        ("threads=2", ["threads: 1 -> 2"]),
        ("nonfinite=skip", ["nonfinite: 'stop' -> 'skip'"]),
        ("callbacks.margin.every='2'", ["callbacks.margin.every: 2 -> '2'"]),
        ("trainer.x=true", ["trainer.x: absent -> true"]),
        ("trainer.x=[1, [2]]", ["trainer.x.0: absent -> 1", "trainer.x.1.0: absent -> 2"]),
        ("trainer.x=null", ["trainer.x: absent -> null"]),
        ("trainer.x={}", ["trainer.x: absent -> {}"]),
    ],
)
def test_what_changes_the_result_is_named(write: Write, word: str, lines: list[str]) -> None:
    old = load_recipe(write("")).resolve("default", 0)
    new = load_recipe(write(""), [word]).resolve("default", 0)
    assert fingerprint(new) != fingerprint(old)
    assert difference(old, new) == lines


def test_the_seed_belongs_to_the_run(write: Write) -> None:
    recipe = load_recipe(write(""))
    lines = difference(recipe.resolve("default", 0), recipe.resolve("default", 1))
    assert lines == ["data.seed: 0 -> 1", "seed: 0 -> 1"]


def test_a_written_recipe_has_the_fingerprint_of_its_run(write: Write) -> None:
    run = load_recipe(write(""), ["data.root=off", "model.optimizer.lr=1e-3"]).resolve("default", 0)
    again, _ = parse_yaml(to_yaml(run), "f")
    assert fingerprint(again) == fingerprint(run)
