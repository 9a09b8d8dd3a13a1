"""Losses of relative margins without an exponential tail: hinges, polynomial tails, focal loss."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from toolkit.losses.exponential import log1p_sum_exp
from toolkit.losses.perm import PERMLoss

__all__ = ["CrammerSingerHinge", "FocalLoss", "GammaPhiLoss", "WestonWatkinsHinge"]


class CrammerSingerHinge(PERMLoss):
    """``max_k max(0, 1 - u_k)``: no gradient beyond margin 1, so that training stops there.

    Reference:
        Crammer and Singer 2001, JMLR 2:265.
    """

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``max(0, 1 - min_k u_k)``."""
        return (1 - margins.min(-1).values).relu()

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """1 at the smallest margin (one of them) if it is below 1, else 0."""
        least, rival = margins.min(-1, keepdim=True)
        return torch.zeros_like(margins).scatter_(-1, rival, (least < 1).to(margins))


class WestonWatkinsHinge(PERMLoss):
    """``sum_k max(0, 1 - u_k)``: no gradient beyond margin 1, so that training stops there.

    Reference:
        Weston and Watkins 1999, ESANN.
    """

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``sum_k max(0, 1 - u_k)``."""
        return (1 - margins).relu().sum(-1)

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """1 where the margin is below 1, else 0."""
        return (margins < 1).to(margins)


class GammaPhiLoss(PERMLoss):
    """``gamma(sum_k phi(u_k))`` with a polynomial tail: ``phi(u) = (1 + u)^-power``.

    Below 0 ``phi`` goes on as its tangent ``1 - power u``. Convex, but without an exponential
    tail: gradient descent need not reach the max-margin direction, which makes it the negative
    control.

    Args:
        power: Positive.
        outer: The ``gamma``: ``identity`` or ``log1p``, the logarithm of one plus its argument.

    Raises:
        ValueError: If the power is not positive and finite.

    Reference:
        Wang and Scott 2023, COLT, on Gamma-Phi losses.
    """

    def __init__(
        self, power: float = 1.0, outer: Literal["identity", "log1p"] = "identity"
    ) -> None:
        super().__init__()
        if not 0 < power < math.inf:
            raise ValueError(
                f"power must be positive and finite, got {power}. 1 gives 1 / (1 + u)."
            )
        self.power = power
        self.outer = outer

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``gamma(sum_k phi(u_k))``."""
        total = self._phi(margins).sum(-1)
        return total.log1p() if self.outer == "log1p" else total

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``-gamma'(sum phi) phi'(u_k)``."""
        slopes = self.power * (1 + margins.clamp(min=0)) ** (-self.power - 1)
        if self.outer == "log1p":
            return slopes / (1 + self._phi(margins).sum(-1, keepdim=True))
        return slopes

    def _phi(self, margins: Tensor) -> Tensor:
        tail = (1 + margins.clamp(min=0)) ** -self.power
        return torch.where(margins >= 0, tail, 1 - self.power * margins)


class FocalLoss(PERMLoss):
    """``-(1 - p)^gamma log p`` of the true class's probability ``p``; not convex.

    For two classes it decays at the rate ``gamma + 1``; for more not at one rate in all directions.

    Args:
        gamma: 0 (cross-entropy) or at least 1.

    Raises:
        ValueError: If ``gamma`` is anything else.

    Reference:
        Lin, Goyal, Girshick, He, Dollar 2017, arXiv:1708.02002, equation 4.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        if not (gamma == 0 or 1 <= gamma < math.inf):
            raise ValueError(
                f"gamma must be 0 or at least 1, got {gamma}. Between them the derivative of "
                "(1 - p)^gamma is infinite at p = 1; 2 is the authors' value."
            )
        self.gamma = gamma

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``(1 - p)^gamma`` times the cross-entropy."""
        entropy = log1p_sum_exp(margins)
        return (-(-entropy).expm1()) ** self.gamma * entropy

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """Those of cross-entropy times ``(1 - p)^(gamma - 1) (1 - p - gamma p log p)``."""
        return self.log_rival_weights(margins).exp()

    def log_rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """Their logarithms, at margins where all factors underflow too."""
        entropy = log1p_sum_exp(margins)
        log_others = (-margins).logsumexp(-1) - entropy  # log(1 - p)
        # -log p / (1 - p) tends to 1, and both underflow.
        others = log_others.exp()
        ratio = torch.where(others < 1e-30, 1.0, entropy / others.clamp(min=1e-30))
        factor = self.gamma * log_others + (self.gamma * (-entropy).exp() * ratio).log1p()
        return factor.unsqueeze(-1) - margins - entropy.unsqueeze(-1)
