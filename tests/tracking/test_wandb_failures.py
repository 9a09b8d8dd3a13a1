"""W&B disabled, absent, unreachable or broken: the run goes on."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from toolkit.history import read_history
from toolkit.tracking import HistoryLogger, WandbMirror, logged_in

Fit = Callable[..., L.Trainer]
ReadParts = Callable[[Path], Any]

pytestmark = pytest.mark.usefixtures("no_login")


def _loggers(folder: Path, **settings: Any) -> tuple[HistoryLogger, WandbMirror]:
    mirror = WandbMirror(folder, **{"name": "sgd-0", "group": "quickstart", **settings})
    return HistoryLogger(folder, mirror), mirror


def test_a_disabled_mirror_makes_no_file(tmp_path: Path, fit: Fit) -> None:
    record, mirror = _loggers(tmp_path, mode="disabled")
    fit([record, mirror], max_epochs=1)
    mirror.experiment.log({"a": 1})
    record.close()
    assert sorted(os.listdir(tmp_path)) == ["history.csv", "history.jsonl"]
    assert not mirror.active


def _service() -> int:
    """The process id of the W&B service of this process."""
    listing = subprocess.run(
        ["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True
    )
    lines = [line for line in listing.stdout.splitlines() if f"--pid {os.getpid()}" in line]
    return next(int(line.split()[0]) for line in lines if "wandb-core" in line)


DOWN = """
import os, signal, sys, time, warnings
sys.path.insert(0, sys.argv[2])
from test_wandb_failures import _service
from toolkit.tracking import HistoryLogger, WandbMirror
mirror = WandbMirror(sys.argv[1], name="sgd-0", group="quickstart")
record = HistoryLogger(sys.argv[1], mirror)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    record.log_metrics({"loss": 0.0}, 0)
    os.kill(_service(), signal.SIGKILL)
    time.sleep(0.5)
    for update in range(1, 5):
        record.log_metrics({"loss": 0.5 * update}, update)
        mirror.experiment.log({"a": 1})
    record.close()
print([str(w.message) for w in caught if "Weights" in str(w.message)])
"""


def test_a_dead_service_costs_one_warning(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", DOWN, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Weights & Biases failed") == 1
    assert "The run goes on without it; its own record is complete." in done.stdout
    assert [row["update"] for row in read_history(tmp_path / "history.jsonl")] == list(range(5))
    assert (tmp_path / "history.csv").exists()


def test_wandb_that_cannot_start_costs_one_warning(
    tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**arguments: Any) -> None:
        raise OSError("no room for the service")

    monkeypatch.setattr("wandb.init", broken)
    record, mirror = _loggers(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit([record, mirror], max_epochs=1)
    told = [str(w.message) for w in caught if "Weights & Biases" in str(w.message)]
    assert len(told) == 1
    assert "failed (OSError: no room for the service). The run goes on without it" in told[0]
    assert record.num_rows == 3
    assert trainer.state.finished


def test_an_unreachable_server_leaves_the_run_offline(
    tmp_path: Path, read_parts: ReadParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    init, modes = wandb.init, []

    def unreachable(**arguments: Any) -> Any:
        modes.append(arguments["mode"])
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("timed out")
        return init(**arguments)

    monkeypatch.setattr("wandb.init", unreachable)
    record, _ = _loggers(tmp_path, mode="online")
    with pytest.warns(UserWarning, match=r"CommError: timed out\)\. The run is kept offline\."):
        record.log_metrics({"loss": 1.0}, 0)
    record.close()
    assert modes == ["online", "offline"]
    assert [row["loss"] for row in read_parts(tmp_path)[0].rows] == [1.0]


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "x"}, "online"),
        ({"WANDB_API_KEY": "x", "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "dryrun"}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
        ({"WANDB_MODE": "online"}, "online"),
        ({"WANDB_MODE": "nonsense"}, "offline"),
    ],
)
def test_auto_is_offline_unless_logged_in_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], mode: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert WandbMirror(tmp_path, name="a", group="b").mode == mode
    assert WandbMirror(tmp_path, name="a", group="b", mode="offline").mode == "offline"


def test_a_login_in_the_netrc_file_of_the_same_server_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(path))
    assert not logged_in()
    path.write_text("machine api.wandb.ai login user password 0123\n")
    assert logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not logged_in()
    path.write_text("machine\n")
    assert not logged_in()


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    mode: Any = "of"
    with pytest.raises(ValueError, match=r"mode must be one of auto, .*, got 'of'\. Set wandb\."):
        WandbMirror(tmp_path, name="a", group="b", mode=mode)
