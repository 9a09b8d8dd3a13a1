"""Learning-rate schedules over the updates of a run; milestones are fractions of the run."""

import math
from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["cosine", "cosine_factor", "steps", "steps_factor"]


def cosine_factor(
    update: int, total_updates: int, warmup: float = 0.0, final: float = 0.0
) -> float:
    """Factor of the learning rate: a linear rise over ``warmup``, then half a cosine to ``final``.

    With ``W = round(warmup * total_updates)``: ``(update + 1) / W`` for ``update < W``, then
    ``final + (1 - final) * (1 + cos(pi * (update - W) / (total_updates - W))) / 2``; ``final`` from
    ``total_updates`` on.

    Example:
        >>> [round(cosine_factor(update, 4), 2) for update in range(5)]
        [1.0, 0.85, 0.5, 0.15, 0.0]
    """
    rise = round(warmup * total_updates)
    if update < rise:
        return (update + 1) / rise
    if update >= total_updates:
        return final
    progress = (update - rise) / (total_updates - rise)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def steps_factor(
    update: int, total_updates: int, milestones: Sequence[float] = (0.5, 0.75), gamma: float = 0.1
) -> float:
    """Factor of the learning rate: ``gamma`` to the number of milestones reached.

    A milestone ``f`` is reached at update ``round(f * total_updates)``.

    Example:
        >>> [round(steps_factor(update, 4), 2) for update in range(4)]
        [1.0, 1.0, 0.1, 0.01]
    """
    return gamma ** sum(update >= round(f * total_updates) for f in milestones)


def cosine(
    optimizer: Optimizer, total_updates: int, warmup: float = 0.0, final: float = 0.0
) -> LambdaLR:
    """Linear warm-up, then half a cosine, of every group's own learning rate; step at each update.

    The factor is :func:`cosine_factor`. The schedule's state is plain numbers.

    Args:
        optimizer: Whose learning rates it sets.
        total_updates: The number of updates of the run, at least 1.
        warmup: Share of the run that rises, in ``[0, 1)``.
        final: Factor at the end, in ``[0, 1]``.

    Raises:
        ValueError: If an argument is out of its range.
    """
    _check_total(total_updates)
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup must be in [0, 1), got {warmup}. It is a share of the run.")
    if not 0 <= final <= 1:
        raise ValueError(f"final must be in [0, 1], got {final}. It is a factor of the lr.")
    return _scheduled(optimizer, lambda u: cosine_factor(u, total_updates, warmup, final))


def steps(
    optimizer: Optimizer,
    total_updates: int,
    milestones: Sequence[float] = (0.5, 0.75),
    gamma: float = 0.1,
) -> LambdaLR:
    """Every group's own learning rate, times ``gamma`` at each milestone; step at each update.

    The factor is :func:`steps_factor`. The schedule's state is plain numbers.

    Args:
        optimizer: Whose learning rates it sets.
        total_updates: The number of updates of the run, at least 1.
        milestones: Increasing shares of the run, in ``(0, 1)``.
        gamma: Factor at each, positive.

    Raises:
        ValueError: If an argument is out of its range.
    """
    _check_total(total_updates)
    shares = tuple(milestones)
    if list(shares) != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
        raise ValueError(
            f"milestones must increase within (0, 1), got {shares}. They are shares of the run."
        )
    if not gamma > 0:
        raise ValueError(f"gamma must be positive, got {gamma}. 0.1 is usual.")
    return _scheduled(optimizer, lambda u: steps_factor(u, total_updates, shares, gamma))


def _scheduled(optimizer: Optimizer, factor: Callable[[int], float]) -> LambdaLR:
    return LambdaLR(optimizer, factor)  # a plain function: LambdaLR keeps it out of its state


def _check_total(total_updates: int) -> None:
    if total_updates < 1:
        raise ValueError(
            f"total_updates must be at least 1, got {total_updates}. Is the run's data empty?"
        )
