import csv
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from toolkit.history import History, read_history, read_json, write_csv, write_json


def test_rows_come_back_in_order_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "history.jsonl"
    history = History(path)
    given = [history.append({"update": update, "row": "no"}) for update in range(3)]
    assert read_history(path) == given == [{"row": k, "update": k} for k in range(3)]
    assert next(iter(given[0])) == "row"


def test_a_record_opened_again_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path).append({"update": 0})
    again = History(path)
    assert (again.num_rows, again.last) == (1, {"row": 0, "update": 0})
    assert again.append({"update": 1}) == again.last == {"row": 1, "update": 1}
    assert [row["row"] for row in read_history(path)] == [0, 1]


def test_a_row_cut_short_at_any_byte_costs_that_row_only(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    rows = [history.append({"note": "ä\u2028\n\r", "value": 0.1 * k}) for k in range(3)]
    data = path.read_bytes()
    ends = [k + 1 for k, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        assert read_history(path) == rows[:whole]
        history = History(path)
        assert history.num_rows == whole
        history.append(rows[whole])
        assert read_history(path) == rows[: whole + 1]


def test_a_process_killed_while_it_writes_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    code = (
        "import sys; from toolkit.history import History\n"
        "history = History(sys.argv[1])\n"
        "while True: history.append({'text': 'x' * 5000})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    while not path.exists() or path.stat().st_size < 1_000_000:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    size = History(path).num_rows
    rows = read_history(path)
    assert [row["row"] for row in rows] == list(range(size))
    assert {row["text"] for row in rows} == {"x" * 5000}


def test_a_cut_and_replayed_record_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, cut = History(tmp_path / "whole.jsonl"), History(tmp_path / "cut.jsonl")
    for history in (whole, cut):
        for update in range(5):
            history.append({"update": update})
    for keep in (5, 3, 0):
        cut.cut_to(keep)
        assert cut.num_rows == keep
        assert cut.last == ({"row": keep - 1, "update": keep - 1} if keep else None)
        for update in range(keep, 5):
            cut.append({"update": update})
        assert cut.path.read_bytes() == whole.path.read_bytes()


@pytest.mark.parametrize("num_rows", [2, -1])
def test_a_cut_beyond_the_record_is_refused(tmp_path: Path, num_rows: int) -> None:
    history = History(tmp_path / "history.jsonl")
    history.append({})
    message = rf"num_rows must lie in 0\.\.1, the length of .*, got {num_rows}\. The record and"
    with pytest.raises(ValueError, match=message):
        history.cut_to(num_rows)


def test_absent_values_are_null_and_arrays_are_lists(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    row = history.append(
        {
            "nan": math.nan,
            "nested": {"list": [1.0, -math.inf], "tuple": (np.float32("nan"), 2)},
            "tensor": torch.tensor(math.inf),
            "array": np.arange(2),
            "path": Path("a/b"),
        }
    )
    assert row == {
        "row": 0,
        "nan": None,
        "nested": {"list": [1.0, None], "tuple": [None, 2]},
        "tensor": None,
        "array": [0, 1],
        "path": "a/b",
    }
    assert b"NaN" not in history.path.read_bytes()


@contextmanager
def _disk_with_room_for(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes; writes beyond it are cut short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_no_earlier_row(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    first = history.append({"text": "x" * 50})
    with _disk_with_room_for(history.path.stat().st_size + 10), pytest.raises(OSError, match="27"):
        history.append({"text": "y" * 50})
    assert history.path.read_bytes().endswith(b'x"}\n')  # nothing of the second row is left
    assert (read_history(history.path), history.num_rows) == ([first], 1)
    second = history.append({"text": "z"})  # somebody freed space
    assert read_history(history.path) == [first, second]


def test_a_full_disk_leaves_the_old_json_and_csv(tmp_path: Path) -> None:
    write_json({"old": 1}, tmp_path / "result.json")
    write_csv([{"old": 1}], tmp_path / "history.csv")
    with _disk_with_room_for(10):
        with pytest.raises(OSError, match="27"):
            write_json({"new": "x" * 50}, tmp_path / "result.json")
        with pytest.raises(OSError, match="27"):
            write_csv([{"new": "x" * 50}], tmp_path / "history.csv")
    assert read_json(tmp_path / "result.json") == {"old": 1}
    assert (tmp_path / "history.csv").read_text() == "old\n1\n"
    assert sorted(os.listdir(tmp_path)) == ["history.csv", "result.json"]


def test_csv_is_rewritten_with_every_column_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    write_csv([{"row": 0, "gone": 1}], path)
    write_csv([{"row": 0, "a": 'ä,"'}, {"row": 1, "b": None, "a": 0.5}], path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["row", "a", "b"], ["0", 'ä,"', ""], ["1", "0.5", ""]]


def test_a_missing_record_is_empty_and_a_missing_json_is_none(tmp_path: Path) -> None:
    assert read_history(tmp_path / "history.jsonl") == []
    assert read_json(tmp_path / "result.json") is None
    assert History(tmp_path / "history.jsonl").num_rows == 0
    assert os.listdir(tmp_path) == []  # looking makes no file
