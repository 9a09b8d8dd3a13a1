"""The command line: what it answers, what it writes, and how it ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_fit
from toolkit.fit import RunsFailedError, fit, main


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A finished tiny study of two variants."""
    from tests.conftest import write_recipe

    folder = tmp_path_factory.mktemp("study")
    recipe = write_recipe(folder / "tiny.yaml")
    return fit(recipe, variants=("sgd", "sam_useful"), out=folder / "runs")


def test_a_study_has_every_run_its_statistics_and_its_verdicts(study: dict[str, Any]) -> None:
    folder = Path(study["folder"])
    assert json.loads((folder / "study.json").read_text())["recipe"] == "tiny"
    for variant in ("sgd", "sam_useful"):
        errors = study["variants"][variant]["metrics"]["test/error"]
        assert study["variants"][variant]["n"] == 2
        assert errors["mean"] == pytest.approx(sum(errors["values"]) / 2)
        for seed in (0, 1):
            run = folder / variant / f"seed{seed}"
            result = json.loads((run / "result.json").read_text())
            assert result["metrics"]["test/error"] == errors["values"][seed]
            for name in ("recipe.yaml", "environment.json", "history.jsonl", "history.csv"):
                assert (run / name).stat().st_size > 0
    assert [claim["verdict"] for claim in study["claims"]] == ["not tested"]


def test_variants_of_a_seed_share_data_and_initial_weights(tmp_path: Path, tiny: Path) -> None:
    """With a learning rate of 0 the final weights are the initial ones."""
    import torch

    still = ["variants.sgd.model.optimizer.lr=0", "variants.sam.model.optimizer.base.lr=0"]
    content = fit(tiny, still, variants=("sgd", "sam"), seeds=(3,), out=tmp_path / "runs")
    states = []
    for variant in ("sgd", "sam"):
        path = Path(content["folder"]) / variant / "seed3" / "checkpoints" / "last.ckpt"
        states.append(torch.load(path, weights_only=True)["state_dict"])
    first, second = states
    assert all(first[name].equal(second[name]) for name in first)
    errors = [
        content["variants"][name]["metrics"]["test/error"]["values"] for name in ("sgd", "sam")
    ]
    assert errors[0] == errors[1]


def test_finished_runs_are_not_trained_again(study: dict[str, Any]) -> None:
    folder = Path(study["folder"])
    recipe = folder.parents[1] / "tiny.yaml"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    again = fit(recipe, variants=("sgd", "sam_useful"), out=folder.parent)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")} == before
    assert again["variants"] == study["variants"]


def test_a_new_title_claim_or_tracker_setting_retrains_nothing(study: dict[str, Any]) -> None:
    folder = Path(study["folder"])
    recipe = folder.parents[1] / "tiny.yaml"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    changed = ["title=Another", "claims.useful_helps.expect=higher", "wandb.project=other"]
    fit(recipe, changed, variants=("sgd",), out=folder.parent)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")} == before


