"""What W&B got is read back from its offline files, with its own message definitions."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from lightning.pytorch.loggers import WandbLogger

from toolkit.history import read_history, read_json
from toolkit.tracking import HistoryLogger, RecordState, WandbMirror

Fit = Callable[..., L.Trainer]
ReadParts = Callable[[Path], Any]

pytestmark = pytest.mark.usefixtures("no_login")


def _present(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _loggers(folder: Path, **settings: Any) -> tuple[HistoryLogger, WandbMirror]:
    mirror = WandbMirror(folder, **{"name": "sgd-0", "group": "quickstart", **settings})
    return HistoryLogger(folder, mirror), mirror


class Save(L.Callback):
    def __init__(self, path: Path, stop: int | None = None) -> None:
        self.path, self.stop = path, stop

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self.stop:
            raise RuntimeError("crash")


def test_every_row_arrives_once_and_the_run_says_what_it_is(
    tmp_path: Path, read_parts: ReadParts, fit: Fit, loader: Any
) -> None:
    config = {"model": {"lr": 0.1}, "callbacks": [], "seed": 0}
    record, mirror = _loggers(tmp_path, config=config, tags=["sam", "digits"], project="bias")
    record.stage = "separation"
    record.log_metrics({"epoch": 0, "separation/loss": float("nan")}, 0)
    record.stage = "training"
    trainer = fit([record, mirror], max_epochs=2)
    trainer.test(trainer.lightning_module, loader, verbose=False)
    record.close()
    (part,) = read_parts(tmp_path)
    rows = read_history(record.path)
    assert part.rows == _present(rows)
    assert [row["row"] for row in rows] == list(range(9))
    assert [row["stage"] for row in part.rows] == ["separation"] + 8 * ["training"]
    run = part.run
    assert (run.run_id, run.project) == (mirror.version, "bias")
    assert (run.run_group, run.display_name) == ("quickstart", "sgd-0")
    assert list(run.tags) == ["sam", "digits"]
    sent = {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for item in run.config.update
    }
    assert sent["model"] == {"lr": 0.1}
    assert sent["seed"] == 0
    assert {metric.name for metric in part.only("metric")} == {"epoch", "update", "examples_seen"}
    assert part.exit_codes == [0]
    assert read_json(tmp_path / "wandb.json") == {
        "id": mirror.version,
        "rows_sent": 9,
        "parts": [next((tmp_path / "wandb").glob("offline-run-*")).name],
    }


def test_a_resumed_run_has_the_same_id_and_no_doubled_row(
    tmp_path: Path, read_parts: ReadParts, fit: Fit
) -> None:
    record, mirror = _loggers(tmp_path / "run")
    save = Save(tmp_path / "last.ckpt", stop=2)
    with pytest.raises(RuntimeError, match="crash"):
        fit([record, mirror], [save, RecordState(record)])
    first, rows_before = mirror.version, record.num_rows
    record, mirror = _loggers(tmp_path / "run")
    save = Save(tmp_path / "last.ckpt")
    fit([record, mirror], [save, RecordState(record)], save.path)
    record.close()
    crashed, resumed = read_parts(tmp_path / "run")
    assert crashed.run.run_id == resumed.run.run_id == first
    assert [row["row"] for row in crashed.rows] == list(range(rows_before))
    rows = _present(read_history(record.path))
    assert resumed.rows == rows[rows_before:]
    timeless = [{k: v for k, v in row.items() if k != "time"} for row in rows]
    both = crashed.rows + resumed.rows
    assert [{k: v for k, v in row.items() if k != "time"} for row in both] == timeless
    assert (crashed.exit_codes, resumed.exit_codes) == ([1], [0])


KILLED = """
import os, random, signal, sys
import numpy, torch
from toolkit.tracking import HistoryLogger, WandbMirror

def states():
    return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()

before = states()
mirror = WandbMirror(sys.argv[1], name="sgd-0", group="quickstart")
record = HistoryLogger(sys.argv[1], mirror)
for update in range(5):
    record.log_metrics({"loss": 0.5 * update}, update)
