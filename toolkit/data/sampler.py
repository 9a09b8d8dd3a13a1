"""The order of an epoch, drawn from (seed, epoch) alone, and its division over ranks."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from toolkit import distributed

__all__ = [
    "AUGMENTATION",
    "BALANCE",
    "LONG_TAIL",
    "MIXUP",
    "NOISE",
    "ORDER",
    "SIGNALS",
    "SPLIT",
    "SPURIOUS",
    "EpochSampler",
    "GroupBalancedSampler",
    "LocalBatch",
    "epoch_generator",
]

# Streams of random numbers under one seed: each use has its own, so that none moves another.
# The last one is followed by those of the groups.
ORDER, AUGMENTATION, SPLIT, SPURIOUS, MIXUP, NOISE, LONG_TAIL, SIGNALS, BALANCE = range(9)


class LocalBatch(NamedTuple):
    """This rank's share of a global batch: positions ``start..stop - 1`` of the epoch's order.

    ``weight`` is ``local_count * world_size / global_count`` where the ranks' shares differ in
    size, else ``None``: a local mean times its weight, averaged over ranks, is the global mean.
    """

    start: int
    stop: int
    weight: float | None


class EpochSampler:
    """Divides each epoch's order into global batches, and each of these over the ranks.

    The order depends on the seed and the epoch only, so every rank draws the same one and the
    number of ranks changes nothing. A rank's share of a global batch is a contiguous piece of it;
    the sizes of the shares differ by at most one. Rank and world size are read when they are
    needed: a sampler may be made before there is a process group.

    Args:
        num_examples: Length of an epoch.
        batch_size: Examples of a global batch, over all ranks.
        shuffle: Draw a new permutation for each epoch; such a sampler is for training and gives
            every rank a non-empty share of every batch. Without it the order is ``0, 1, ...``, and
            a rank without a share of the last batch has one batch fewer.
        drop_last: Leave out a partial last batch.
        seed: At least 0.
        length: Positions of an epoch, where that is not ``num_examples``. Epochs are then cut from
            one endless chain of permutations, each over all examples: training longer, told in
            epochs of another length. Only with ``shuffle``.

    Raises:
        ValueError: If an argument is out of range, or no batch is left.

    Example:
        >>> sampler = EpochSampler(4, batch_size=2, shuffle=True, length=6)
        >>> first = sampler.order().tolist()
        >>> sampler.set_epoch(1)
        >>> sorted(first[:4]), sorted(first[4:] + sampler.order().tolist()[:2])
        ([0, 1, 2, 3], [0, 1, 2, 3])
    """

    def __init__(
        self,
        num_examples: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        length: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if length is not None and (length < 1 or not shuffle):
            raise ValueError(
                f"length must be at least 1, and shuffle on, got {length} and {shuffle}. Leave it "
                "out for epochs of every example once."
            )
        _check_seed(seed)
        available = num_examples if length is None else length
        if available < (batch_size if drop_last else 1):
            raise ValueError(
                f"batch_size must be at most the number of examples, {available}, where "
                f"drop_last is on, got {batch_size}. Use a smaller batch_size, or drop_last: false."
            )
        self.num_examples = num_examples
        self.length = available
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; Lightning calls this before each epoch."""
        self.epoch = epoch

    def order(self) -> Int[Tensor, " length"]:
        """The global order of the current epoch, the same on every rank."""
        if not self.shuffle:
            return torch.arange(self.num_examples)
        if self.length == self.num_examples:
            return self._permutation(self.epoch)
        return _piece_of_chain(self.num_examples, self.epoch, self.length, self._permutation)

    def generator(self, stream: int) -> torch.Generator:
        """A fresh generator of the current epoch; different streams are independent."""
        return epoch_generator(self.seed, self.epoch, stream)

    def __len__(self) -> int:
        """The number of this rank's batches."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[LocalBatch]:
        rank, world = distributed.rank(), distributed.world_size()
        if self.shuffle:
            self.check_division(world)
        for first in range(0, self.length, self.batch_size):
            count = min(self.batch_size, self.length - first)
            if count < self.batch_size and self.drop_last:
                return
            start, stop = first + count * rank // world, first + count * (rank + 1) // world
            weight = None if count % world == 0 else (stop - start) * world / count
            if stop > start:
                yield LocalBatch(start, stop, weight)

    def check_division(self, world: int) -> None:
        """Check that each global batch can be divided evenly over the ranks.

        Raises:
            ValueError: If not; says which sizes of batches can be.
        """
        if self.batch_size % world:
            fitting = self.batch_size // world * world
            sizes = [str(size) for size in (fitting, fitting + world) if size]
            raise ValueError(
                f"batch_size must be a multiple of the number of processes, {world}, got "
                f"{self.batch_size}. Use {' or '.join(sizes)}."
            )
        last = self.length % self.batch_size
        if 0 < last < world and not self.drop_last:
            raise ValueError(
                f"the last batch must hold at least one example for each of {world} processes, got "
                f"{last} ({self.length} examples in batches of {self.batch_size}). "
                "Use drop_last: true, or another batch_size."
            )

    def _permutation(self, number: int) -> Int[Tensor, " examples"]:
        """The order of one pass over all examples."""
        generator = epoch_generator(self.seed, number, ORDER)
        return torch.randperm(self.num_examples, generator=generator)


class GroupBalancedSampler(EpochSampler):
    """Training order in which every group that has examples takes as many positions of an epoch.

    A group's positions are cut from an endless chain of permutations of its examples, so that its
    examples are seen equally often, to within one visit; small groups repeat within an epoch, and
    large ones take several epochs to be seen whole. Where the groups don't divide the length, the
    first ones have a position more.

    Args:
        groups: ``(examples,)``, the group of each example.
        batch_size: Examples of a global batch, over all ranks.
        drop_last: Leave out a partial last batch.
        seed: At least 0.

    Raises:
        ValueError: If an argument is out of range, or there are more groups than examples.

    Example:
        >>> sampler = GroupBalancedSampler(torch.tensor([0, 0, 0, 0, 0, 1]), batch_size=2)
        >>> sorted(sampler.order().tolist())[3:]
        [5, 5, 5]
    """

    def __init__(
        self,
        groups: Int[Tensor, " examples"],
        batch_size: int,
        *,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(len(groups), batch_size, shuffle=True, drop_last=drop_last, seed=seed)
        self._members = [
            (groups == group).nonzero()[:, 0] for group in sorted(set(groups.tolist()))
        ]

    def order(self) -> Int[Tensor, " length"]:
        """The global order of the current epoch, the same on every rank."""
        share, rest = divmod(self.length, len(self._members))
        parts = []
        for group, members in enumerate(self._members):

            def permutation(number: int, group: int = group, size: int = len(members)) -> Tensor:
                generator = epoch_generator(self.seed, number, BALANCE + group)
                return torch.randperm(size, generator=generator)

            length = share + (group < rest)
            parts.append(members[_piece_of_chain(len(members), self.epoch, length, permutation)])
        return torch.cat(parts)[self._permutation(self.epoch)]


def _piece_of_chain(
    num_examples: int, epoch: int, length: int, permutation: Callable[[int], Tensor]
) -> Tensor:
    """The epoch's piece, ``length`` long, of one permutation of all examples after another."""
    first, last = epoch * length, (epoch + 1) * length
    passes = range(first // num_examples, -(-last // num_examples))
    chain = torch.cat([permutation(number) for number in passes])
    start = first - passes.start * num_examples
    return chain[start : start + length]


def epoch_generator(seed: int, epoch: int, stream: int = 0) -> torch.Generator:
    """A generator that depends on the three numbers (each at least 0) and on nothing else."""
    _check_seed(seed)
    words = np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}.")
