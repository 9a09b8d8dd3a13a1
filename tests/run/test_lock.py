"""The lock of a run's folder: held by the living, not by the dead, on any machine."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from toolkit.run import FolderInUseError, FolderLock


def test_lock_is_gone_after_the_block(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_living_process_is_refused_with_its_number(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path).__enter__()


def test_lock_of_a_killed_process_does_not_hold(tmp_path: Path) -> None:
    script = (
        "import sys, time; from toolkit.run.lock import FolderLock\n"
        f"with FolderLock({str(tmp_path)!r}): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUseError):
            FolderLock(tmp_path).__enter__()
        holder.kill()
    with FolderLock(tmp_path):
        owner = json.loads((tmp_path / ".lock").read_text())
    assert owner["pid"] == os.getpid()


def test_lock_of_a_later_process_with_the_same_number_does_not_hold(tmp_path: Path) -> None:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "start": "1", "token": "old"}
    (tmp_path / ".lock").write_text(json.dumps(owner))
    with FolderLock(tmp_path):
        pass


@pytest.mark.parametrize(("age", "held"), [(10.0, True), (120.0, False)])
def test_lock_of_another_host_holds_while_it_is_renewed(
    tmp_path: Path, age: float, held: bool
) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "token": "other"}))
    os.utime(lock, (time.time() - age,) * 2)
    if held:
        with pytest.raises(FolderInUseError, match="process 1 on elsewhere"):
            FolderLock(tmp_path).__enter__()
    else:
        with FolderLock(tmp_path):
            pass


def _contend(folder: str, wins: "multiprocessing.Queue[int]", together: Any) -> None:
    together.wait(60)
    try:
        with FolderLock(folder):
            wins.put(1)
            together.wait(60)  # holds it until every other has tried
    except FolderInUseError:
        wins.put(0)
        together.wait(60)


def test_one_of_many_contenders_for_a_dead_lock_gets_it(tmp_path: Path) -> None:
    dead = {"host": socket.gethostname(), "pid": os.getpid(), "start": "1", "token": "dead"}
    (tmp_path / ".lock").write_text(json.dumps(dead))
    context = multiprocessing.get_context("fork")
    wins: multiprocessing.Queue[int] = context.Queue()
    arguments = (str(tmp_path), wins, context.Barrier(8))
    contenders = [context.Process(target=_contend, args=arguments) for _ in range(8)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join()
    assert sum(wins.get(timeout=5) for _ in contenders) == 1
