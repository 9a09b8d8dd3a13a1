"""What a person may get wrong or run into: each ends in one clear line, and costs no result."""

import errno
import io
import json
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_recipe
from toolkit.claims.summary import build_study, read_results
from toolkit.config import RecipeError, check, load_recipe
from toolkit.console import LastingConsole, accept_any_text
from toolkit.fit import main
from toolkit.history import DamagedFileError, History, read_history, read_json, write_json
from toolkit.preview import preview
from toolkit.run import Event, FolderInUseError, FolderLock, Run, run_all
from toolkit.run.checkpoints import AtomicCheckpointIO
from toolkit.run.rehearsal import rehearse
from toolkit.run.training import train
from toolkit.saving import save_atomically
from toolkit.study import Study

EARLY = "{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val/eror}"
LINEAR = "{_target_: torch.nn.Linear, in_features: 1, out_features: 2}"


def _run(recipe: Path, *words: str) -> Run:
    loaded = load_recipe(recipe, words)
    return Run("tiny", "sgd", 0, recipe.parent / "run", loaded.resolve("sgd", 0))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.max_epochs=0", "trainer.max_epochs: must be at least 1, or -1 beside a max_step"),
        ("trainer.max_epochs=-1", "trainer.max_epochs: must be at least 1"),
        ("trainer.max_steps=0", "trainer.max_steps: must be at least 1"),
        ("trainer.limit_train_batches=0", "trainer.limit_train_batches: must be above 0, got 0"),
        ("trainer.limit_val_batches=0.0", "must be above 0, since checkpoint.monitor is 'val/err"),
        ("trainer.devices=0", "trainer.devices: must be the number of devices of a run"),
        ("trainer.devices='2'", "trainer.devices: must be the number of devices of a run"),
        ("trainer.devices=[0]", "CUDA_VISIBLE_DEVICES says which"),
        ("trainer.num_nodes=2", "must be left out: the run sets it; torchrun and SLURM say it"),
        ("trainer.enable_progress_bar=true", "must be left out: the run sets it"),
        ("trainer.fast_dev_run=true", "--dry-run"),
        (f"callbacks.stop={EARLY}", "callbacks.stop.monitor: .*Did you mean 'val/error'"),
    ],
)
def test_settings_of_the_trainer_that_make_no_run_are_faults_of_the_recipe(
    tiny: Path, word: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        check(load_recipe(tiny, [word]), ["sgd"])


def test_a_number_of_updates_bounds_a_run_without_a_number_of_epochs(tiny: Path) -> None:
    words = ["trainer.max_epochs=-1", "trainer.max_steps=7"]
    check(load_recipe(tiny, words), ["sgd"])
    table = preview(load_recipe(tiny, words), ("sgd",), (0,))
    assert list(table.columns[3].cells) == ["7"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.devices=3", "batch_size must be a multiple of .* 3, got 16. Use 15 or 18"),
        ("trainer.devices=16", "the last batch must hold at least one example for each of 16"),
        ("trainer.strategy=nope", "invalid strategy name"),
        ("trainer.accelerator=tpu", "trainer: must suit"),
        ("trainer.gradient_clip_algorithm=bad", "gradient_clip_algorithm"),
        ("model.net.in_channels=3", r"model must take the data's images of \(1, 8, 8\)"),
        ("model.net.num_classes=9", "one logit for each of the data's 10 classes, got .*2, 9"),
        ("model._target_=torch.nn.ReLU", "model must make a LightningModule, got a ReLU"),
        (f"callbacks.x={LINEAR}", "callbacks.x must make a Callback, got a Linear"),
        ("callbacks.x={_target_: callbacks.MarginLogger}", "more than one .*MarginLogger"),
    ],
)
def test_parts_that_do_not_fit_together_are_found_before_a_folder_is_made(
    tiny: Path, word: str, message: str
) -> None:
    run = _run(tiny, word)
    with pytest.raises(ValueError, match=message):
        rehearse([run])
    assert list(tiny.parent.iterdir()) == [tiny]


def test_a_rehearsal_leaves_the_random_numbers_alone(tiny: Path) -> None:
    import torch

    torch.manual_seed(1)
    rehearse([_run(tiny)])
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))


def test_the_ranks_of_a_launcher_count_in_a_rehearsal(tiny: Path) -> None:
    with pytest.raises(ValueError, match="multiple of the number of processes, 5, got 16"):
        rehearse([_run(tiny)], num_ranks=5)


def test_a_dry_run_starts_no_other_process(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    recipe = load_recipe(tiny, ["trainer.devices=2"])
    assert preview(recipe, ("sgd",), (0,)).row_count == 1


def test_a_dry_run_says_in_one_line_what_is_wrong(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny), "--dry-run", "data.batch_size=0"]) == 2
    assert capsys.readouterr().err == "batch_size must be at least 1, got 0.\n"


@pytest.mark.parametrize("name", ["figures", "study.json", "report.html", "results.csv"])
def test_a_variant_must_not_take_the_place_of_a_file_of_the_study(tiny: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=f"variants.{name}: must not be one of figures"):
        load_recipe(tiny, [f"variants={{{name}: {{}}}}", "claims={}"])


def test_brackets_without_end_are_a_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write_recipe(tmp_path / "deep.yaml", "[" * 3000))
    assert [fault.message for fault in caught.value.faults] == [
        "must not be nested that deeply. Check the brackets."
    ]


