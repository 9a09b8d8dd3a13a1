"""Every shipped recipe trains its real net, at its real input size, on small data of its format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from tests.fake_sets import (
    write_adult,
    write_arrays,
    write_cifar,
    write_images,
    write_stl10,
    write_tiny_imagenet,
    write_waterbirds,
)
from toolkit import config
from toolkit.run import Run
from toolkit.run.joint import train_together
from toolkit.run.rehearsal import rehearse
from toolkit.run.training import train

# The variants that have most of what a recipe adds; for other nets, one each.
CHOSEN = {
    "quickstart": ["sam_useful"],
    "cifar10_useful": ["sam_ta_useful"],
    "cifar10_useful_mini": ["sam_useful"],
    "cifar10_useful_controls": ["sgd_weighted"],
    "cifar10_useful_nets": ["mlp_sam_useful"],
    "cifar100_useful": ["sgd"],
    "stl10_useful": ["sgd"],
    "cinic10_useful": ["sgd"],
    "tinyimagenet_useful": ["sgd"],
    "waterbirds_useful": ["sgd"],
    "cifar10_noise": ["sgd_people"],
    "cifar10_noise_mini": ["sgd_useful"],
    "cifar10_longtail": ["sgd_balanced"],
    "cifar10_longtail_mini": ["sgd_useful"],
    "mnist_useful_mini": ["sgd_longer"],
    "bias_digits": ["group_dro"],
    "bias_adult": ["balanced"],
}
JOINT = [
    "two_layer_cnn",
    "two_layer_cnn_rho",
    "two_layer_cnn_strength",
    "bias_gaussian",
    "bias_spurious",
]
ALL = [(recipe, variant) for recipe, variants in CHOSEN.items() for variant in variants]

pytestmark = pytest.mark.filterwarnings(
    # what so few examples of so many classes lead to
    "ignore:.*have fewer than 2 examples",
    "ignore:no example was selected",
    "ignore:the selected share",
    "ignore:.*has no example of",
    "ignore:.*predictions have collapsed",
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All data sets of the recipes, small and of few classes, where they look for them."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_DATA", str(root))
        write_arrays(root)
        write_adult(root)
        write_stl10(root, patch, (20, 6, 2))
        # CIFAR100 derives from CIFAR10: first what it does not share.
        write_cifar(root, datasets.CIFAR100, patch, True, 20, 3)
        write_cifar(root, datasets.CIFAR10, patch, False, 20)
        for split in ("train", "valid", "test"):
            write_images(root / "CINIC-10" / split, ["bird", "cat"], 4, 32)
        write_tiny_imagenet(root)
        write_waterbirds(root, 32)
        yield root


def resolved(recipe: str, variant: str) -> dict[str, Any]:
    """The configuration of two updates an epoch, two epochs, on the CPU."""
    values = config.load_recipe(recipe).resolve(variant, 0)
    data = values["data"]
    data |= {"batch_size": 4, "train_size": 8, "eval_batch_size": 8}
    if data["_target_"] == "toolkit.data.Digits":
        data["test_size"] = 20
    elif data["_target_"] != "toolkit.data.Adult":
        data["cache"] = None
    if data.get("val_size") is not None:
        data["val_size"] = 4
    if "Waterbirds" in data["_target_"]:
        values["model"]["net"]["pretrained"] = False  # the weights would be downloaded
    if data.get("long_tail"):
        data["train_size"] = 20
        data["long_tail"]["ratio"] = 2
    useful = values["callbacks"].get("useful")
    if useful is not None:
        useful["separation_epochs"] = 1
    values["trainer"] |= {"max_epochs": 1 if useful is None else 2, "accelerator": "cpu"}
    values["trainer"] |= {"check_val_every_n_epoch": 1, "log_every_n_steps": 1}
    values["wandb"] = {"mode": "disabled"}
    return values


def test_none_is_left_out() -> None:
    assert {*CHOSEN, *JOINT} == set(config.list_recipes())


@pytest.mark.filterwarnings("ignore:the fast feature must be learnt")  # in so few updates
@pytest.mark.filterwarnings("ignore:rho must be at most")  # as part of the recipe asks for
@pytest.mark.parametrize("recipe", JOINT)
def test_a_program_of_a_recipe_trains(recipe: str, tmp_path: Path) -> None:
    loaded = config.load_recipe(recipe, ["model.updates=3", "wandb.mode=disabled"])
    heard: list[tuple[str, Any]] = []
    runs = [Run(recipe, v, 0, tmp_path / v, loaded.resolve(v, 0)) for v in loaded.variants]
    train_together(runs, lambda run, kind, content: heard.append((kind, content)))
    results = [content for kind, content in heard if kind == "finished"]
    assert len(results) == len(runs), heard
    assert all(np.isfinite(result["metrics"]["train/loss"]) for result in results)


@pytest.mark.parametrize(("recipe", "variant"), ALL)
def test_a_recipe_trains_on_data_of_its_format(
    recipe: str, variant: str, sets: Path, tmp_path: Path
) -> None:
    values = resolved(recipe, variant)
    result = train(Run(recipe, variant, 0, tmp_path / "run", values))
    assert result["updates"] >= 2
    assert np.isfinite(result["metrics"]["train/loss"])
    assert 0 <= result["metrics"]["test/error"] <= 1
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(v.isfinite().all() for v in state["state_dict"].values() if v.is_floating_point())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(CHOSEN))
def test_every_variant_of_a_recipe_builds_and_fits_its_data(recipe: str, sets: Path) -> None:
    variants = config.load_recipe(recipe).variants
    rehearse([Run(recipe, v, 0, Path(), resolved(recipe, v)) for v in variants])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["vgg19", "vgg19_sam_useful", "densenet_sam", "vit_sam_useful"])
def test_the_other_nets_train(variant: str, sets: Path, tmp_path: Path) -> None:
    values = resolved("cifar10_useful_nets", variant)
    result = train(Run("cifar10_useful_nets", variant, 0, tmp_path / "run", values))
    assert result["updates"] >= 2
    assert np.isfinite(result["metrics"]["train/loss"])
