"""``python -m toolkit.report`` on a study that was really trained, from the record alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_recipe
from toolkit.fit import fit
from toolkit.report import write_report

VARIANTS = ("sgd", "sgd_useful")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two variants and two seeds."""
    folder = tmp_path_factory.mktemp("report")
    recipe = write_recipe(folder / "tiny.yaml")
    return Path(fit(recipe, variants=VARIANTS, out=folder / "runs")["folder"])


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, with its page."""
    copy = Path(shutil.copytree(trained, tmp_path / "runs" / "tiny"))
    write_report(copy)
    return copy


def _report(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit.report", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)


def _records(study: Path) -> dict[Path, tuple[int, bytes]]:
    """What the runs wrote, each file's time of change and content."""
    files = [path for path in study.rglob("seed*/**/*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_what_was_drawn_comes_back_alike_and_the_runs_stay_untouched(study: Path) -> None:
    drawn = {
        path.relative_to(study): path.read_bytes()
        for path in (study / "report.html", study / "results.csv", *(study / "figures").iterdir())
    }
    assert len(drawn) > 4
    records = _records(study)
    for path in drawn:
        (study / path).unlink()
    done = _report(study)
    assert done.returncode == 0, done.stderr
    assert {path: (study / path).read_bytes() for path in drawn} == drawn
    assert _records(study) == records


def test_the_folder_of_all_studies_will_do_and_the_table_is_shown(study: Path) -> None:
    (study / "report.html").unlink()
    done = _report(study.parent)
    assert done.returncode == 0, done.stderr
    assert (study / "report.html").exists()
    assert "USEFUL lowers the test error" in done.stdout
    content = json.loads((study / "study.json").read_text())
    for variant in VARIANTS:
        errors = content["variants"][variant]["metrics"]["test/error"]
        shown = f"{100 * errors['mean']:.2f} ± {100 * errors['std']:.2f} %"
        row = next(line for line in done.stdout.splitlines() if line.split()[:1] == [variant])
        assert shown in row


def test_verdicts_follow_the_results_on_disk(study: Path) -> None:
    """With results that differ by far more than their spread, the claim is judged anew."""
    for error, variant in ((0.5, "sgd"), (0.1, "sgd_useful")):
        for seed in (0, 1):
            path = study / variant / f"seed{seed}" / "result.json"
            result = json.loads(path.read_text())
            result["metrics"]["test/error"] = error + 0.001 * seed
            path.write_text(json.dumps(result))
    done = _report(study)
    assert done.returncode == 0, done.stderr
    assert "supported: USEFUL lowers the test error." in done.stdout
    assert "-40.0 points" in done.stdout
    (claim,) = json.loads((study / "study.json").read_text())["claims"]
    assert claim["verdict"] == "supported"


def test_a_run_that_is_gone_leaves_the_table(study: Path) -> None:
    shutil.rmtree(study / "sgd" / "seed1")
    assert _report(study).returncode == 0
    assert json.loads((study / "study.json").read_text())["variants"]["sgd"]["n"] == 1


def test_the_record_alone_is_enough(study: Path) -> None:
    """Without ``study.json`` the claims are unknown, and the results are shown all the same."""
    (study / "study.json").unlink()
    done = _report(study)
    assert done.returncode == 0, done.stderr
    assert all(variant in done.stdout for variant in VARIANTS)
    assert "supported" not in done.stdout
