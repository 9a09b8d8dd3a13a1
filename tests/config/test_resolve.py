"""Interpolation, which comes last, and the callback that SAM needs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.config import RecipeError, load_recipe

Write = Callable[..., Path]


def test_interpolation_comes_after_every_override(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFIG_TEST_ROOT", "/somewhere")
    path = write(
        """
        description: ${model.net.width} wide, seed ${seed}
        variants: {a: {model.net.width: 7, data.root: "${oc.env:CONFIG_TEST_ROOT}/x"}}
        """
    )
    run = load_recipe(path, ["trainer.max_steps=${model.net.width}"]).resolve("a", 4)
    assert run["description"] == "7 wide, seed 4"
    assert run["data"] == {"_target_": "config_parts.Data", "seed": 4, "root": "/somewhere/x"}
    assert run["trainer"]["max_steps"] == 7


def test_whole_nodes_neighbours_and_defaults_can_be_interpolated(write: Write) -> None:
    words = [
        "model.loss=${callbacks.margin}",
        "data.root=${oc.env:CONFIG_TEST_UNSET,data}",
        "data.batch_size=${.seed}",
        "model.net.sizes=[1, '${seed}']",
    ]
    run = load_recipe(write(""), words).resolve("default", 2)
    assert run["model"]["loss"] == {"_target_": "config_parts.Callback", "every": 2}
    assert run["data"]["root"] == "data"
    assert run["data"]["batch_size"] == 2
    assert run["model"]["net"]["sizes"] == [1, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${data.sed}", r"data.root: must name a key of the recipe.*'\$\{data.seed\}'"),
        ("${oc.env:CONFIG_TEST_UNSET}", "needs the environment variable CONFIG_TEST_UNSET"),
        ("${data.root}", "must not refer to itself"),
        ("${nothing:3}", "must use a resolver of OmegaConf such as oc.env"),
        ("${data", "must be an interpolation that closes"),
    ],
)
def test_an_interpolation_that_stands_for_nothing_is_a_fault(
    write: Write, value: str, message: str
) -> None:
    recipe = load_recipe(write(""), [f"data.root='{value}'", "model.net.width=${nowhere}"])
    with pytest.raises(RecipeError, match=message) as caught:
        recipe.resolve("default", 0)
    assert len(caught.value.faults) == 2


def test_resolving_leaves_the_recipe_as_it_is(write: Write) -> None:
    recipe = load_recipe(write(""))
    run = recipe.resolve("default", 1)
    run["model"]["net"]["width"] = 99
    run["callbacks"].clear()
    assert recipe.resolve("default", 2)["model"]["net"]["width"] == 3
    assert list(recipe.resolve("default", 2)["callbacks"]) == ["margin"]


@pytest.mark.parametrize("target", ["toolkit.optim.SAM", "toolkit.optim.ASAM"])
def test_sam_brings_its_callback_unless_it_is_there(write: Write, target: str) -> None:
    recipe = load_recipe(write(""), [f"model.optimizer={{_target_: {target}}}"])
    callbacks = recipe.resolve("default", 0)["callbacks"]
    assert callbacks["sharpness_aware"] == {"_target_": "callbacks.SharpnessAware"}
    own = [f"model.optimizer={{_target_: {target}}}"]
    own += ["callbacks.mine={_target_: callbacks.SharpnessAware}"]
    callbacks = load_recipe(write(""), own).resolve("default", 0)["callbacks"]
    assert list(callbacks) == ["margin", "mine"]


def test_other_optimizers_bring_no_callback(write: Write) -> None:
    assert list(load_recipe(write("")).resolve("default", 0)["callbacks"]) == ["margin"]
