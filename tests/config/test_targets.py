"""Signatures of targets, also where annotations cannot be evaluated or do not exist."""

import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.config.annotations import describe, members
from toolkit.config.bind import Binder, Factory
from toolkit.config.fits import makes_factory
from toolkit.config.targets import find_target, signature_of

SOURCE = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Thing

class Late:
    def __init__(self, width: int, thing: Thing, names: list[str] | None = None) -> None: ...
"""


def test_what_is_imported_for_type_checkers_only_hides_no_other_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config_late.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    signature = signature_of(find_target("config_late.Late", ["config_late"]))
    assert dict(signature.arguments) == {"width": int, "thing": Any, "names": list[str] | None}
    assert signature.required == ("width", "thing")
    assert signature.optional_none == {"names"}


def test_a_target_without_a_signature_takes_anything() -> None:
    signature = signature_of(torch.relu)
    assert signature.is_open
    assert signature.arguments == {}


def takes_anything(first: int, **kwargs: Any) -> None: ...


def test_keywords_that_lead_nowhere_take_any_name() -> None:
    assert signature_of(takes_anything).is_open
    assert list(signature_of(takes_anything).arguments) == ["first"]


T = typing.TypeVar("T", bound=nn.Module)
Choice = typing.TypeVar("Choice", int, str)
Identifier = typing.NewType("Identifier", int)


def test_aliases_and_variables_are_followed() -> None:
    assert members(T) == [nn.Module]
    assert members(Choice) == [int, str]
    assert members(Identifier) == [int]
    assert members(typing.Annotated[int | None, "x"]) == [int, type(None)]
    assert members(None) == [type(None)]
    assert members("Unknown") == [Any]
    assert describe(dict[str, int]) == "a mapping to a whole number"
    assert describe(Path) == "a path"


class NotCallable:
    def __init__(self, width: int = 1) -> None: ...


def untyped(width, height=1): ...


@pytest.mark.parametrize(
    ("target", "given", "annotation", "is_factory"),
    [
        (torch.optim.SGD, ["lr"], Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], True),
        (torch.optim.SGD, ["lr"], Callable[..., Any], True),  # params are missing
        (nn.MSELoss, [], Callable[[torch.Tensor, torch.Tensor], torch.Tensor], False),
        (nn.MSELoss, [], Callable[..., Any], False),  # itself a function
        (nn.MSELoss, [], nn.Module | Callable[..., Any], False),
        (nn.MSELoss, [], Any, False),
        (NotCallable, [], Callable[..., Any], True),  # what it makes cannot be called
        (untyped, [], Callable[[int], int], True),
        (untyped, ["width"], Callable[[int], int], True),
        (nn.Linear, [], Callable[[int, int], nn.Module], True),
    ],
)
def test_a_node_is_a_factory_where_a_call_gives_what_is_declared(
    target: Any, given: list[str], annotation: Any, is_factory: bool
) -> None:
    assert makes_factory(signature_of(target), given, annotation) is is_factory


def test_a_callable_that_does_not_say_its_arguments_may_give_any() -> None:
    def refuse(*fault: object) -> None:
        raise AssertionError(fault)

    node = {"_target_": "torch.optim.SGD", "lr": 0.5}
    factory = Binder(refuse).bind(node, Callable[..., Any], ()).build()
    assert isinstance(factory, Factory)
    assert factory(nn.Linear(1, 1).parameters()).defaults["lr"] == 0.5
    assert factory(nn.Linear(1, 1).parameters(), momentum=0.9).defaults["momentum"] == 0.9
