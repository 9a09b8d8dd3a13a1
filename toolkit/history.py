"""The append-only record of a run, in JSON lines; W&B and CSV mirror it."""

import contextlib
import csv
import json
import math
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

__all__ = [
    "DamagedFileError",
    "History",
    "read_history",
    "read_json",
    "reading",
    "replacing",
    "write_csv",
    "write_json",
]


class DamagedFileError(ValueError):
    """A file of a run cannot be read; says which, and what to delete."""


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], remedy: str) -> Iterator[None]:
    """Say of whatever the block raises that ``path`` is damaged, and ``remedy``.

    Raises:
        DamagedFileError: For any exception but that there is no such file, or no memory.
    """
    try:
        yield
    except (FileNotFoundError, MemoryError, DamagedFileError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        raise DamagedFileError(
            f"{os.fspath(path)} must be as it was written, got a damaged file "
            f"({type(error).__name__}: {text}). {remedy}"
        ) from error


class History:
    """Appends rows to a JSON-lines file; each row gets its number under ``row``.

    A row goes to the operating system as soon as it is appended, so a killed process leaves at
    most one incomplete last line, which is dropped when the file is opened again. A row that
    could not be written whole (a full disk) is taken back before the error is raised. On resume
    :meth:`cut_to` takes the record back to the checkpoint; the rows after it are replayed.

    Args:
        path: The file; made, with its folder, at the first row.

    Attributes:
        num_rows: Number of whole rows in the file.
        last: The last of them, ``None`` if there is none.

    Example:
        >>> import tempfile
        >>> history = History(Path(tempfile.mkdtemp()) / "history.jsonl")
        >>> row = history.append({"update": 0, "train/loss": 0.5})
        >>> row = history.append({"update": 1, "train/loss": float("nan")})
        >>> history.cut_to(1)
        >>> history.num_rows, row
        (1, {'row': 1, 'update': 1, 'train/loss': None})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.num_rows = 0
        self.last: dict[str, Any] | None = None
        self._repair()

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Write one row; NaN and infinities become ``null``.

        Returns:
            The row as :func:`read_history` will give it.

        Raises:
            OSError: If it cannot be written; the record is then as it was before.
        """
        text = _dumps({"row": None, **row} | {"row": self.num_rows})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, (text + "\n").encode())
            except OSError:
                file.truncate(size)
                raise
        self.num_rows += 1
        written: dict[str, Any] = json.loads(text)
        self.last = written
        return written

    def cut_to(self, num_rows: int) -> None:
        """Keep the first ``num_rows`` rows.

        Raises:
            ValueError: If the record is shorter than that.
        """
        if not 0 <= num_rows <= self.num_rows:
            raise ValueError(
                f"num_rows must lie in 0..{self.num_rows}, the length of {self.path}, "
                f"got {num_rows}. The record and the checkpoint are not of the same run; delete "
                f"{self.path.parent} to train that run again."
            )
        if num_rows == self.num_rows:
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        os.truncate(self.path, sum(map(len, lines[:num_rows])))
        self._repair()

    def _repair(self) -> None:
        """Drop an incomplete last line, as a killed write leaves it; count the whole rows."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        lines = data[:whole].splitlines()
        self.num_rows = len(lines)
        with reading(self.path, _again(self.path)):
            self.last = _mapping(lines[-1]) if lines else None


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a record, an incomplete last line left out; ``[]`` if there is no file.

    Raises:
        DamagedFileError: If a line is no row.
    """
    path = Path(path)
    if not path.exists():
        return []
    with reading(path, _again(path)):
        lines = path.read_bytes().split(b"\n")  # bytes: the last line may end within a character
        return [_mapping(line) for line in lines[:-1]]


def write_csv(rows: list[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Rewrite a CSV file from the rows of a record; columns in the order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (
        replacing(Path(path)) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The mapping in a JSON file; ``None`` if there is no file.

    Raises:
        DamagedFileError: If it holds something else.
    """
    with contextlib.suppress(FileNotFoundError), reading(path, "Delete that file."):
        return _mapping(Path(path).read_bytes())
    return None


def write_json(value: Any, path: str | os.PathLike[str]) -> None:
    """Replace a JSON file in one step; NaN and infinities become ``null``."""
    with replacing(Path(path)) as temporary:
        text = _dumps(value, indent=1) + "\n"
        # A name from the file system or the command line may hold bytes that were not decoded.
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which takes its place in one step if the block succeeds.

    If it does not, what was at ``path`` stays. The folder is made if it is absent.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _mapping(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"no mapping but {text[:40]!r}")
    return value


def _again(record: Path) -> str:
    return f"Delete {record.parent} to train that run again."


def _write_all(file: FileIO, data: bytes) -> None:
    """Write every byte: one ``write`` to an unbuffered file may take fewer."""
    while data:
        data = data[file.write(data) :]


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
