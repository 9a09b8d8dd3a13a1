"""Losses with an exponential tail: cross-entropy, multiclass exponential, PairLogLoss."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from toolkit.losses.perm import PERMLoss

__all__ = ["CrossEntropy", "MulticlassExponential", "PairLogLoss", "log1p_sum_exp"]


def log1p_sum_exp(margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
    """``log(1 + sum_k exp(-u_k))`` to the relative precision of the dtype, at any margins."""
    # Clamped, so that the branch which is not taken has a finite gradient.
    small = (-margins.clamp(min=0)).exp().sum(-1).log1p()
    zero = margins.new_zeros(*margins.shape[:-1], 1)
    large = torch.cat([zero, -margins], -1).logsumexp(-1)
    return torch.where(margins.amin(-1) > 0, small, large)


class CrossEntropy(PERMLoss):
    """``log(1 + sum_k exp(-u_k))``: cross-entropy, without underflow of the true class's gradient.

    Equal to ``torch.nn.functional.cross_entropy`` up to rounding; exponential tail of rate 1.

    Example:
        >>> logits = torch.tensor([[40.0, 0.0, 0.0]], requires_grad=True)
        >>> CrossEntropy()(logits, torch.tensor([0])).sum().backward()
        >>> bool(logits.grad[0, 0] < 0)
        True
    """

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``log(1 + sum_k exp(-u_k))``."""
        return log1p_sum_exp(margins)

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """The probabilities of the other classes."""
        return self.log_rival_weights(margins).exp()

    def log_rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """Their logarithms."""
        return -margins - log1p_sum_exp(margins).unsqueeze(-1)


class MulticlassExponential(PERMLoss):
    """``sum_k exp(-u_k)``: exponential tail with equality; no global bound on its curvature.

    Gradient descent needs a start of bounded loss and small steps.
    """

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``sum_k exp(-u_k)``."""
        return (-margins).exp().sum(-1)

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``exp(-u_k)``."""
        return (-margins).exp()

    def log_rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``-u_k``."""
        return -margins


class PairLogLoss(PERMLoss):
    """``sum_k log(1 + exp(-a u_k))``: one logistic loss per rival; exponential tail of rate ``a``.

    Args:
        temperature: The ``a``, positive; larger ones change the speed, not the limit direction.

    Raises:
        ValueError: If the temperature is not positive and finite.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"temperature must be positive and finite, got {temperature}. It multiplies the "
                "margins; 1 is plain PairLogLoss."
            )
        self.temperature = temperature

    def psi(self, margins: Float[Tensor, " *batch rivals"]) -> Float[Tensor, " *batch"]:
        """``sum_k log(1 + exp(-a u_k))``."""
        return -F.logsigmoid(self.temperature * margins).sum(-1)

    def rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``a / (1 + exp(a u_k))``."""
        return self.temperature * (-self.temperature * margins).sigmoid()

    def log_rival_weights(
        self, margins: Float[Tensor, " *batch rivals"]
    ) -> Float[Tensor, " *batch rivals"]:
        """``log a - log(1 + exp(a u_k))``."""
        return math.log(self.temperature) + F.logsigmoid(-self.temperature * margins)
