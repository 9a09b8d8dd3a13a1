"""Closed-form full-batch gradients of linear classifiers, at any margin, for many runs at once."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from toolkit.optim.full_batch import Gradient, GradientFunction

__all__ = [
    "BinaryLoss",
    "ScoreGradient",
    "binary_gradient",
    "binary_weights",
    "linear_gradient",
    "stable_rate",
]

BinaryLoss = Literal["exponential", "logistic"]
ScoreGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def binary_weights(
    margins: Float[Tensor, " *runs examples"], loss: BinaryLoss
) -> tuple[Float[Tensor, " *runs examples"], Float[Tensor, " *runs"]]:
    """``-l'(z_i) = q_i exp(log_scale)`` for ``exp(-z)`` or ``log(1 + exp(-z))``.

    Returns:
        The ``q``, at most about 1, and ``log_scale``: minus the least margin, for the logistic
        loss at most 0.

    Example:
        >>> import torch
        >>> binary_weights(torch.tensor([1000.0, 1001.0]), "logistic")
        (tensor([1.0000, 0.3679]), tensor(-1000.))
    """
    least = margins.amin(-1)
    if loss == "exponential":
        return (least.unsqueeze(-1) - margins).exp(), -least
    least = least.clamp(min=0)
    # exp(-softplus(z)) = 1 / (1 + e^z), for every z; softplus(z) = -logsigmoid(-z) to rounding.
    return (least.unsqueeze(-1) + F.logsigmoid(-margins)).exp(), -least


def binary_gradient(
    signed: Float[Tensor, " *data examples size"], loss: BinaryLoss
) -> GradientFunction:
    """Gradient of ``mean_i l(z_i)``, ``z = Z w``, with the rows ``y_i x_i`` of ``Z``.

    Args:
        signed: The ``Z`` of each run; its leading dimensions are the last ones of the weights', so
            that weights ``(settings, seeds, size)`` share the data ``(seeds, examples, size)``.
        loss: ``exponential`` or ``logistic``.

    Returns:
        A function of weights ``(*runs, size)``.

    Raises:
        ValueError: If the loss is another.
    """
    if loss not in ("exponential", "logistic"):
        raise ValueError(
            f"loss must be 'exponential' or 'logistic', got {loss!r}. For others use "
            "linear_gradient with two classes."
        )
    count = signed.shape[-2]

    def gradient(weights: Tensor) -> Gradient:
        margins = (signed @ weights.unsqueeze(-1)).squeeze(-1)
        factors, log_scale = binary_weights(margins, loss)
        values = (factors.unsqueeze(-2) @ signed).squeeze(-2)
        return Gradient(values / -count, log_scale)

    return gradient


def linear_gradient(
    inputs: Float[Tensor, " *data examples size"],
    targets: Int[Tensor, " *data examples"],
    num_classes: int,
    score_gradient: ScoreGradient,
    divisor: float | None = None,
) -> GradientFunction:
    """Gradient ``X' C / divisor`` of the loss of the scores ``S = X W``.

    Args:
        inputs: The ``X`` of each run; leading dimensions as in :func:`binary_gradient`.
        targets: The classes.
        num_classes: Columns of ``W``.
        score_gradient: From scores ``(*runs, examples, classes)`` and targets to the gradient
            ``C`` of the summed loss and its log-scale per run: ``scaled_logit_gradient`` of a
            :class:`toolkit.losses.PERMLoss`.
        divisor: The number of examples by default: the mean loss.

    Returns:
        A function of the flattened ``W``, ``(*runs, size * num_classes)``.
    """
    size = inputs.shape[-1]
    log_divisor = math.log(inputs.shape[-2] if divisor is None else divisor)

    def gradient(weights: Tensor) -> Gradient:
        scores = inputs @ weights.reshape(*weights.shape[:-1], size, num_classes)
        labels = targets.expand(scores.shape[:-1])
        values, log_scale = score_gradient(scores, labels)
        return Gradient((inputs.mT @ values).flatten(-2), log_scale - log_divisor)

    return gradient


def stable_rate(
    inputs: Float[Tensor, " *data examples size"], smoothness: float, divisor: float | None = None
) -> Float[Tensor, " *data"]:
    """The rate ``2 / (beta sigma_max(X)^2 / divisor)`` below which gradient descent is covered.

    Args:
        inputs: The ``X`` or ``Z`` of each run.
        smoothness: The ``beta`` of the loss: 1/4 for the logistic loss of a margin. For a loss of
            relative margins multiply that of ``psi`` by the number of classes.
        divisor: Of the summed loss: the number of examples by default.

    Returns:
        One bound per run. The exponential loss has none: its curvature is that of the start.

    Example:
        >>> import torch
        >>> stable_rate(torch.eye(2), smoothness=0.25)
        tensor(16.)

    Reference:
        Soudry et al. 2018, JMLR 19:70; Ravi, Scott, Soudry, Wang 2024, arXiv:2411.01350, thm 3.4.
    """
    divided = inputs.shape[-2] if divisor is None else divisor
    largest: Tensor = torch.linalg.matrix_norm(inputs, 2)
    return 2 * divided / (smoothness * largest**2)
