"""Arrays out of .npz, .npy and .csv files, named by references such as ``file.npz:array``."""

import contextlib
import csv
import os
import uuid
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.suggest import nearest

__all__ = ["ArraySource", "cached_array", "data_root"]

Array = np.ndarray[Any, np.dtype[Any]]


def data_root(root: str | None) -> Path:
    """``root``, else the environment variable ``TOOLKIT_DATA``, else ``data``."""
    return Path(root or os.environ.get("TOOLKIT_DATA") or "data").expanduser()


class ArraySource:
    """Reads arrays by reference.

    A reference is ``name`` (an array of the default file), ``file.npz:name``, ``file.npy``, or
    ``file.csv:column`` (whole numbers where every value is one, else text). Relative paths start
    at ``root``.

    Args:
        default: The default ``.npz`` file, or a mapping of names to arrays, or ``None``.
        root: The folder of relative paths.
        cache: Where to keep unpacked copies of arrays whose compression is slow; ``None`` keeps
            none.
    """

    def __init__(self, default: str | Mapping[str, Any] | None, root: Path, cache: str | None):
        self.default = default
        self.root = root
        self.cache = cache

    def read(self, reference: str) -> Array:
        """The array.

        Raises:
            ValueError: If the file or the array in it is missing, or unreadable; in one line.
        """
        file, _, name = reference.rpartition(":")
        if not file and not reference.endswith(".npy"):
            return self._from_default(reference)
        path = self.root / (file or reference)
        _check_exists(path, self.root)
        if path.suffix == ".csv":
            return _read_column(path, name)
        return _read_npz(path, name, self.cache) if file else _load(path)

    def has(self, name: str) -> bool:
        """Whether the default file has an array of that name."""
        if isinstance(self.default, Mapping):
            return name in self.default
        if self.default is None:
            return False
        path = self.root / self.default
        _check_exists(path, self.root)
        return name in _members(path)

    def _from_default(self, name: str) -> Array:
        if isinstance(self.default, Mapping):
            _check_name(name, list(self.default), "the arrays given")
            return np.asarray(self.default[name])
        if self.default is None:
            raise ValueError(
                f"an array without a file must be named file.npz:array, file.npy or "
                f"file.csv:column, got {name!r}. Or give file."
            )
        path = self.root / self.default
        _check_exists(path, self.root)
        return _read_npz(path, name, self.cache)


def cached_array(name: str, make: Callable[[], Array], cache: str | None) -> Array:
    """What ``make`` returns, from the file ``name`` of the folder ``cache`` if it is there.

    The file appears in one step, so concurrent runs never see half of it. A folder that cannot be
    written costs time at the next call, and nothing else.
    """
    if cache is None:
        return make()
    path = Path(cache).expanduser() / name
    try:
        return _as_array(np.load(path))
    except (OSError, ValueError, EOFError):
        array = make()
    temporary = path.with_name(f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.save(file, array)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return array


def _read_npz(path: Path, name: str, cache: str | None) -> Array:
    members = _members(path)
    _check_name(name, list(members), str(path))
    info = members[name]
    if info.compress_type not in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        return _load(path, name)
    # Unpacking these takes seconds for a set of CIFAR-10's size; the checksum names the content.
    kept = f"{path.stem}-{name}-{info.CRC:08x}-{info.file_size}.npy"
    return cached_array(kept, lambda: _load(path, name), cache)


def _members(path: Path) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} must be an .npz file, got {error}. Write it again.") from error


def _load(path: Path, name: str | None = None) -> Array:
    try:
        loaded = np.load(path)
        return _as_array(loaded if name is None else loaded[name])
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} must hold plain NumPy arrays, got an error in reading it: {reason}. "
            "Write it again with numpy.save or numpy.savez."
        ) from error


def _as_array(loaded: Any) -> Array:
    if not isinstance(loaded, np.ndarray):
        raise ValueError("it holds several arrays; name one as file.npz:array")
    return loaded


def _read_column(path: Path, column: str) -> Array:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        _check_name(column, list(reader.fieldnames or []), str(path), "column")
        values = [row[column] or "" for row in reader]
    try:
        return np.array([int(value) for value in values], dtype=np.int64)
    except ValueError:
        return np.array(values, dtype=np.str_)


def _check_exists(path: Path, root: Path) -> None:
    if not path.is_file():
        raise ValueError(
            f"data file must exist, got {path.absolute()}. Put it there, or set root or the "
            f"environment variable TOOLKIT_DATA to its folder (now {root.absolute()})."
        )


def _check_name(name: str, known: list[str], where: str, what: str = "array") -> None:
    if name not in known:
        near = nearest(name, known)
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(
            f"{what} must be one of {', '.join(known)} in {where}, got {name!r}.{hint}"
        )
