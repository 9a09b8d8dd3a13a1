"""A fit that was killed, and started again by the same command, ends with the same weights."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException

import callbacks._separation
from callbacks import UsefulUpsampling
from toolkit.data.selection import UpsampledSet
from toolkit.history import History, read_history

PROGRAM = Path(__file__).with_name("program.py")


class KilledError(Exception):
    """Stands for a kill: nothing of ours handles it."""


class KillAt(L.Callback):
    """Raises before the n-th training batch of all stages."""

    runs_in_separation = True

    def __init__(self, batch: int) -> None:
        self.left = batch

    def on_train_batch_start(self, *args: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError


class Memory(L.Callback):
    """Has a state that lasts over both stages."""

    runs_in_separation = True

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


class Record(Logger):
    """The parts of the toolkit's record that the callback uses."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.history = History(folder / "history.jsonl")
        self.stage = "training"

    @property
    def num_rows(self) -> int:
        return self.history.num_rows

    def cut_to(self, num_rows: int) -> None:
        self.history.cut_to(num_rows)

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.history.append({"stage": self.stage, "step": step, **metrics})

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""


def run(
    project: ModuleType, folder: Path, *extra: L.Callback, epochs: Any = 2, **settings: Any
) -> tuple[str, UpsampledSet, list[dict[str, Any]], int]:
    """Fit in a folder; weights, upsampled set, record and what a callback remembers."""
    folder.mkdir(exist_ok=True)
    useful, memory = UsefulUpsampling(epochs), Memory()
    record = Record(folder)
    if "fit_arguments" not in settings and not (folder / "separation.ckpt").exists():
        record.cut_to(0)
    callbacks = [*extra, useful, memory]
    _, module = project.fit(folder, callbacks, logger=record, log_every_n_steps=1, **settings)
    assert useful.upsampled is not None
    return (
        project.digest(module),
        useful.upsampled,
        read_history(folder / "history.jsonl"),
        memory.batches,
    )


