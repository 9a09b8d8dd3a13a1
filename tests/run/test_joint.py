"""Runs that train as one program: their folders, and what a kill, a NaN or a lock changes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import run_fit, write_recipe
from toolkit import config, history
from toolkit.evaluate import load_run
from toolkit.preview import preview
from toolkit.run import FolderLock, Run, joint
from toolkit.run.crews import crews, trains_jointly
from toolkit.run.joint import train_together
from toolkit.run.rehearsal import rehearse
from toolkit.study import Study, StudyChangedError

RECIPE = """
title: A tiny program
seeds: 0-2
data:
  _target_: toolkit.data.PatchSignals
  num_examples: 40
  num_test: 30
  dim: 10
  slow_strength: 0.3
  seed: ${seed}
model:
  _target_: toolkit.models.TwoLayerCNN
  num_filters: 6
  dim: 10
  init_std: 0.1
  updates: 120
  updates_per_step: 25
  log_per_decade: 5
  seed: ${seed}
trainer: {accelerator: cpu}
wandb: {mode: disabled}
variants:
  gd: {}
  sam: {model.rho: 0.01}
claims:
  later:
    _target_: toolkit.claims.SeedShare
    text: SAM is later.
    source: a test
    metric: train/alignment/fast
    arm: sam
    baseline: gd
    expect: lower
"""
CLOCKS = {"time", "seconds"}


class KilledError(BaseException):
    """Stands for the end of the process: nothing of ours catches it."""


@pytest.fixture
def recipe(tmp_path: Path) -> config.Recipe:
    return config.load_recipe(write_recipe(tmp_path / "joint.yaml", RECIPE))


@pytest.fixture(autouse=True)
def _shown() -> Iterator[None]:
    """Lightning's own start of a fit seeds and quietens this process; leave its threads alone."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train(runs: Sequence[Run]) -> dict[str, tuple[str, Any]]:
    """Train, and say how each run ended."""
    ends: dict[str, tuple[str, Any]] = {}

    def tell(run: Run, kind: str, content: Any) -> None:
        if kind != "progress":
            ends[run.name] = (kind, content)

    train_together(runs, tell)
    return ends


