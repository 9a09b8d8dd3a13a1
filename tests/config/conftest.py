"""Recipes in temporary folders, over a small package of parts."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BASIC = """
    packages: [config_parts]
    seeds: 0-2
    data: {_target_: config_parts.Data, seed: "${seed}"}
    model:
      _target_: config_parts.Model
      net: {_target_: config_parts.linear, width: 3}
      optimizer: {_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9}
    trainer: {max_epochs: 3}
    callbacks:
      margin: {_target_: config_parts.Callback, every: 2}
"""


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "package")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a recipe ``name.yaml`` into the temporary folder."""

    def write_recipe(text: str, name: str = "mine", *, basic: bool = True) -> Path:
        path = tmp_path / f"{name}.yaml"
        whole = textwrap.dedent(BASIC) + textwrap.dedent(text) if basic else textwrap.dedent(text)
        path.write_text(whole.lstrip(), encoding="utf-8")
        return path

    return write_recipe


@pytest.fixture
def faults_of() -> Callable[..., list[str]]:
    """The lines of the ``RecipeError`` that a call raises."""
    from toolkit.config import RecipeError

    def faults(call: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            call(*args, **kwargs)
        lines = str(caught.value).splitlines()
        assert len(lines) == len(caught.value.faults)  # one line each
        return lines

    return faults
