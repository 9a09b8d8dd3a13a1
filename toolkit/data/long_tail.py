"""Training data whose classes have fewer and fewer examples."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["LongTail", "exponential_counts", "rebalanced"]


def exponential_counts(counts: Int[Tensor, " classes"], ratio: float) -> Int[Tensor, " classes"]:
    """Examples per class that fall exponentially with the number of the class.

    ``n_k = round(n * ratio ** (-k / (classes - 1)))`` with ``n`` the smallest of ``counts``, so
    that the first class has ``ratio`` times as many as the last, whatever the data has more of.

    Args:
        counts: Examples there are, per class.
        ratio: Of the first class to the last, at least 1.

    Raises:
        ValueError: If the ratio is below 1 or leaves a class without an example.

    Example:
        >>> exponential_counts(torch.full((3,), 100), ratio=100.0).tolist()
        [100, 10, 1]

    Reference:
        Cui et al. 2019, arXiv:1901.05555, section 5.1.
    """
    if not ratio >= 1:
        raise ValueError(f"ratio must be at least 1, got {ratio}. 10 is first to last as 10 to 1.")
    powers = torch.arange(len(counts), dtype=torch.float64) / max(len(counts) - 1, 1)
    kept = (int(counts.min()) * ratio**-powers).round().long()
    if int(kept.min()) < 1:
        raise ValueError(
            f"ratio must leave each class an example, got {ratio} with {int(counts.min())} "
            "examples in the smallest class. Use a smaller one."
        )
    return kept


def rebalanced(
    targets: Int[Tensor, " examples"], generator: torch.Generator | None = None
) -> Int[Tensor, " balanced"]:
    """Positions, repeats allowed, that give each class as many examples as the largest one.

    Every example comes as often as whole repetitions fit; the rest of a class is drawn from it
    without replacement. Ascending, classes without an example left out.

    Example:
        >>> rebalanced(torch.tensor([0, 0, 0, 0, 1, 1])).tolist()
        [0, 1, 2, 3, 4, 4, 5, 5]
    """
    largest = int(targets.bincount().max())
    parts = []
    for k in sorted(set(targets.tolist())):
        members = torch.nonzero(targets == k).flatten()
        more = largest % len(members)
        drawn = members[torch.randperm(len(members), generator=generator)[:more]]
        parts += [members.repeat(largest // len(members)), drawn]
    return torch.cat(parts).sort().values


@dataclass(frozen=True)
class LongTail:
    """A long tail in the training data; validation and test data stay as they are.

    Which examples of a class stay is drawn from the seed of the data, so that all variants of a
    seed share them. Those of a larger ratio are among those of a smaller one.

    Args:
        ratio: Examples of the first class to those of the last, see :func:`exponential_counts`.
        rebalance: Whether classes are then filled up with copies of their own examples. A copy is
            an example with an index of its own.

    Raises:
        ValueError: If the ratio is below 1.
    """

    ratio: float = 10.0
    rebalance: bool = False

    def __post_init__(self) -> None:
        if not self.ratio >= 1:
            raise ValueError(
                f"ratio must be at least 1, got {self.ratio}. 1 leaves the data alone."
            )

    def positions(
        self, targets: Int[Tensor, " examples"], num_classes: int, generator: torch.Generator
    ) -> Int[Tensor, " kept"]:
        """Which training examples stay, ascending, with repeats where classes are filled up.

        Raises:
            ValueError: If a class is left without an example.
        """
        counts = targets.bincount(minlength=num_classes)
        kept = []
        for k, count in enumerate(exponential_counts(counts, self.ratio).tolist()):
            members = torch.nonzero(targets == k).flatten()
            kept.append(members[torch.randperm(len(members), generator=generator)[:count]])
        positions = torch.cat(kept).sort().values
        if not self.rebalance:
            return positions
        return positions[rebalanced(targets[positions], generator)]