def test_another_configuration_in_the_same_folder_is_refused(
    study: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(study["folder"])
    recipe = folder.parents[1] / "tiny.yaml"
    code = main(
        [str(recipe), "model.optimizer.lr=0.2", "--variants", "sgd", "--out", str(folder.parent)]
    )
    error = capsys.readouterr().err
    assert code == 2
    assert "model.optimizer.lr: 0.1 -> 0.2" in error
    assert "--overwrite" in error


def test_overwrite_trains_again(tmp_path: Path, tiny: Path) -> None:
    settings = {"variants": ("sgd",), "seeds": (0,), "out": tmp_path / "runs"}
    first = fit(tiny, **settings)  # type: ignore[arg-type]
    second = fit(tiny, ["trainer.max_epochs=2"], overwrite=True, **settings)  # type: ignore[arg-type]
    assert first["variants"]["sgd"]["epochs"]["mean"] == 4
    assert second["variants"]["sgd"]["epochs"]["mean"] == 2


def test_a_failed_run_exits_with_3_and_costs_no_other_run(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explode = ["variants.sgd.model.optimizer.lr=1e30", "--variants", "sgd,sam", "--seeds", "0"]
    code = main([str(tiny), *explode, "--out", str(tmp_path / "runs")])
    shown = capsys.readouterr().out
    assert code == 3
    assert "the training loss must be finite, got" in shown
    assert "Last good checkpoint" in shown
    content = json.loads((tmp_path / "runs" / "tiny" / "study.json").read_text())
    assert [(failure["variant"], failure["seed"]) for failure in content["failed"]] == [("sgd", 0)]
    assert content["variants"]["sam"]["n"] == 1
    with pytest.raises(RunsFailedError, match="sgd/seed0"):
        fit(tiny, explode[:1], variants=("sgd",), seeds=(0,), out=tmp_path / "runs")


def test_skipping_updates_counts_them_and_goes_on(tmp_path: Path, tiny: Path) -> None:
    skip = ["variants.sgd.model.optimizer.lr=1e30", "nonfinite=skip"]
    content = fit(tiny, skip, variants=("sgd",), seeds=(0,), out=tmp_path / "runs")
    skipped = content["variants"]["sgd"]["metrics"]["train/skipped_updates"]["values"]
    assert skipped[0] > 0


def test_strict_exits_with_1_only_where_a_claim_is_refuted(tmp_path: Path, tiny: Path) -> None:
    impossible = (
        "claims={c: {_target_: toolkit.claims.Threshold, text: t, source: s, metric: test/error, "
        "variant: sgd, at_most: -1}}"
    )
    arguments = [str(tiny), "--variants", "sgd", "--out", str(tmp_path / "runs"), "--strict"]
    assert main(arguments) == 0
    assert main([*arguments, impossible]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quickstrt"], ["quickstart"]),
        (["quickstart", "--variants", "sgd_usefull"], ["sgd_useful"]),
        (["quickstart", "trainr.max_epochs=3"], ["trainer"]),
        (["quickstart", "--seeds", "4-0"], ["--seeds"]),
        (["quickstart", "--overwrit"], ["--overwrite"]),
        (["quickstart", "--jobs", "0"], ["--jobs"]),
        ([], ["--list"]),
    ],
)
def test_what_needs_no_import_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = run_fit(arguments, tmp_path)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model._target_=toolkit.models.ImageClasifier", ["ImageClassifier"]),
        ("model.net.widhts=[4]", ["widths"]),
        ("data.train_size=many", ["data.train_size", "many"]),
        ("checkpoint.monitor=val/eror", ["val/error"]),
        ("callbacks.margin.evry=3", ["callbacks.margin.evry"]),
        ("variants.sgd_useful.callbacks.useful.separation_epochs=0", ["separation_epochs"]),
        ("variants.sgd_useful.callbacks.useful.separation_epochs=9", ["separation_epochs"]),
        ("data.train_size=100000", ["train_size", "100000"]),
    ],
)
def test_other_faults_are_refused_before_a_folder_is_made(
    tmp_path: Path, tiny: Path, change: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(tiny), change, "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert code == 2
    assert all(word in error for word in words)
    assert not (tmp_path / "runs").exists()


def test_list_describe_and_print_import_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from toolkit.fit import main\n"
        "codes = [main(a) for a in (['--list'], ['quickstart', '--describe'], "
        "['quickstart', '--print', 'model.optimizer.lr=0.5'])]\n"
        "assert codes == [0, 0, 0] and 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
    assert "lr: 0.5" in done.stdout


def test_dry_run_tells_shapes_parameters_and_writes_nothing(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(tiny), "--dry-run", "--variants", "sgd,sam", "--out", str(tmp_path / "runs")])
    shown = capsys.readouterr().out
    assert code == 0
    assert "(16, 1, 8, 8)" in shown
    assert "210" in shown  # 4 * 9 + 4 weights of the convolution, 16 * 10 + 10 of the classifier
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_shadows_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "__init__.py").touch()
    done = run_fit(["quickstart"], tmp_path)
    assert done.returncode == 2
    assert str(tmp_path / "callbacks") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path, tiny: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from toolkit.fit import fit\nprint('began', flush=True)\n"
        f"study = fit({str(tiny)!r}, variants=('sgd',), seeds=(0,))\n"
        "print(study['variants']['sgd']['n'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("began") == 1
    assert done.stdout.strip().endswith("1")


def test_an_interrupted_study_exits_with_130_and_the_same_command_goes_on(
    tmp_path: Path, tiny: Path
) -> None:
    import signal

    command = [sys.executable, "-m", "toolkit.fit", str(tiny), "--variants", "sgd", "--jobs", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first = tmp_path / "runs" / "tiny" / "sgd" / "seed0" / "result.json"
        deadline = time.monotonic() + 120
        while not first.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in error
    assert run_fit([str(tiny), "--variants", "sgd"], tmp_path).returncode == 0