def contents(folder: Path) -> dict[str, Any]:
    """All that two equal studies share."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "last.ckpt":
            state = torch.load(path, weights_only=True)
            found[name] = {key: value.tolist() for key, value in state["state_dict"].items()}
            found[f"{name} rows"] = (state["updates"], state["num_rows"])
        elif path.name == "history.jsonl":
            found[name] = [_without_clocks(row) for row in history.read_history(path)]
        elif path.name == "result.json":
            found[name] = _without_clocks(json.loads(path.read_text()))
        elif path.is_file() and path.name not in ("history.csv", "environment.json"):
            found[name] = path.read_text()
    return found


def _without_clocks(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in CLOCKS}


def test_runs_together_leave_what_each_leaves_alone(recipe: config.Recipe, tmp_path: Path) -> None:
    together = Study(recipe, tmp_path / "together").runs()
    assert {kind for kind, _ in train(together).values()} == {"finished"}
    for run in Study(recipe, tmp_path / "alone").runs():
        train([run])
    found = contents(tmp_path / "together")
    assert found == contents(tmp_path / "alone")
    files = {path.name for path in together[0].folder.iterdir()}
    assert files == {
        "recipe.yaml", "environment.json", "history.jsonl", "history.csv", "checkpoints",
        "result.json",
    }  # fmt: skip
    result = together[0].result()
    assert result is not None
    assert (result["updates"], result["examples_seen"]) == (120, 120 * 40)
    assert {"test/masked_acc", "fast_update", "theory/kappa"} <= result["metrics"].keys()
    rows = history.read_history(together[0].folder / "history.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2, 3, 4, 6, 10, 16, 25, 40, 63, 100, 120]


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("save", 1),  # the first checkpoint of the first member
        ("save", 9),  # between two members: they are at different updates then
        ("save", 26),  # at the end of training
        ("result", 1),
        ("result", 4),
        ("row", 50),
    ],
)
def test_killed_programs_continue_as_if_nothing_had_happened(
    recipe: config.Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    count: int,
) -> None:
    train(Study(recipe, tmp_path / "whole").runs())
    runs = Study(recipe, tmp_path / "killed").runs()
    left = count

    def dying(call: Any) -> Any:
        def instead(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError
            return call(*arguments, **more)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(joint, "SAVE_SECONDS", 0.0)
        if what == "save":
            patch.setattr(joint, "save_atomically", dying(joint.save_atomically))
        elif what == "result":
            patch.setattr(joint, "numbers", dying(joint.numbers))
        else:
            append = dying(history.History.append)
            patch.setattr(history.History, "append", lambda *given: append(*given))
        with pytest.raises(KilledError):
            train(runs)
        assert left == 0
    ends = train(runs)
    assert {kind for kind, _ in ends.values()} <= {"finished", "found"}
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_member_that_fails_or_is_held_leaves_the_others_alone(
    recipe: config.Recipe, tmp_path: Path
) -> None:
    train(Study(recipe, tmp_path / "whole").runs())
    bad = config.load_recipe(recipe.path, ["variants.sam.model.lr=1e60"])
    runs = Study(bad, tmp_path / "some").runs()
    held = runs[2]
    with FolderLock(held.folder):
        ends = train(runs)
    assert ends[held.name][0] == "locked"
    for run in runs:
        if run.variant == "sam":
            kind, text = ends[run.name]
            assert kind == "failed"
            assert "must be finite, got none at update" in text
            assert "Last good checkpoint: none yet" in text
            assert run.result() is None
        elif run is not held:
            assert ends[run.name][0] == "finished", ends[run.name]
    whole, some = contents(tmp_path / "whole"), contents(tmp_path / "some")
    for name in ("joint/gd/seed0/history.jsonl", "joint/gd/seed2/checkpoints/last.ckpt"):
        assert whole[name] == some[name]
    assert ends.keys() == {run.name for run in runs}
    assert train([held])[held.name][0] == "finished"
    assert train([held])[held.name][0] == "found"


def test_a_trainer_that_ends_too_early_is_an_error(recipe: config.Recipe, tmp_path: Path) -> None:
    short = config.load_recipe(recipe.path, ["trainer.limit_train_batches=2"])
    (end,) = train(Study(short, tmp_path, ("gd",), (0,)).runs()).values()
    assert end[0] == "failed"
    assert "must not end before model.updates, 120, got an end at 50" in end[1]


def test_wandb_gets_every_row_after_training(
    recipe: config.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    class Mirror:
        experiment = None

        def log_row(self, row: dict[str, Any]) -> None:
            sent.append(row["row"])

        def finish(self) -> None:
            sent.append("end")

    monkeypatch.setattr(joint, "mirror", lambda run: Mirror())
    train(Study(recipe, tmp_path, ("gd",), (0, 1)).runs())
    assert sent == [*range(13), "end", *range(13), "end"]


def test_joint_runs_are_divided_evenly_and_others_stay_alone(
    recipe: config.Recipe, tiny: Path, tmp_path: Path
) -> None:
    runs = Study(recipe, tmp_path, seeds=tuple(range(5))).runs()
    other = Study(config.load_recipe(tiny), tmp_path, ("sgd",), (0, 1)).runs()
    assert trains_jointly(runs[0])
    assert not trains_jointly(other[0])
    found = crews([*runs, *other], 3)
    assert [len(crew) for crew in found] == [4, 3, 3, 1, 1]
    assert [run for crew in found for run in crew] == [*runs, *other]
    assert {run.variant for run in found[0]} == {"gd", "sam"}
    assert [len(crew) for crew in crews(runs[:2], 4)] == [1, 1]


def test_a_study_is_looked_at_before_it_trains(recipe: config.Recipe, tmp_path: Path) -> None:
    rehearse(Study(recipe, tmp_path).runs())
    with pytest.raises(ValueError, match="must be started without a launcher, got 2 processes"):
        rehearse(Study(recipe, tmp_path).runs(), num_ranks=2)
    wide = config.load_recipe(recipe.path, ["data.dim=11"])
    with pytest.raises(ValueError, match=r"model.dim must be .* 11, got 10"):
        rehearse(Study(wide, tmp_path).runs())
    images = config.load_recipe(recipe.path, ["data={_target_: toolkit.data.Digits}"])
    with pytest.raises(ValueError, match=r"must be a toolkit.data.ResidentData for TwoLayerCNN"):
        rehearse(Study(images, tmp_path).runs())
    table = preview(recipe, ("gd",))
    assert "120" in list(table.columns[3].cells)
    assert not list(tmp_path.glob("joint/*"))


def test_a_study_trains_its_missing_members_from_the_command_line(
    recipe: config.Recipe, tmp_path: Path
) -> None:
    first = run_fit(["joint.yaml", "--variants", "gd", "--seeds", "0-1"], tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    rest = run_fit(["joint.yaml", "--jobs", "2"], tmp_path)
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert "[4/4]" in rest.stdout
    study = json.loads((tmp_path / "runs" / "joint" / "study.json").read_text())
    assert {name: variant["n"] for name, variant in study["variants"].items()} == {
        "gd": 3,
        "sam": 3,
    }
    train(Study(recipe, tmp_path / "whole").runs())
    found = contents(tmp_path / "runs" / "joint")
    for name, value in contents(tmp_path / "whole" / "joint").items():
        assert found[name] == value, name
    changed = config.load_recipe(recipe.path, ["model.lr=0.2"])
    with pytest.raises(StudyChangedError, match=r"model.lr"):
        Study(changed, tmp_path / "runs").missing()
    with pytest.raises(ValueError, match=r"must be a toolkit.data.ImageData, got PatchSignals"):
        load_run(tmp_path / "runs" / "joint" / "gd" / "seed0")
