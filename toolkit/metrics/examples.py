"""Per-example values of a pass over the data, each example counted once, on any number of ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int, Int64, Shaped
from torch import Tensor

from toolkit.distributed import gather_rows, is_main, max_across_ranks

__all__ = ["ExampleRows", "SplitRows"]


class ExampleRows:
    """Collects values of examples batch by batch; :meth:`merged` gives each example once.

    Of an example that came several times (upsampled copies, or the examples with which a sampler
    pads the ranks to equal length) the last value counts. Batches are copied into arrays that are
    kept from pass to pass, by three kernels and without waiting for the device, so memory is flat:
    at most two rows per example of this rank.

    Args:
        num_labels: Integers per example, such as its class.
        num_values: Numbers per example, kept in double precision.
        by_index: ``False`` where examples have no index: then every row counts.

    Example:
        >>> rows = ExampleRows(num_labels=1, num_values=1)
        >>> for index, loss in ((1, 0.5), (0, 0.25), (1, 0.125)):
        ...     one = torch.tensor([index])
        ...     rows.add(one, labels=[one], values=[torch.tensor([loss])])
        >>> rows.merged()[1].flatten().tolist()
        [0.25, 0.125]
    """

    def __init__(self, num_labels: int, num_values: int, *, by_index: bool = True) -> None:
        self.device = torch.device("cpu")
        self._by_index = by_index
        self._num_labels = num_labels
        self._num_values = num_values
        self._steps, self._ids, self._values = self._arrays(0)
        self._count = 0
        self._step = 0

    def add(
        self,
        indices: Int[Tensor, " batch"] | None,
        labels: Sequence[Int[Tensor, " batch"]],
        values: Sequence[Shaped[Tensor, " batch"]],
    ) -> None:
        """Append a batch.

        Args:
            indices: Which examples; ``None`` if there are no indices.
            labels: ``num_labels`` vectors of integers.
            values: ``num_values`` vectors of numbers or booleans.
        """
        self.to(values[0].device)
        stop = self._count + len(values[0])
        if stop > len(self._steps):
            self._make_room(len(values[0]))
            stop = self._count + len(values[0])
        new = slice(self._count, stop)
        ids = [*labels] if indices is None else [indices, *labels]
        self._steps[new].fill_(self._step)
        dtype = self._values.dtype
        torch.stack([column.to(self.device, torch.int64) for column in ids], 1, out=self._ids[new])
        columns = [column.to(self.device, dtype) for column in values]
        torch.stack(columns, 1, out=self._values[new])
        self._count = stop
        self._step += 1

    def merged(
        self,
    ) -> tuple[Int64[Tensor, "examples labels"], Float64[Tensor, "examples values"]]:
        """Labels and values of all ranks' examples, on the CPU, the same on every rank.

        In the order of the indices, so that sums over them do not depend on the number of ranks;
        without indices in the order of the batches, then of the ranks.
        """
        _, ids, values = self._merged()
        return ids[:, int(self._by_index) :], values

    def clear(self) -> None:
        """Forget all rows, keep the memory."""
        self._count = 0
        self._step = 0

    def to(self, device: torch.device) -> None:
        """Keep the rows on this device; under NCCL also needed where a rank has no rows."""
        if device != self.device:
            self.device = device
            capacity, kept = len(self._steps), self._rows()
            self._steps, self._ids, self._values = self._arrays(capacity)
            self._put(*kept)

    def state_dict(self) -> dict[str, Any]:
        """The rows of all ranks; to be called on every rank."""
        steps, ids, values = self._merged()
        return {"steps": steps, "ids": ids, "values": values, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows, on any number of ranks; to be called on every rank."""
        self.clear()
        self._step = state_dict["step"]
        if is_main():  # one rank holds them all: merging counts each example once
            self._make_room(len(state_dict["steps"]))
            self._put(state_dict["steps"], state_dict["ids"], state_dict["values"])

    def _rows(self) -> tuple[Tensor, Tensor, Tensor]:
        count = self._count
        return self._steps[:count], self._ids[:count], self._values[:count]

    def _put(self, steps: Tensor, ids: Tensor, values: Tensor) -> None:
        self._count = len(steps)
        for array, rows in zip(self._rows(), (steps, ids, values), strict=True):
            array.copy_(rows)

    def _make_room(self, num_new: int) -> None:
        if self._by_index and self._count:
            self._put(*_last_rows(*self._rows()))
        if 2 * (self._count + num_new) > len(self._steps):
            kept = self._rows()
            self._steps, self._ids, self._values = self._arrays(2 * (self._count + num_new))
            self._put(*kept)

    def _arrays(self, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
        # Made outside inference mode: a validation's rows may be reused where it is off.
        with torch.inference_mode(False):
            width = self._num_labels + self._by_index
            exact = torch.float32 if self.device.type == "mps" else torch.float64
            return (
                torch.empty(capacity, dtype=torch.int64, device=self.device),
                torch.empty(capacity, width, dtype=torch.int64, device=self.device),
                torch.empty(capacity, self._num_values, dtype=exact, device=self.device),
            )

    def _merged(self) -> tuple[Tensor, Tensor, Tensor]:
        steps, ids, values = (gather_rows(rows).cpu() for rows in self._rows())
        order = steps.argsort(stable=True)  # within a step, rank by rank, as one process would
        rows = steps[order], ids[order], values[order].double()
        return _last_rows(*rows) if self._by_index else rows


class SplitRows:
    """:class:`ExampleRows` for each split, and the number of classes that batches showed.

    Rows of ``train`` are its state, for a checkpoint in the middle of an epoch; other splits are
    passed over as a whole.

    Args:
        splits: Their names.
        num_labels: Integers per example.
        num_values: Numbers per example.
        by_index: ``False`` where examples have no index.
    """

    def __init__(
        self, splits: Sequence[str], num_labels: int, num_values: int, *, by_index: bool = True
    ) -> None:
        self._rows = {
            split: ExampleRows(num_labels, num_values, by_index=by_index) for split in splits
        }
        self._num_classes = 0

    def __contains__(self, split: str) -> bool:
        return split in self._rows

    def add(
        self,
        split: str,
        logits: Float[Tensor, "batch classes"],
        indices: Int[Tensor, " batch"] | None,
        labels: Sequence[Int[Tensor, " batch"]],
        values: Sequence[Shaped[Tensor, " batch"]],
    ) -> None:
        """Append a batch, see :meth:`ExampleRows.add`; of the logits only the shape is read."""
        self._num_classes = max(self._num_classes, logits.shape[1])
        self._rows[split].add(indices, labels, values)

    def begin(self, split: str, device: torch.device) -> None:
        """Forget the split's rows, if it is one of these, and keep new ones on this device."""
        if split in self._rows:
            self._rows[split].clear()
        self.to(device)

    def take(
        self, split: str
    ) -> tuple[Int64[Tensor, "examples labels"], Float64[Tensor, "examples values"], int]:
        """Labels, values (see :meth:`ExampleRows.merged`) and number of classes; then forget them.

        To be called on every rank; the classes are those that any rank has seen, 0 if none.
        """
        rows = self._rows[split]
        labels, values = rows.merged()
        rows.clear()
        seen = torch.tensor(self._num_classes, device=rows.device)
        return labels, values, int(max_across_ranks(seen))

    def to(self, device: torch.device) -> None:
        """Keep all rows on this device."""
        for rows in self._rows.values():
            rows.to(device)

    def state_dict(self) -> dict[str, Any]:
        """The rows of ``train``, of all ranks; to be called on every rank."""
        if "train" not in self._rows:
            return {}
        return {"train": self._rows["train"].state_dict(), "num_classes": self._num_classes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows of ``train``; to be called on every rank."""
        if "train" in self._rows and "train" in state_dict:
            self._rows["train"].load_state_dict(state_dict["train"])
            self._num_classes = state_dict["num_classes"]


def _last_rows(steps: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each index the last row, in the order of the indices."""
    indices, order = ids[:, 0].sort(stable=True)
    is_last = torch.ones_like(indices, dtype=torch.bool)
    is_last[:-1] = indices[1:] != indices[:-1]
    kept = order[is_last]
    return steps[kept], ids[kept], values[kept]
