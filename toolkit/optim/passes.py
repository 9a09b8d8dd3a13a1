"""What a second pass over the same batch must find again, and what it must leave behind."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.distributed import max_across_ranks, world_size

__all__ = ["WHOLE", "Chunk", "RandomState", "chunks", "kept_buffers"]


@dataclass(frozen=True)
class Chunk:
    """The rows of a batch that share one perturbation.

    Args:
        rows: Which rows; ``slice(None)`` is the whole batch.
        weight: Their share of the batch, in ``(0, 1]``.
        last: Whether no other chunk of the batch follows.
    """

    rows: slice
    weight: float
    last: bool

    @property
    def whole(self) -> bool:
        """Whether this chunk is the batch."""
        return self.weight == 1


WHOLE = Chunk(slice(None), 1.0, last=True)


def chunks(
    batch_size: int, m: int, perturbation: Literal["global", "local"], device: torch.device
) -> list[Chunk]:
    """Consecutive chunks of ``m`` rows of this rank's batch, the last one with what remains.

    Under a global perturbation ``m`` counts the rows of all ranks. Every rank has as many chunks,
    for with one fewer the others would wait for it forever.

    Args:
        batch_size: Rows of this rank's batch.
        m: Rows per perturbation.
        perturbation: Whether ``m`` counts the rows of all ranks or of one.
        device: Where the ranks can exchange a tensor.

    Raises:
        RuntimeError: If the ranks' batches differ in size.
        ValueError: If ``m`` is not a multiple of the number of ranks and the perturbation global.

    Example:
        >>> [chunk.rows for chunk in chunks(5, 2, "global", torch.device("cpu"))]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = m
    if world_size() > 1:
        _check_equal(batch_size, device)
        size = _share(m) if perturbation == "global" else m
    stops = [min(start + size, batch_size) for start in range(0, batch_size, size)]
    starts = [0, *stops[:-1]]
    return [
        Chunk(slice(start, stop), (stop - start) / batch_size, last=stop == batch_size)
        for start, stop in zip(starts, stops, strict=True)
    ]


class RandomState:
    """The random number generators of Python, NumPy, the CPU and the given CUDA devices, as now.

    NumPy's and Python's global generators belong to it because augmentation drawn inside a
    training step (mixup above all) often uses them.

    Args:
        devices: Where the parameters lie; others than CUDA devices need nothing of their own.
    """

    def __init__(self, devices: set[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002 - it is the global one we replay

    def restore(self) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self._cpu)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Whatever happens to the module's buffers inside, they leave as they came in.

    Covers every buffer (running statistics, ``num_batches_tracked``, spectral norm's vectors),
    those changed in place and those replaced. They are copied back in place, so views of them, and
    what distributed training holds of them, stay valid.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with kept_buffers(norm):
        ...     _ = norm(torch.ones(4, 2))
        >>> norm.num_batches_tracked
        tensor(0)
    """
    named = [(m, name, b) for m in module.modules() for name, b in m.named_buffers(recurse=False)]
    buffers = list({id(buffer): buffer for _, _, buffer in named}.values())
    copies = [torch.empty_like(buffer) for buffer in buffers]
    _copy(copies, buffers)
    try:
        yield
    finally:
        for owner, name, buffer in named:
            if getattr(owner, name) is not buffer:
                setattr(owner, name, buffer)
        _copy(buffers, copies)


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:  # the fused operations refuse empty lists
        torch._foreach_copy_(targets, sources)


def _check_equal(batch_size: int, device: torch.device) -> None:
    sizes = max_across_ranks(torch.tensor([batch_size, -batch_size], device=device)).tolist()
    if sizes[0] != -sizes[1]:
        raise RuntimeError(
            f"With m set, every rank must have equally many examples of a batch, got {-sizes[1]} "
            f"to {sizes[0]}. Set drop_last to true."
        )


def _share(m: int) -> int:
    ranks = world_size()
    if m % ranks:
        raise ValueError(
            f"m must be a multiple of the {ranks} ranks under a global perturbation, got {m}. "
            f"Choose {max(m - m % ranks, ranks)}."
        )
    return m // ranks
