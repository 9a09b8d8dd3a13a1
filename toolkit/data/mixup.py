"""MixUp: which examples of a batch are mixed, and in what shares."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Mixing", "check_mixup", "mixup_draws"]


class Mixing(NamedTuple):
    """The draws of an epoch.

    Attributes:
        partners: ``(positions,)`` int64; the position that each one is mixed with.
        shares: ``(batches,)`` float64 in [0.5, 1]; the share of an example in its mixture.
    """

    partners: Int[Tensor, " positions"]
    shares: Float[Tensor, " batches"]


def mixup_draws(length: int, batch_size: int, alpha: float, generator: torch.Generator) -> Mixing:
    """Partners and shares of MixUp for an epoch of ``length`` positions.

    Each batch of ``batch_size`` positions has one random permutation, which may leave positions
    with themselves, and one share ``max(b, 1 - b)`` with ``b ~ Beta(alpha, alpha)``. The larger
    share is always the example's own, so that its label says best what the mixture shows. Examples
    and partners being exchangeable, the mixtures of a batch have the same distribution as with
    ``b`` itself.

    Args:
        length: Positions of the epoch.
        batch_size: Positions of a batch; the last one may have fewer.
        alpha: Above 0; near 0 almost nothing is mixed, 1 is uniform.
        generator: Of the draws.

    Raises:
        ValueError: If ``alpha`` is not positive and finite.

    Example:
        >>> draws = mixup_draws(6, 4, 0.2, torch.Generator().manual_seed(0))
        >>> sorted(draws.partners[:4].tolist()), sorted(draws.partners[4:].tolist())
        ([0, 1, 2, 3], [4, 5])

    Reference:
        Zhang et al. 2018, arXiv:1710.09412, section 2; one share per batch as in their code.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}. Leave MixUp out for 0.")
    check_mixup(alpha)
    batch = torch.arange(length) // batch_size
    # Sorting by (batch, random number) permutes each batch within its own positions.
    keys = batch + torch.rand(length, generator=generator, dtype=torch.float64)
    seed = int(torch.randint(2**62, (), generator=generator))
    shares = np.random.default_rng(seed).beta(alpha, alpha, size=-(-length // batch_size))
    return Mixing(keys.argsort(), torch.from_numpy(np.maximum(shares, 1 - shares)))


def check_mixup(alpha: float) -> None:
    """Check the parameter of MixUp, where 0 stands for none.

    Raises:
        ValueError: If it is negative or not finite.
    """
    if not (alpha >= 0 and math.isfinite(alpha)):
        raise ValueError(
            f"mixup must be finite and at least 0, got {alpha}. 0 mixes nothing; 0.2 to 1 is usual."
        )
