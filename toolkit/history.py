"""The append-only record of a run, in JSON lines; W&B and CSV mirror it."""

import csv
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["History", "read_history", "read_json", "write_csv", "write_json"]


class History:
    """Appends rows to a JSON-lines file; each row gets its number under ``row``.

    A row is written with one ``write`` call and flushed, so a killed process leaves at most one
    incomplete last line, which is dropped when the file is opened again. On resume
    :meth:`cut_to` takes the record back to the checkpoint; the rows after it are replayed.

    Args:
        path: The file; made, with its folder, at the first row.

    Example:
        >>> import tempfile
        >>> with History(Path(tempfile.mkdtemp()) / "history.jsonl") as history:
        ...     history.append({"update": 0, "train/loss": 0.5})
        ...     history.append({"update": 1, "train/loss": float("nan")})
        ...     history.cut_to(1)
        ...     history.num_rows
        1
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.num_rows = self._repair()
        self._file = None if not self.path.exists() else self.path.open("a", encoding="utf-8")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; NaN and infinities become ``null``."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(_dumps({"row": self.num_rows, **row}) + "\n")
        self._file.flush()
        self.num_rows += 1

    def cut_to(self, num_rows: int) -> None:
        """Keep the first ``num_rows`` rows.

        Raises:
            ValueError: If the record is shorter than that.
        """
        if num_rows > self.num_rows:
            raise ValueError(
                f"num_rows must be at most {self.num_rows}, the length of {self.path}, "
                f"got {num_rows}. The record and the checkpoint are not of the same run."
            )
        if num_rows == self.num_rows:
            return
        self.close()
        lines = self.path.read_bytes().splitlines(keepends=True)
        os.truncate(self.path, sum(map(len, lines[:num_rows])))
        self.num_rows = num_rows
        self._file = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file; a later :meth:`append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _repair(self) -> int:
        """Drop an incomplete last line, as a killed write leaves it; the number of whole rows."""
        if not self.path.exists():
            return 0
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        return data[:whole].count(b"\n")


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a record, an incomplete last line left out; ``[]`` if there is no file."""
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def write_csv(rows: list[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Rewrite a CSV file from the rows of a record; columns in the order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with _replacing(Path(path)) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file; ``None`` if there is no file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_json(value: Any, path: str | os.PathLike[str]) -> None:
    """Replace a JSON file in one step; NaN and infinities become ``null``."""
    with _replacing(Path(path)) as temporary:
        temporary.write_text(_dumps(value, indent=1) + "\n", encoding="utf-8")


class _replacing:  # noqa: N801 - reads as a verb in a with statement
    """A temporary path beside ``path`` that takes its place if the block succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def _dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """``value`` with numbers, names, lists and mappings only, as JSON takes them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy and torch numbers and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