@pytest.mark.parametrize("content", [b"", b"{no", b"[1]", b"\xff\xfe\x00", b"3"])
def test_a_damaged_file_is_named_with_what_to_delete(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "seed0" / "result.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"result\.json must be .*Delete that file\.$"):
        read_json(path)
    record = path.with_name("history.jsonl")
    record.write_bytes(content + b"\n")
    for read in (read_history, History):
        with pytest.raises(DamagedFileError, match=f"Delete {path.parent} to train that run"):
            read(record)


@pytest.mark.parametrize("content", [b"", b"PK", b"hello world" * 100, None])
def test_a_damaged_checkpoint_is_named_with_what_to_delete(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "seed0" / "checkpoints" / "last.ckpt"
    save_atomically({"something": "else"}, path)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"last.ckpt must.*Delete {tmp_path / 'seed0'} to"):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=True)


def test_a_result_with_words_for_numbers_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sgd" / "seed0" / "result.json"
    write_json({"status": "finished", "metrics": {"test/error": "low"}}, path)
    with pytest.raises(DamagedFileError, match=r"result.json must be .*no number but 'low'"):
        read_results(tmp_path)


@pytest.mark.parametrize("content", ["", "a: [1", "3"])
def test_a_damaged_recipe_of_a_run_is_named_with_what_to_delete(tiny: Path, content: str) -> None:
    study = Study(load_recipe(tiny), tiny.parent, ("sgd",), (0,))
    saved = study.runs()[0].folder / "recipe.yaml"
    saved.parent.mkdir(parents=True)
    saved.write_text(content)
    with pytest.raises(DamagedFileError, match=f"recipe.yaml must.*Delete {saved.parent} to train"):
        study.missing()


@pytest.mark.parametrize("content", ["", "{}", "[]", "{no"])
def test_a_lock_without_its_content_holds_only_while_it_is_new(
    tmp_path: Path, content: str
) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(content)
    with pytest.raises(FolderInUseError, match="an unknown host"):
        FolderLock(tmp_path).__enter__()
    os.utime(lock, (time.time() - 120,) * 2)
    with FolderLock(tmp_path):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()


def test_what_a_killed_write_left_is_removed_when_the_run_starts_again(tiny: Path) -> None:
    run = _run(tiny, "trainer.max_epochs=1")
    left = [run.checkpoints / ".last.ckpt.123.tmp", run.folder / ".result.json.123.tmp"]
    run.checkpoints.mkdir(parents=True)
    for path in left:
        path.write_bytes(b"half")
    train(run)
    assert not [path for path in run.folder.rglob("*") if path.name.endswith(".tmp")]


def test_a_run_that_another_process_has_finished_is_not_trained_again(tiny: Path) -> None:
    run = _run(tiny, "trainer.max_epochs=1")
    write_json({"status": "finished", "seconds": 1.0, "metrics": {}}, run.folder / "result.json")
    heard: list[Event] = []
    outcomes = run_all([run, run], 2, heard.append)
    assert [(end.kind, end.content["seconds"]) for end in outcomes] == [("finished", 1.0)] * 2
    assert not run.checkpoints.exists()


def test_a_folder_that_cannot_be_written_fails_the_run_in_one_line(tiny: Path) -> None:
    run = _run(tiny)
    run.folder.write_text("a file")
    outcomes = run_all([run], 1, lambda event: None)
    assert [end.kind for end in outcomes] == ["failed"]
    assert f"{run.folder} must be a folder to write in, got" in outcomes[0].content


def test_out_that_is_no_folder_ends_in_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny), "--variants", "sgd", "--out", str(tiny)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_process_that_cannot_be_started_fails_its_run_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    run = _run(tiny, "trainer.devices=2")
    outcomes = run_all([run, run], 1, lambda event: None)
    assert [end.kind for end in outcomes] == ["failed", "failed"]
    assert "could not be started: BlockingIOError" in outcomes[0].content


def test_sigterm_interrupts_as_ctrl_c_does(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SLURM sends it when the time is over."""

    def end(*arguments: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("toolkit.fit._command", end)
    assert main([str(tiny)]) == 130
    assert capsys.readouterr().err == "interrupted; the same command continues\n"
    assert signal.getsignal(signal.SIGTERM) is before


class _BrokenClaim:
    """A user's own claim whose judge raises."""

    text, source, requires = "It holds.", "a test", None

    def judge(self, results: Any) -> Any:
        raise ZeroDivisionError("division by zero")


def test_a_claim_that_raises_is_not_tested_and_costs_no_other() -> None:
    node = {"_target_": f"{__name__}._BrokenClaim"}
    claims = build_study({"recipe": "tiny"}, {}, {"first": node, "second": node})["claims"]
    assert [claim["verdict"] for claim in claims] == ["not tested", "not tested"]
    assert claims[1]["evidence"]["reason"] == (
        "judging it raised ZeroDivisionError: division by zero"
    )


def test_names_that_the_locale_could_not_decode_come_back_as_they_were(tmp_path: Path) -> None:
    name = "grün".encode().decode("ascii", "surrogateescape")
    write_json({"recipe": name}, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json") == {"recipe": "grün"}


def test_text_that_the_terminal_cannot_show_becomes_question_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    accept_any_text()
    stream.write("71.0 ± 4.2 %")
    stream.flush()
    assert stream.buffer.getvalue() == b"71.0 ? 4.2 %"  # type: ignore[attr-defined]


def test_a_reader_that_goes_away_does_not_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as stream:
        console = LastingConsole()
        console.file = stream
        console.print("nobody reads this")
        assert console.quiet
        console.print("nor this")


def test_no_space_for_the_output_ends_in_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sys.stdout.write", refuse)
    assert main([str(tiny), "--print"]) == 2
    assert capsys.readouterr().err == f"[Errno {errno.ENOSPC}] No space left on device\n"
