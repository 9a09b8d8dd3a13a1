"""Scoring a finished run: the numbers that it recorded, on other data, exported, and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import write_recipe
from toolkit import evaluate as evaluation
from toolkit import history
from toolkit.data import Digits
from toolkit.evaluate import evaluate, load_run, main
from toolkit.fit import fit

PATCH = "data.spurious={_target_: toolkit.data.Spurious, kind: patch, agreement: 0.9}"
# "Best" is the epoch of the highest loss, so that it is not the last.
BEST = ("checkpoint.test=best", "checkpoint.monitor=val/loss", "checkpoint.mode=max")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the file of a tiny recipe."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_recipe(folder / "tiny.yaml")
    return folder


def _train(folder: Path, name: str, *changes: str) -> Path:
    study = fit(
        folder / "tiny.yaml", changes, variants=("sgd",), seeds=(0,), out=folder / name, jobs=1
    )
    return Path(study["folder"]) / "sgd" / "seed0"


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A finished run, whose test metrics are of the last weights."""
    return _train(folder, "plain")


@pytest.fixture(scope="module")
def grouped(folder: Path) -> Path:
    """A finished run on data with groups."""
    return _train(folder, "grouped", PATCH)


@pytest.fixture(scope="module")
def best(folder: Path) -> Path:
    """A finished run, whose test metrics are of the best weights."""
    return _train(folder, "best", *BEST)


def _recorded(run: Path) -> dict[str, float]:
    metrics: dict[str, float] = json.loads((run / "result.json").read_text())["metrics"]
    return metrics


@pytest.fixture(scope="module")
def digits() -> Digits:
    """The data of the tiny recipe's seed 0."""
    data = Digits(train_size=60, val_size=40, test_size=100, batch_size=16, seed=0)
    data.setup()
    return data


def _save(path: Path, digits: Digits, **arrays: Any) -> Path:
    given = {"images": digits.test.images.numpy(), "labels": digits.test.targets.numpy()}
    np.savez(path, **{**given, **arrays})
    return path