print("same draws" if states() == before else "other draws", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_that_a_killed_process_kept_in_memory_are_sent_again(
    tmp_path: Path, read_parts: ReadParts
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == "same draws\n"  # a mirrored run is the run that it mirrors
    record, mirror = _loggers(tmp_path)
    record.cut_to(3)
    for update in range(3, 6):
        record.log_metrics({"loss": 0.5 * update}, update)
    record.close()
    (part,) = read_parts(tmp_path)
    assert part.rows == _present(read_history(record.path))
    assert [row["loss"] for row in part.rows] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert part.run.run_id == mirror.version


def test_a_server_that_knows_fewer_rows_gets_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        """Stands for an online run whose server has rows 0 and 1."""

        offline, starting_step, id, dir = False, 2, "abc", "wandb/run-x-abc/files"

        def __init__(self) -> None:
            self.steps: list[int] = []

        def log(self, values: dict[str, Any], step: int, commit: bool) -> None:
            self.steps.append(step)

        def define_metric(self, name: str) -> None:
            """Online runs have it."""

        def finish(self, exit_code: int) -> None:
            """Online runs have it."""

    server = Server()
    (tmp_path / "wandb.json").write_text('{"id": "abc", "rows_sent": 4, "parts": []}')
    offline = HistoryLogger(tmp_path)
    for update in range(4):
        offline.log_metrics({"loss": 1.0}, update)
    monkeypatch.setattr("wandb.init", lambda **arguments: server)
    record, _ = _loggers(tmp_path, mode="online")
    record.log_metrics({"loss": 1.0}, 4)
    record.close()
    assert server.steps == [2, 3, 4]


def test_pictures_join_the_latest_row_and_numbers_are_not_sent_twice(
    tmp_path: Path, read_parts: ReadParts
) -> None:
    record, mirror = _loggers(tmp_path)
    for update in range(2):
        record.log_metrics({"loss": 1.0}, update)
        mirror.log_metrics({"loss": 1.0}, update)  # as the trainer does with every logger
    mirror.log_image("examples", [np.zeros((2, 2, 3), np.uint8)])
    record.log_metrics({"loss": 2.0}, 2)
    record.close()
    rows = read_parts(tmp_path)[0].rows
    assert [(row["row"], row["loss"]) for row in rows] == [(0, 1.0), (1, 1.0), (2, 2.0)]
    assert [row["row"] for row in rows if "examples" in row] == [1]


def test_callbacks_find_a_wandb_logger_and_hyperparameters_join_the_config(
    tmp_path: Path, read_parts: ReadParts
) -> None:
    record, mirror = _loggers(tmp_path, config={"seed": 0})
    assert isinstance(mirror, WandbLogger)
    mirror.log_hyperparams({"width": 3})
    assert dict(mirror.experiment.config) == {"seed": 0, "width": 3}
    record.close()
    record.close()  # finishing twice is finishing once
    assert len(read_parts(tmp_path)) == 1


def test_no_key_and_no_environment_variable_is_written(
    tmp_path: Path, read_parts: ReadParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = "0123456789abcdef" * 2 + "01234567", "hunter2hunter2"
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("MY_TOKEN", secret)
    record, _ = _loggers(tmp_path, mode="offline")
    record.log_metrics({"loss": 1.0}, 0)
    record.close()
    assert read_parts(tmp_path)[0].exit_codes == [0]  # all is written
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert key.encode() not in written
    assert secret.encode() not in written
    assert not [path for path in files if path.suffix == ".py" or path.name == "requirements.txt"]


def test_a_run_of_the_users_own_is_left_alone(tmp_path: Path, read_parts: ReadParts) -> None:
    import wandb

    (tmp_path / "own").mkdir()
    own = wandb.init(mode="offline", dir=tmp_path / "own", settings={"silent": True})
    record, mirror = _loggers(tmp_path)
    record.log_metrics({"loss": 1.0}, 0)
    assert mirror.experiment.id != own.id
    record.close()
    own.log({"mine": 1})
    own.finish()
    assert [row["mine"] for row in read_parts(tmp_path / "own")[0].rows] == [1]
