"""Learning rates that fall as a power of the update, for many runs at once."""

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.optim.full_batch import Setting

__all__ = ["power_rates"]


def power_rates(
    rate: Setting, power: Setting = 0.0, *, start: int = 0, count: int = 1, offset: float = 2.0
) -> Float[Tensor, " count *runs"]:
    """Learning rates ``rate (t + offset)^-power`` of the updates ``t = start, start + 1, ...``.

    Args:
        rate: One, or one per run.
        power: Likewise; 0 is a constant rate.
        start: The first update, from 0.
        count: How many.
        offset: 2 as in the analysis of Adam.

    Example:
        >>> power_rates(0.1, 0.5, count=3).tolist()  # doctest: +ELLIPSIS
        [0.0707..., 0.0577..., 0.05]
    """
    base = torch.as_tensor(rate, dtype=torch.float64)
    exponent = torch.as_tensor(power, dtype=torch.float64)
    updates = torch.arange(start, start + count, dtype=torch.float64) + offset
    column = updates.reshape(-1, *[1] * max(base.ndim, exponent.ndim))
    return base * torch.pow(column, -exponent)