class TestScores:
    def test_are_those_that_the_run_recorded(self, run: Path) -> None:
        scores, recorded = evaluate(run), _recorded(run)
        assert scores["count"] == 100
        for key in ("error", "acc", "loss"):
            assert scores[key] == pytest.approx(recorded[f"test/{key}"], rel=1e-5)

    def test_of_classes_are_those_that_the_run_recorded(self, run: Path) -> None:
        scores, recorded = evaluate(run), _recorded(run)
        assert list(scores["classes"]) == [str(digit) for digit in range(10)]
        for name, values in scores["classes"].items():
            for key in ("acc", "loss", "count"):
                expected = recorded[f"test/class_{key}/{name}"]
                assert values[key] == pytest.approx(expected, rel=1e-5), (name, key)
        assert sum(values["count"] for values in scores["classes"].values()) == 100
        assert "groups" not in scores

    def test_of_groups_are_those_that_the_run_recorded(self, grouped: Path) -> None:
        scores, recorded = evaluate(grouped), _recorded(grouped)
        assert len(scores["groups"]) == 20
        for name, values in scores["groups"].items():
            assert values["count"] == recorded[f"test/group_count/{name}"]
            if values["count"]:
                expected = recorded[f"test/group_acc/{name}"]
                assert values["acc"] == pytest.approx(expected, abs=1e-6)
        for key in ("worst_group_acc", "worst_group", "mean_group_acc", "weighted_group_acc",
                    "group_acc_gap"):  # fmt: skip
            assert scores[key] == pytest.approx(recorded[f"test/{key}"], rel=1e-5), key
        assert scores["weighted_group_acc"] != scores["mean_group_acc"]

    def test_are_of_the_weights_that_the_recipe_tests(self, best: Path) -> None:
        scores, recorded = evaluate(best), _recorded(best)
        assert scores["error"] == pytest.approx(recorded["test/error"])
        assert evaluate(best, "best") == scores
        assert evaluate(best, "last")["loss"] < scores["loss"]

    def test_leave_the_folder_as_it_is(self, run: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        evaluate(run)
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


class TestGivenData:
    def test_that_is_the_test_data_scores_alike(
        self, run: Path, digits: Digits, tmp_path: Path
    ) -> None:
        assert evaluate(run, data=_save(tmp_path / "mine.npz", digits)) == evaluate(run)

    def test_may_lack_classes(self, run: Path, digits: Digits, tmp_path: Path) -> None:
        zeros = digits.test.targets == 0
        path = _save(
            tmp_path / "zeros.npz",
            digits,
            images=digits.test.images[zeros].numpy(),
            labels=np.zeros(int(zeros.sum()), np.uint8),
        )
        scores = evaluate(run, data=path)
        assert scores["acc"] == evaluate(run)["classes"]["0"]["acc"]
        assert scores["classes"]["1"]["count"] == 0
        assert np.isnan(scores["classes"]["1"]["acc"])

    def test_may_bring_groups_to_a_run_without(
        self, run: Path, digits: Digits, tmp_path: Path
    ) -> None:
        even = (digits.test.targets % 2 == 0).long().numpy()
        names = np.array(["odd", "even"])
        scores = evaluate(
            run, data=_save(tmp_path / "g.npz", digits, groups=even, group_names=names)
        )
        classes = evaluate(run)["classes"]
        for group, digit in (("odd", 1), ("even", 0)):
            parts = [classes[str(k)] for k in range(digit, 10, 2)]
            right = sum(part["acc"] * part["count"] for part in parts)
            assert scores["groups"][group]["acc"] * scores["groups"][group]["count"] == (
                pytest.approx(right)
            )
        assert "weighted_group_acc" not in scores  # nothing says how many were trained on
        unnamed = evaluate(run, data=_save(tmp_path / "u.npz", digits, groups=even))
        assert list(unnamed["groups"]) == ["group0", "group1"]

    def test_has_the_groups_of_a_run_with_groups(self, grouped: Path, tmp_path: Path) -> None:
        _, data = load_run(grouped)
        assert data.test.groups is not None
        path = tmp_path / "mine.npz"
        np.savez(
            path,
            images=data.test.images.numpy(),
            labels=data.test.targets.numpy(),
            groups=data.test.groups.numpy(),
        )
        scores, own = evaluate(grouped, data=path), evaluate(grouped)
        assert scores["groups"].keys() == own["groups"].keys()
        assert scores["weighted_group_acc"] == own["weighted_group_acc"]

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"images": np.zeros((100, 9, 8), np.uint8)}, ["(1, 8, 8)", "(1, 9, 8)"]),
            ({"images": np.zeros((100, 8, 8, 3), np.uint8)}, ["(1, 8, 8)", "(3, 8, 8)"]),
            ({"images": np.zeros((100, 8, 8))}, ["torch.uint8", "torch.float32"]),
            ({"images": np.zeros((99, 8, 8), np.uint8)}, ["100", "99"]),
            ({"labels": np.full(100, 10)}, ["0..9", "10"]),
            ({"groups": np.zeros(3, int)}, ["group ids", "3"]),
        ],
    )
    def test_that_does_not_fit_is_refused_in_one_line(
        self,
        run: Path,
        digits: Digits,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        arrays: dict[str, Any],
        words: list[str],
    ) -> None:
        path = _save(tmp_path / "mine.npz", digits, **arrays)
        assert main([str(run), "--data", str(path)]) == 2
        error = capsys.readouterr().err
        assert all(word in error for word in [*words, "mine.npz"]), error
        assert error.count("\n") == 1


