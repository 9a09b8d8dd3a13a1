"""Two processes with different halves say the same as one process with the whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, run_fit, write_recipe

pytestmark = pytest.mark.ranks

_TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "toolkit.fit")
_FIXED = ("--variants", "sgd,sam_useful", "--seeds", "0")
# 60 examples in batches of 14: a partial last batch of 4, and 7 examples a rank. The colour is a
# spurious feature whose rare groups are not on every rank in every batch.
_CHANGES = (
    "data.batch_size=14",
    "data.spurious={_target_: toolkit.data.Spurious, kind: patch, agreement: 0.95}",
)


def _study(
    folder: Path, *arguments: str, launcher: tuple[str, ...] = ("-m", "toolkit.fit")
) -> Path:
    folder.mkdir()
    write_recipe(folder / "tiny.yaml")
    done = run_fit(["tiny.yaml", *_FIXED, *_CHANGES, *arguments], folder, launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "tiny"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study on one process."""
    return _study(tmp_path_factory.mktemp("ranks") / "one")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study on two processes for each run."""
    return _study(tmp_path_factory.mktemp("ranks") / "two", "trainer.devices=2")


def _result(study: Path, variant: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((study / variant / "seed0" / "result.json").read_text())
    return result


def _compare(one: Path, other: Path, variant: str) -> None:
    first, second = _result(one, variant), _result(other, variant)
    assert (first["world_size"], second["world_size"]) == (1, 2)
    for key in ("updates", "epochs", "examples_seen"):
        assert first[key] == second[key], key
    assert first["metrics"].keys() == second["metrics"].keys()
    for key, value in first["metrics"].items():
        if value is None:  # a group without an example
            assert second["metrics"][key] is None, key
        else:
            assert second["metrics"][key] == pytest.approx(value, rel=1e-3, abs=1e-4), key
    states = [
        torch.load(study / variant / "seed0" / "checkpoints" / "last.ckpt", weights_only=True)[
            "state_dict"
        ]
        for study in (one, other)
    ]
    for name, weights in states[0].items():
        torch.testing.assert_close(states[1][name], weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", ["sgd", "sam_useful"])
def test_two_ranks_equal_one_process(one: Path, two: Path, variant: str) -> None:
    _compare(one, two, variant)


def test_two_ranks_upsample_the_same_examples(one: Path, two: Path) -> None:
    selections = [
        json.loads((study / "sam_useful" / "seed0" / "useful.json").read_text())["selected"]
        for study in (one, two)
    ]
    assert selections[0] == selections[1]
    assert selections[0]


def test_processes_of_torchrun_equal_one_process(one: Path, tmp_path: Path) -> None:
    _compare(one, _study(tmp_path / "launched", "--overwrite", launcher=_TORCHRUN), "sgd")


def test_a_run_that_fails_under_torchrun_says_why_in_one_line(tmp_path: Path) -> None:
    write_recipe(tmp_path / "tiny.yaml", TINY)
    arguments = ["tiny.yaml", "--variants", "sgd", "--seeds", "0", "model.optimizer.lr=1e30"]
    done = run_fit(arguments, tmp_path, _TORCHRUN)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("sgd/seed0 failed: ")]
    assert lines
    assert all("must be finite" in line for line in lines)


def test_a_batch_that_does_not_divide_is_refused_with_sizes_that_do(tmp_path: Path) -> None:
    write_recipe(tmp_path / "tiny.yaml", TINY)
    done = run_fit(["tiny.yaml", *_FIXED, "trainer.devices=2", "data.batch_size=15"], tmp_path)
    assert done.returncode in (2, 3)
    assert "14 or 16" in done.stdout + done.stderr


def test_a_nan_on_one_rank_ends_both(tmp_path: Path) -> None:
    write_recipe(tmp_path / "tiny.yaml", TINY)
    done = run_fit(
        ["tiny.yaml", "--variants", "sgd", "--seeds", "0", "trainer.devices=2",
         "model.optimizer.lr=1e30"],
        tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert "must be finite" in done.stdout
