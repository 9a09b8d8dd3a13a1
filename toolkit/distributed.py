"""Rank, world size and gathering; the one-process answer where there is no process group."""

import contextlib
import os
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

__all__ = [
    "barrier",
    "broadcast_object",
    "gather_rows",
    "is_main",
    "joined_group",
    "max_across_ranks",
    "rank",
    "sum_across_ranks",
    "world_size",
]

T = TypeVar("T")


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def joined_group() -> Iterator[None]:
    """Be a rank of the process group that the environment describes, if it describes one.

    Reads ``WORLD_SIZE``, ``RANK``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT``, as torchrun
    sets them. Lightning finds the group and uses it. A group that exists already is left alone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _grouped():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """This process's rank in ``0..world_size() - 1``; 0 without a process group."""
    return dist.get_rank() if _grouped() else 0


def world_size() -> int:
    """The number of processes in the group; 1 without a process group."""
    return dist.get_world_size() if _grouped() else 1


def is_main() -> bool:
    """Whether this process is the one that writes files."""
    return rank() == 0


def barrier() -> None:
    """Wait for every rank."""
    if world_size() > 1:
        dist.barrier()


def sum_across_ranks(values: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
    """Elementwise sum over the ranks, the same on each; the argument is left alone."""
    return _reduced(values, dist.ReduceOp.SUM) if world_size() > 1 else values


def max_across_ranks(values: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
    """Elementwise maximum over the ranks, the same on each; the argument is left alone."""
    return _reduced(values, dist.ReduceOp.MAX) if world_size() > 1 else values


def gather_rows(values: Shaped[Tensor, " rows *axes"]) -> Shaped[Tensor, " all_rows *axes"]:
    """Rows of all ranks, in the order of the ranks; ranks may hold different numbers of rows.

    Shorter ranks are padded for the exchange and cut back afterwards, so no row is counted twice.
    """
    if world_size() == 1:
        return values
    count = torch.tensor([values.shape[0]], device=values.device)
    counts = [torch.zeros_like(count) for _ in range(world_size())]
    dist.all_gather(counts, count)
    sizes = [int(c) for c in counts]
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: values.shape[0]] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def broadcast_object(value: T) -> T:
    """Rank 0's value on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _reduced(values: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
    result = values.clone()
    dist.all_reduce(result, op=op)
    return result