class TestCommand:
    def test_shows_each_class_and_group_and_the_worst(
        self, grouped: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(grouped)]) == 0
        shown = capsys.readouterr().out
        error = f"{100 * _recorded(grouped)['test/error']:.2f}"
        assert next(line for line in shown.splitlines() if " all " in line).split()[3] == error
        scores = evaluate(grouped)
        for name in scores["groups"]:
            assert f"group {name}" in shown
        assert "class 9" in shown
        assert f"worst group: {list(scores['groups'])[int(scores['worst_group'])]}" in shown

    def test_exports_weights_that_need_nothing_of_ours(
        self, run: Path, digits: Digits, tmp_path: Path
    ) -> None:
        file = tmp_path / "new" / "weights.pt"
        assert main([str(run), "--export", str(file)]) == 0
        state = torch.load(file, weights_only=True)
        assert all(isinstance(value, torch.Tensor) for value in state.values())
        net = torch.nn.Sequential(  # the net of the recipe, written out
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.AdaptiveAvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(16, 10),
        )
        ours = [value for name, value in state.items() if name.startswith("net.")]
        assert len(ours) == len(state) == len(net.state_dict())
        net.load_state_dict(dict(zip(net.state_dict(), ours, strict=True)))
        model, data = load_run(run)
        inputs = data.normalize(digits.test.images)
        torch.testing.assert_close(net(inputs), model(inputs))

    def test_exports_the_weights_that_it_scores(self, best: Path, tmp_path: Path) -> None:
        names = {"last": ["--checkpoint", "last"], "best": ["--checkpoint", "best"], "own": []}
        states = {}
        for name, choice in names.items():
            main([str(best), *choice, "--export", str(tmp_path / name)])
            states[name] = torch.load(tmp_path / name, weights_only=True)
        assert all(states["own"][key].equal(states["best"][key]) for key in states["own"])
        assert not all(states["own"][key].equal(states["last"][key]) for key in states["own"])

    def test_writes_the_scores(self, grouped: Path, tmp_path: Path) -> None:
        file = tmp_path / "new" / "scores.json"
        assert main([str(grouped), "--json", str(file)]) == 0
        written = history.read_json(file)
        assert written["error"] == evaluate(grouped)["error"]
        assert written["groups"].keys() == evaluate(grouped)["groups"].keys()

    def test_ends_in_one_line_where_a_path_is_wrong(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        blocked = tmp_path / "file"
        blocked.touch()
        cases: list[tuple[list[Any], str]] = [
            ([tmp_path / "absent"], "must be the folder of a finished run"),
            ([run.parent], "must be the folder of a finished run"),
            ([run, "--data", tmp_path / "absent.npz"], "absent.npz"),
            ([run, "--data", run / "result.json"], "must be an .npz file"),
            ([run, "--export", blocked / "weights.pt"], str(blocked)),
            ([run, "--json", blocked / "scores.json"], str(blocked)),
        ]
        for arguments, words in cases:
            assert main([str(argument) for argument in arguments]) == 2, arguments
            out, error = capsys.readouterr()
            assert words in error
            assert error.count("\n") == 1
            assert out == ""


def test_a_run_that_failed_or_has_no_such_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "seed0"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(ValueError, match=r"best.ckpt. Set checkpoint.monitor"):
        evaluate(copy, "best")
    assert evaluate(copy) == evaluate(run)
    history.write_json({"status": "failed", "metrics": {}}, copy / "result.json")
    with pytest.raises(ValueError, match="must be the folder of a finished run"):
        evaluate(copy)


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_weights_that_do_not_load_are_named_in_one_line(
    run: Path, tmp_path: Path, content: bytes | None
) -> None:
    copy = tmp_path / "seed0"
    shutil.copytree(run, copy)
    file = copy / "checkpoints" / "last.ckpt"
    if content is None:
        torch.save({"state_dict": {"net.other": torch.zeros(3)}}, file)
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"last.ckpt must hold weights of the run's model") as info:
        evaluation.evaluate(copy)
    assert "\n" not in str(info.value)
