"""Disjoint parts of a data set with the classes in proportion."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from toolkit.data.sampler import SPLIT, epoch_generator

__all__ = ["stratified_split"]


def stratified_split(
    targets: Int[Tensor, " examples"], sizes: Sequence[int], seed: int
) -> list[Int[Tensor, " part"]]:
    """Disjoint sets of indices of the given sizes, each with every class in proportion.

    The count of a class in a part differs from its exact share of what earlier parts left by less
    than one. A part depends on the sizes of the parts before it and on no later one.

    Args:
        targets: Class of each example.
        sizes: Size of each part.
        seed: At least 0; which examples of a class go where.

    Returns:
        Indices in rising order, for each part.

    Raises:
        ValueError: If the sizes add up to more than there is.

    Example:
        >>> parts = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1]), [3, 3], seed=0)
        >>> [torch.tensor([0, 0, 0, 0, 1, 1])[part].tolist() for part in parts]
        [[0, 0, 1], [0, 0, 1]]
    """
    if sum(sizes) > len(targets):
        raise ValueError(
            f"the sizes of the parts must add up to at most {len(targets)}, got {list(sizes)}. "
            "Use smaller sizes."
        )
    generator = epoch_generator(seed, 0, SPLIT)
    shuffled = torch.randperm(len(targets), generator=generator)
    queues = [shuffled[targets[shuffled] == c] for c in sorted(set(targets.tolist()))]
    parts = []
    for size in sizes:
        counts = _shares(size, [len(queue) for queue in queues])
        taken = [queue[:count] for queue, count in zip(queues, counts, strict=True)]
        queues = [queue[count:] for queue, count in zip(queues, counts, strict=True)]
        parts.append(torch.cat(taken).sort().values)
    return parts


def _shares(size: int, counts: list[int]) -> list[int]:
    """``size`` divided in proportion to ``counts``, in whole numbers by largest remainders."""
    total = sum(counts)
    if total == 0:
        return counts
    shares = [size * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda c: (-(size * counts[c] % total), c))
    for c in by_remainder[: size - sum(shares)]:
        shares[c] += 1
    return shares
