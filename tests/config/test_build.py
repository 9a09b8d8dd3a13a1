"""Objects from nodes: conversion to declared types, factories, nested nodes, refusals."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from toolkit.config import instantiate
from toolkit.config.yaml12 import read_scalar

Faults = Callable[..., list[str]]
PACKAGES = ("config_parts",)
NET = {"_target_": "config_parts.linear", "width": 3}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}


def build(target: str, **arguments: Any) -> Any:
    return instantiate({"_target_": target, **arguments}, PACKAGES)


def model(**arguments: Any) -> Any:
    return build("config_parts.Model", **{"net": NET, "optimizer": SGD, **arguments})


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("text", "off", "off"),
        ("text", read_scalar("010"), "010"),
        ("text", read_scalar("1.10"), "1.10"),
        ("text", 3, "3"),
        ("text", True, "true"),
        ("flag", True, True),
        ("count", 3, 3),
        ("count", read_scalar("1e3"), 1000),
        ("count", "3", 3),  # an environment variable is always text
        ("ratio", 1, 1.0),
        ("ratio", "1e-3", 0.001),
        ("maybe", None, None),
        ("maybe", 4, 4),
        ("mode", "fast", "fast"),
        ("sizes", [1, 2], [1, 2]),
        ("pair", [1, 2], (1, 2)),
        ("weights", {"a": 1}, {"a": 1.0}),
        ("weights", None, None),
        ("path", "a/b", Path("a/b")),
        ("anything", {"a": ["1", 2, "off"]}, {"a": ["1", 2, "off"]}),
        ("untyped", "1:30", "1:30"),
        ("kind", "torch.nn.Linear", nn.Linear),
    ],
)
def test_values_are_converted_to_the_declared_type(name: str, given: object, taken: object) -> None:
    value = build("config_parts.Typed", **{name: given}).given[name]
    assert value == taken
    assert type(value) is type(taken)


def test_an_enumeration_takes_the_names_of_its_members() -> None:
    assert build("config_parts.Typed", colour="GREEN").given["colour"].name == "GREEN"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("flag", "off", "flag: must be true or false, got 'off'."),
        ("flag", 1, "flag: must be true or false, got 1."),
        ("flag", "ture", "Did you mean 'true'?"),
        ("count", "1:30", "count: must be a whole number, got '1:30'."),
        ("count", 1.5, "count: must be a whole number, got 1.5."),
        ("count", True, "count: must be a whole number, got True."),
        ("count", None, "count: must be a whole number, got null."),
        ("maybe", "x", "maybe: must be a whole number or null, got 'x'."),
        ("mode", "fsat", "mode: must be one of 'slow', 'fast', got 'fsat'. Did you mean 'fast'?"),
        ("colour", "GREEM", "must be one of RED, GREEN, got 'GREEM'. Did you mean 'GREEN'?"),
        ("sizes", [1, "a"], "sizes: must be a list of a whole number, got [1, 'a']."),
        ("pair", [1], "pair: must be a list of 2: a whole number, a whole number, got [1]."),
        ("weights", {"a": "b"}, "weights: must be a mapping to a number or null, got {'a': 'b'}."),
        ("count", NET, "count: must be a whole number, got config_parts.linear."),
        ("kind", "torch.nn.Linaer", "Did you mean 'torch.nn.Linear'?"),
        ("layers", [NET, 3], "layers.1: must be a node whose _target_ makes a Module, got 3."),
        ("layers", 3, "layers: must be a list of a node whose _target_ makes a Module or null"),
        ("losses", {"a": "torch.nn.functional.l1_los"}, "losses.a: must name a class or function"),
    ],
)
def test_a_wrong_type_is_told_in_words(
    faults_of: Faults, name: str, given: object, message: str
) -> None:
    faults = faults_of(build, "config_parts.Typed", **{name: given})
    assert len(faults) == 1
    assert message in faults[0]


def test_nodes_in_lists_and_mappings_are_built() -> None:
    given = build(
        "config_parts.Typed",
        layers=[NET, {"_target_": "torch.nn.ReLU"}],
        losses={"a": "torch.nn.functional.l1_loss", "b": {"_target_": "torch.nn.MSELoss"}},
        anything=[{"deep": NET}],
    ).given
    assert [type(layer) for layer in given["layers"]] == [nn.Linear, nn.ReLU]
    assert given["losses"]["a"] is nn.functional.l1_loss
    assert isinstance(given["losses"]["b"], nn.MSELoss)
    assert isinstance(given["anything"][0]["deep"], nn.Linear)


def test_positional_arguments_are_given_by_the_name_of_the_star() -> None:
    net = build("torch.nn.Sequential", args=[NET, {"_target_": "torch.nn.ReLU"}])
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU]


def test_an_optimizer_factory_makes_a_new_one_each_time() -> None:
    built = model()
    parameters = list(built.net.parameters())
    one, other = built.optimizer(parameters), built.optimizer(parameters)
    assert isinstance(one, torch.optim.SGD)
    assert one is not other
    assert one.defaults["lr"] == 0.1
    assert repr(built.optimizer) == "SGD(..., lr=0.1)"


def test_factories_nest_and_share_nothing() -> None:
    node = {"_target_": "config_parts.Wrapper", "base": SGD, "rho": 1}
    built = model(optimizer=node)
    one, other = (built.optimizer(built.net.parameters()) for _ in range(2))
    assert one.base is not other.base
    assert isinstance(one.base, torch.optim.SGD)
    assert one.rho == 1.0


def test_factories_can_be_pickled_and_copied() -> None:
    factory = model().optimizer
    for again in (pickle.loads(pickle.dumps(factory)), copy.deepcopy(factory)):
        assert again(nn.Linear(1, 1).parameters()).defaults["lr"] == 0.1


def schedule_of(**node: Any) -> Any:
    built = model(schedule=node)
    return built.schedule(built.optimizer(built.net.parameters()), 50)


def test_a_schedule_takes_the_number_of_updates_unless_the_recipe_gives_it() -> None:
    cosine = "torch.optim.lr_scheduler.CosineAnnealingLR"
    assert schedule_of(_target_=cosine).T_max == 50
    assert schedule_of(_target_=cosine, T_max=7).T_max == 7
    assert schedule_of(_target_="config_parts.decay", power=2) == (50, 2.0)


def test_a_number_of_updates_is_never_taken_for_something_else(faults_of: Faults) -> None:
    name = "torch.optim.lr_scheduler"
    assert schedule_of(_target_=f"{name}.ExponentialLR", gamma=0.5).gamma == 0.5
    assert schedule_of(_target_=f"{name}.LinearLR").start_factor == pytest.approx(1 / 3)
    faults = faults_of(model, schedule={"_target_": f"{name}.ExponentialLR"})
    assert "schedule: must give ExponentialLR its argument gamma (a number)." in faults[0]


def test_a_function_may_be_given_by_its_path_or_with_arguments_or_as_an_object() -> None:
    logits, targets = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    plain = model(loss="torch.nn.functional.cross_entropy").loss
    assert plain is nn.functional.cross_entropy
    smooth = {"label_smoothing": 0.5}
    function = model(loss={"_target_": "torch.nn.functional.cross_entropy", **smooth}).loss
    layer = model(loss={"_target_": "torch.nn.CrossEntropyLoss", **smooth}).loss
    expected = nn.functional.cross_entropy(logits, targets, label_smoothing=0.5)
    assert function(logits, targets) == expected
    assert isinstance(layer, nn.CrossEntropyLoss)
    assert layer(logits, targets) == expected


def test_class_methods_and_builders_are_targets() -> None:
    assert build("config_parts.Base.wide", depth=2).width == 100
    assert build("config_parts.linear", width=4, bias=False).bias is None


def test_arguments_of_a_base_class_pass_through_keywords(faults_of: Faults) -> None:
    child = build("config_parts.Child", extra="e", width=3)
    assert (child.width, child.extra) == (3, "e")
    faults = faults_of(build, "config_parts.Child", wdith=3, depth="x")
    assert "wdith: is no argument of Child. Accepted: extra, width, depth" in faults[0]
    assert "Did you mean 'width'?" in faults[0]
    assert "depth: must be a whole number, got 'x'." in faults[1]


def test_all_faults_of_all_nodes_are_told_at_once(faults_of: Faults) -> None:
    faults = faults_of(
        model,
        net={"_target_": "torch.nn.Linear", "in_features": "a", "bis": True},
        optimizer={"_target_": "torch.optim.SDG", "base": {"_target_": "torch.nope.X"}},
        lost=3,
    )
    assert [fault.split(":")[0] for fault in faults] == [
        *("net.in_features", "net.bis", "net", "optimizer._target_", "optimizer.base._target_"),
        "lost",
    ]
    assert "must give Linear its argument out_features (a whole number)." in faults[2]
    assert "Did you mean 'torch.optim.SGD'?" in faults[3]
    assert "Did you mean 'loss'?" in faults[5]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("os.system", "must lie in one of callbacks, diffusers"),
        ("torch.os.system", "torch.os.system leads to os"),
        ("config_parts.Path", "config_parts.Path leads to pathlib"),
        ("torch.nn._reduction", "torch.nn._reduction does not exist"),
        ("torch.optim.sgd", "torch.optim.sgd is a module. Did you mean 'torch.optim.SGD'?"),
        ("torch.n.Linear", "torch.n does not exist. Did you mean 'torch.nn.Linear'?"),
        ("torch.nn.fucntional.relu", "Did you mean 'torch.nn.functional.relu'?"),
        ("config_parts.number", "must name a class or function, got config_parts.number, a int"),
        ("config_parts.Base.wied", "Did you mean 'config_parts.Base.wide'?"),
        ("config_absent.X", "must lie in one of"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(faults_of: Faults, target: str, message: str) -> None:
    faults = faults_of(build, target)
    assert len(faults) == 1
    assert message in faults[0]


def test_an_import_that_fails_is_told_in_one_line(
    faults_of: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config_broken.py").write_text('raise RuntimeError("broken\\non import")')
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("config_broken", "config_absent")
    faults = faults_of(instantiate, {"_target_": "config_broken.X"}, packages)
    assert "config_broken.X raised RuntimeError: broken on import." in faults[0]
    faults = faults_of(instantiate, {"_target_": "config_absent.X"}, packages)
    assert "needs the package config_absent, which is not installed." in faults[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"net": SGD}, "net: must be a node whose _target_ makes a Module, got torch.optim.SGD."),
        ({"net": "torch.nn.ReLU"}, "Write {_target_: torch.nn.ReLU}."),
        ({"net": None}, "net: must be a node whose _target_ makes a Module, got null."),
        ({"loss": 3}, "loss: must be a function, as a dotted path or a node with a _target_"),
        ({"loss": "config_parts.one_argument"}, "must take 2 arguments, got one_argument, which"),
        ({"optimizer": {**SGD, "lr": "x"}}, "optimizer.lr: must be a number or a node whose"),
        (
            {"optimizer": {"_target_": "config_parts.Wrapper"}},
            "must give Wrapper its argument base",
        ),
        (
            {"optimizer": {"_target_": "config_parts.Wrapper", "base": SGD, "lr": 3}},
            "optimizer.lr: is no argument of Wrapper. Accepted: params, base, rho. "
            "Did you mean 'base.lr'?",
        ),
    ],
)
def test_what_does_not_fit_a_declared_object_is_told(
    faults_of: Faults, arguments: dict[str, Any], message: str
) -> None:
    faults = faults_of(model, **arguments)
    assert len(faults) == 1
    assert message in faults[0]


def test_a_constructor_s_complaint_is_told_at_its_argument(faults_of: Faults) -> None:
    node = {"_target_": "config_parts.Base", "width": 0}
    faults = faults_of(instantiate, node, PACKAGES, "model.net")
    assert faults == ["model.net.width: must be at least 1, got 0."]
    built = model(optimizer={**SGD, "lr": -1})
    faults = faults_of(built.optimizer, built.net.parameters())
    assert faults == ["optimizer: must suit SGD: ValueError: Invalid learning rate: -1.0"]
    faults = faults_of(build, "torch.nn.Linear", in_features=-1, out_features=2)
    assert "must suit Linear: RuntimeError: " in faults[0]


def test_memory_that_runs_out_is_no_fault_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(nn.Linear, "reset_parameters", full)
    with pytest.raises(torch.OutOfMemoryError):
        build("config_parts.linear", width=3)


def test_objects_made_before_pass_through() -> None:
    node = {"_target_": "lightning.Trainer", "max_epochs": 2, "accelerator": "cpu"}
    extra = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = instantiate(node, callbacks=[L.Callback()], enable_model_summary=False, **extra)
    assert trainer.max_epochs == 2
    net = instantiate({"_target_": "torch.nn.Linear", "in_features": 2}, out_features=5)
    assert net.out_features == 5


def test_what_is_no_node_is_refused(faults_of: Faults) -> None:
    assert "must be a node with a _target_, got {'a': 1}" in faults_of(instantiate, {"a": 1})[0]


def test_torchvision_s_keywords_are_known(faults_of: Faults) -> None:
    faults = faults_of(build, "torchvision.models.resnet18", num_clases=10, weights="DEFAULTS")
    assert "Did you mean 'num_classes'?" in faults[0]
    assert "weights: must be one of" in faults[1]
    assert "Did you mean 'DEFAULT'?" in faults[1]