def assert_same(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert torch.equal(one[1].selected, other[1].selected)
    assert one[1].errors == other[1].errors
    assert one[2] == other[2]
    assert one[3] == other[3]


@pytest.fixture(scope="module")
def whole(project: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(project, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("batch", [0, 3, 8, 11, 16, 20])
def test_killed_at_a_batch_and_run_again(
    project: ModuleType, tmp_path: Path, whole: Any, batch: int
) -> None:
    """Batches 0..15 belong to stage one, 16 and on to stage two before its first checkpoint."""
    with pytest.raises(KilledError):
        run(project, tmp_path, KillAt(batch))
    assert (tmp_path / "separation.ckpt").exists()
    resumed = run(project, tmp_path)
    assert_same(resumed, whole)
    assert not (tmp_path / "separation.ckpt").exists()


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise KilledError


@pytest.mark.parametrize(
    "moment",
    [
        ("callbacks.useful_upsampling.score_examples", "scoring"),
        ("callbacks._separation.selected_set", "clustering"),
        ("callbacks._separation.log_selection", "recording"),
        ("callbacks._separation.restore_tensors", "the switch, before the weights"),
        ("callbacks._stages.Stages.switch", "the switch, before the optimizers"),
        ("callbacks._original.OriginalMeans.__init__", "the switch, after the optimizers"),
    ],
    ids=lambda moment: moment[1],
)
def test_killed_while_scoring_or_switching_and_run_again(
    project: ModuleType,
    tmp_path: Path,
    whole: Any,
    moment: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(moment[0], _raise)
        with pytest.raises(KilledError):
            run(project, tmp_path)
    assert_same(run(project, tmp_path), whole)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_killed_write_costs_at_most_what_it_would_have_added(
    project: ModuleType,
    tmp_path: Path,
    whole: Any,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is written at the start, after each of the two epochs, and with the selection."""
    save = callbacks._separation.save_atomically
    calls: list[int] = []

    def killed(value: Any, path: Path) -> None:
        calls.append(1)
        if len(calls) == number + 1:
            path.parent.mkdir(exist_ok=True)
            path.with_name(f".{path.name}.1.tmp").write_bytes(b"half of it")
            raise KilledError
        save(value, path)

    with monkeypatch.context() as patch:
        patch.setattr("callbacks._separation.save_atomically", killed)
        with pytest.raises(KilledError):
            run(project, tmp_path)
    assert_same(run(project, tmp_path), whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.jsonl", "useful.json"]


def test_a_polite_end_in_stage_one_is_noticed_and_goes_on(
    project: ModuleType, tmp_path: Path, whole: Any
) -> None:
    class Terminate(KillAt):
        def on_train_batch_start(self, *args: Any) -> None:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            self.left -= 1

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SIGTERMException):
        run(project, tmp_path, Terminate(11))
    assert signal.getsignal(signal.SIGTERM) is before
    assert_same(run(project, tmp_path), whole)


def test_the_trainer_is_whole_after_an_error_in_stage_one(
    project: ModuleType, tmp_path: Path
) -> None:
    class Keep(KillAt):
        trainer: Any

        def on_train_batch_start(self, *args: Any) -> None:
            self.trainer = args[0]
            super().on_train_batch_start(*args)

    keep = Keep(3)
    with pytest.raises(KilledError):
        run(project, tmp_path, keep)
    trainer = keep.trainer
    assert type(trainer.fit_loop).__name__ == "_FitLoop"
    assert len(trainer.callbacks) == 3
    assert trainer.limit_val_batches == 1.0
    assert trainer.logger.stage == "training"
    assert "log_metrics" not in vars(trainer.logger)
    assert "setup_optimizers" not in vars(trainer.strategy)


def test_killed_twice(project: ModuleType, tmp_path: Path, whole: Any) -> None:
    for batch in (12, 6):  # in epoch 1 of stage one; then in stage two
        with pytest.raises(KilledError):
            run(project, tmp_path, KillAt(batch))
    assert_same(run(project, tmp_path), whole)


def test_resumes_with_workers_own_generators_and_schedules_by_epoch(
    project: ModuleType, tmp_path: Path
) -> None:
    class ByEpoch(project.Project):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def again(folder: Path, *extra: L.Callback) -> Any:
        generator = torch.Generator().manual_seed(3)
        train = project.loader(generator=generator, num_workers=1)
        return run(project, folder, *extra, module=ByEpoch, train=train)

    with pytest.raises(KilledError):
        again(tmp_path / "killed", KillAt(10))
    assert_same(again(tmp_path / "killed"), again(tmp_path / "whole"))


def test_the_automatic_epoch_resumes_with_its_errors(project: ModuleType, tmp_path: Path) -> None:
    def again(folder: Path, *extra: L.Callback) -> Any:
        return run(project, folder, *extra, epochs="auto", max_epochs=35)

    reference = again(tmp_path / "whole")
    assert reference[1].epochs == 3
    assert len(reference[1].errors) == 4
    with pytest.raises(KilledError):
        again(tmp_path / "killed", KillAt(19))
    assert_same(again(tmp_path / "killed"), reference)
    rows = [row for row in reference[2] if "separation/train_error" in row]
    assert [row["separation/train_error"] for row in rows] == list(reference[1].errors)
    assert [row["epoch"] for row in rows] == [0, 0, 1, 2]


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_stage_two_resumes_from_its_checkpoint_without_a_second_stage_one(
    project: ModuleType, tmp_path: Path, whole: Any
) -> None:
    def checkpoint(folder: Path) -> ModelCheckpoint:
        return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_last=True)

    class Seeds(L.Callback):
        """Lightning's checkpoints hold no random states."""

        runs_in_separation = True

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            torch.manual_seed(trainer.current_epoch)

    def again(name: str, *extra: L.Callback, **arguments: Any) -> Any:
        # In order, and with a generator of its own: a resumed epoch of Lightning's makes its
        # iterator before that callback, another epoch after it.
        train = project.loader(shuffle=False, generator=torch.Generator())
        extra = (Seeds(), *extra, checkpoint(tmp_path / f"{name}_checkpoints"))
        return run(project, tmp_path / name, *extra, train=train, **arguments)

    reference = again("whole")
    with pytest.raises(KilledError):
        again("killed", KillAt(16 + 26))
    (tmp_path / "killed" / "separation.ckpt").unlink()  # not needed any more
    last = tmp_path / "killed_checkpoints" / "last.ckpt"
    resumed = again("killed", fit_arguments={"ckpt_path": last})
    assert resumed[0] == reference[0]
    assert torch.equal(resumed[1].selected, reference[1].selected)
    assert resumed[3] == reference[3]  # every batch of both stages once


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_checkpoint_written_inside_stage_one_continues_from_the_stage_s_file(
    project: ModuleType, tmp_path: Path, whole: Any
) -> None:
    """As SLURM's requeue does; its checkpoint holds stage one's weights and optimizer."""

    class Requeue(KillAt):
        def on_train_batch_start(self, *args: Any) -> None:
            if self.left == 0:
                args[0].save_checkpoint(tmp_path / "hpc.ckpt")
            super().on_train_batch_start(*args)

    with pytest.raises(KilledError):
        run(project, tmp_path, Requeue(11))
    arguments = {"ckpt_path": tmp_path / "hpc.ckpt"}
    assert_same(run(project, tmp_path, fit_arguments=arguments), whole)
    with pytest.raises(RuntimeError, match=r"separation.ckpt must be there to continue from"):
        run(project, tmp_path, fit_arguments=arguments)


def test_a_checkpoint_without_our_state_is_refused(project: ModuleType, tmp_path: Path) -> None:
    project.fit(tmp_path, [ModelCheckpoint(tmp_path / "plain", save_last=True)], max_epochs=2)
    arguments = {"ckpt_path": tmp_path / "plain" / "last.ckpt"}
    with (
        pytest.warns(UserWarning, match="callbacks used to create the checkpoint"),
        pytest.raises(ValueError, match="must hold the state of UsefulUpsampling, got none"),
    ):
        project.fit(tmp_path, [UsefulUpsampling(2)], fit_arguments=arguments)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_other_settings_than_those_of_the_checkpoint_are_refused(
    project: ModuleType, tmp_path: Path
) -> None:
    def callbacks(**settings: Any) -> list[Any]:
        kept = ModelCheckpoint(tmp_path / "kept", save_last=True)
        return [UsefulUpsampling(2, **settings), kept]

    project.fit(tmp_path, callbacks(), max_epochs=3)
    arguments = {"ckpt_path": tmp_path / "kept" / "last.ckpt"}
    with pytest.raises(ValueError, match=r"factor must be as in the checkpoint, got \[3\], there"):
        project.fit(tmp_path, callbacks(factor=3), fit_arguments=arguments)


def _other_seed(project: ModuleType) -> dict[str, Any]:
    return {"seed": 2}


def _other_data(project: ModuleType) -> dict[str, Any]:
    return {"train": project.loader(project.dataset(seed=6))}


def _longer(project: ModuleType) -> dict[str, Any]:
    return {"max_epochs": 7}


@pytest.mark.parametrize(
    ("changed", "named"),
    [(_other_seed, "initial weights"), (_other_data, "data"), (_longer, "max_epochs")],
)
def test_a_stale_file_of_another_run_is_refused(
    project: ModuleType,
    tmp_path: Path,
    changed: Callable[[ModuleType], dict[str, Any]],
    named: str,
) -> None:
    with pytest.raises(KilledError):
        run(project, tmp_path, KillAt(11))
    with pytest.raises(ValueError, match=rf"separation.ckpt must be of this run, .*{named} \("):
        run(project, tmp_path, **changed(project))
    with pytest.raises(ValueError, match="remove the file to start anew"):
        run(project, tmp_path, epochs=3)
    (tmp_path / "separation.ckpt").unlink()
    run(project, tmp_path, **changed(project))


def test_the_file_loads_with_weights_only(project: ModuleType, tmp_path: Path) -> None:
    for batch in (11, 20):
        with pytest.raises(KilledError):
            run(project, tmp_path / str(batch), KillAt(batch))
        torch.load(tmp_path / str(batch) / "separation.ckpt", weights_only=True)


def moments(folder: Path) -> list[str]:
    path = folder / "moments.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("until", ["separation 1 ", "training 1 "])
def test_a_process_killed_for_good_goes_on_with_the_same_command(
    project: ModuleType, tmp_path: Path, until: str
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(tmp_path / "killed"), "--slowly"]
    (tmp_path / "killed").mkdir()
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(line.startswith(until) for line in moments(tmp_path / "killed")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run(command[:3], env=environment, check=True, capture_output=True, timeout=120)
    _, module = project.fit(tmp_path / "whole", [UsefulUpsampling(2)])
    assert (tmp_path / "killed" / "final0.txt").read_text() == project.digest(module)
