"""Two gloo processes, each with a part of the data."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from toolkit.history import read_json

pytestmark = pytest.mark.ranks

PROGRAM = Path(__file__).with_name("program.py")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "NODE_RANK")
    }
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *options],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def finished(folder: Path, *options: str) -> Any:
    done = run(folder, *options)
    assert done.returncode == 0, done.stderr
    return read_json(folder / "useful.json")


def test_two_processes_find_the_clusters_and_weights_of_one(tmp_path: Path) -> None:
    one = finished(tmp_path / "one", "--ours")
    two = finished(tmp_path / "two", "--ours", "--devices", "2")
    assert two["cluster"] == one["cluster"]
    assert two["selected_hash"] == one["selected_hash"]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    first, second = (torch.load(tmp_path / "two" / f"final{rank}.pt") for rank in (0, 1))
    whole = torch.load(tmp_path / "one" / "final0.pt")
    for key, value in first.items():
        assert torch.equal(value, second[key])
        torch.testing.assert_close(value, whole[key], rtol=1e-4, atol=1e-5)


def test_two_processes_that_were_killed_go_on(tmp_path: Path) -> None:
    """In the second epoch of stage one, four batches each; and then in stage two."""
    whole = finished(tmp_path / "whole", "--devices", "2")
    for batch in ("6", "5"):
        killed = run(tmp_path / "killed", "--devices", "2", "--kill-at", batch)
        assert killed.returncode in (9, -signal.SIGTERM, -signal.SIGKILL, 1)
        assert not (tmp_path / "killed" / "final0.txt").exists()
    assert (tmp_path / "killed" / "separation.ckpt").exists()
    assert finished(tmp_path / "killed", "--devices", "2") == whole
    for rank in (0, 1):  # a plain loader, divided by Lightning's sampler; 61 examples, one padded
        name = f"final{rank}.txt"
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert whole["num_examples"] == 61
