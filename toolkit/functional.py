"""What several callbacks need: reading fields of any batch, a log-spaced grid of updates."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from toolkit.suggest import nearest

__all__ = ["Field", "Fields", "next_log_point"]

Field = Callable[[Any], Tensor] | str


class Fields:
    """Reads named tensors out of batches and step outputs, by key or by a callable.

    Args:
        names: The fields there are; each is read under its own name unless ``chosen`` differs.
        chosen: For some of the names another key, a callable that takes the batch (or outputs)
            and returns the tensor, or ``None`` for a field that the data does not have.

    Raises:
        ValueError: If ``chosen`` holds a name that is not in ``names``.

    Example:
        >>> import torch
        >>> fields = Fields(("targets", "indices"), {"targets": lambda batch: batch[1]})
        >>> fields.read("targets", (torch.zeros(2, 3), torch.tensor([1, 0])))
        tensor([1, 0])
    """

    def __init__(
        self, names: Iterable[str], chosen: Mapping[str, Field | None] | None = None
    ) -> None:
        self._fields: dict[str, Field | None] = {name: name for name in names}
        for name, field in (chosen or {}).items():
            if name not in self._fields:
                near = nearest(name, self._fields)
                hint = f" Did you mean {near!r}?" if near else ""
                raise ValueError(f"fields must be among {list(self._fields)}, got {name!r}.{hint}")
            self._fields[name] = field

    def is_default(self, name: str) -> bool:
        """Whether a field is read under its own name."""
        return self._fields[name] == name

    def is_absent(self, name: str) -> bool:
        """Whether the data was said not to have this field."""
        return self._fields[name] is None

    def find(self, name: str, source: Any) -> Tensor | None:
        """The field's tensor, detached, or ``None`` where ``source`` does not hold it."""
        field = self._fields[name]
        if field is None:
            return None
        if not isinstance(field, str):
            return field(source).detach()
        value = source.get(field) if isinstance(source, Mapping) else None
        return value.detach() if isinstance(value, Tensor) else None

    def read(self, name: str, source: Any, what: str = "a batch") -> Tensor:
        """The field's tensor, detached.

        Raises:
            ValueError: If ``source`` does not hold it; ``what`` names the source.
        """
        value = self.find(name, source)
        if value is None:
            held = list(source) if isinstance(source, Mapping) else type(source).__name__
            absent = "" if name in ("logits", "targets") else ", or None if there is none"
            raise ValueError(
                f"{what} must hold the tensor {self._fields[name]!r}, got {held}. Name the key or "
                f"give a callable: fields={{{name!r}: ...}}{absent}."
            )
        return value

    def read_unless_absent(self, name: str, source: Any) -> Tensor | None:
        """As :meth:`read`, but ``None`` where the data was said not to have the field."""
        return None if self.is_absent(name) else self.read(name, source)


def next_log_point(done: int, per_decade: int) -> int:
    """The smallest point above ``done`` of the grid ``round(10 ** (k / per_decade))``, k >= 0.

    Args:
        done: At least 0, for example a number of updates.
        per_decade: Points per factor of ten, at least 1; those that round to one number are one.

    Example:
        >>> [next_log_point(done, 3) for done in (0, 1, 2, 5, 10, 999)]
        [1, 2, 5, 10, 22, 1000]
    """
    exponent = math.floor(math.log10(max(done, 1)) * per_decade)
    while round(10 ** (exponent / per_decade)) <= done:
        exponent += 1
    return round(10 ** (exponent / per_decade))
