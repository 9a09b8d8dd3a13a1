"""The quickstart, killed ten times, equals one that ran through, bit for bit."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_fit
from tests.test_interruption import results, start

RANKS = ("--variants", "sam_useful", "--seeds", "0", "trainer.devices=2")


def _after(low: float, high: float) -> Callable[[Path, random.Random], None]:
    def wait(study: Path, draw: random.Random) -> None:
        time.sleep(draw.uniform(low, high))

    return wait


def _while_there_is(pattern: str) -> Callable[[Path, random.Random], None]:
    """Wait for a file that a run has only for a while, then a short time more."""

    def wait(study: Path, draw: random.Random) -> None:
        before = set(study.glob(pattern))
        while not set(study.glob(pattern)) - before:
            time.sleep(0.001)

    return wait


MOMENTS = {
    "anywhere": _after(3, 16),
    "stage one": _while_there_is("*/seed*/separation.ckpt"),
    "checkpoint write": _while_there_is("*/seed*/checkpoints/.last.ckpt.*.tmp"),
}
PLAN = ["anywhere"] * 6 + ["stage one"] * 2 + ["checkpoint write"] * 2


@pytest.mark.slow
def test_quickstart_killed_ten_times_equals_one_that_ran_through(tmp_path: Path) -> None:
    whole = _finished(tmp_path / "whole")
    draw = random.Random(0)
    for name in draw.sample(PLAN, len(PLAN)):
        _kill(tmp_path / "killed", MOMENTS[name], draw)
    _assert_equal(_finished(tmp_path / "killed"), whole)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("moment", MOMENTS)
def test_two_ranks_killed_equal_two_that_ran_through(tmp_path: Path, moment: str) -> None:
    whole = _finished(tmp_path / "whole", *RANKS)
    _kill(tmp_path / "killed", MOMENTS[moment], random.Random(1), *RANKS)
    _assert_equal(_finished(tmp_path / "killed", *RANKS), whole)


def _kill(
    folder: Path,
    wait: Callable[[Path, random.Random], None],
    draw: random.Random,
    *arguments: str,
) -> None:
    folder.mkdir(exist_ok=True)
    process: subprocess.Popen[str] = start(folder, *arguments, recipe="quickstart")
    wait(folder / "runs" / "quickstart", draw)
    assert process.poll() is None, "the study ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _finished(folder: Path, *arguments: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    done = run_fit(["quickstart", *arguments], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return results(folder / "runs" / "quickstart")


def _assert_equal(found: dict[str, Any], whole: dict[str, Any]) -> None:
    assert found.keys() == whole.keys()
    for key in whole:
        assert found[key] == whole[key], key
