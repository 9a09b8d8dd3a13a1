"""Full-batch methods as pure pairs (init, update) over any leading dimensions of runs.

Weights are ``(*runs, size)``: all parameters of a run as one vector, so that norms are of the
whole. A gradient comes with the logarithm of a factor of its own, since on separable data it falls
below every float while its direction goes on to matter. Settings that are tensors hold one value
per run. For a net take ``torch.nn.utils.parameters_to_vector`` and its autograd gradient.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "Adam",
    "FullBatchMethod",
    "Gradient",
    "GradientDescent",
    "GradientFunction",
    "LogDomainAdam",
    "Momentum",
    "NormalizedGradientDescent",
    "Setting",
    "SignDescent",
    "Signum",
    "State",
    "column",
    "run_updates",
]

State = dict[str, Tensor]
Setting = float | Tensor


class Gradient(NamedTuple):
    """``values * exp(log_scale)``; the values are of a size that floats hold well.

    Attributes:
        values: ``(*runs, size)``.
        log_scale: ``(*runs)``.
    """

    values: Tensor
    log_scale: Tensor

    @classmethod
    def plain(cls, values: Float[Tensor, " *runs size"]) -> "Gradient":
        """A gradient as it is, of scale 1."""
        return cls(values, values.new_zeros(values.shape[:-1]))

    def full(self) -> Float[Tensor, " *runs size"]:
        """The gradient itself, which may underflow."""
        return self.values * self.log_scale.exp().unsqueeze(-1)


GradientFunction = Callable[[Tensor], Gradient]


class FullBatchMethod(ABC):
    """A rule from weights, gradient, state and learning rate to new weights and state."""

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """The state before the first update: none."""
        return {}

    @abstractmethod
    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """The weights and the state after an update; the arguments stay as they are."""


@dataclass(frozen=True)
class GradientDescent(FullBatchMethod):
    """``w - rate g``."""

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        return weights - column(rate) * gradient.full(), state


@dataclass(frozen=True)
class Momentum(FullBatchMethod):
    """``m = beta m + (1 - beta) g``, ``w - rate m``: the rate compares with gradient descent's.

    Torch's ``SGD(momentum=beta)`` does not multiply by ``1 - beta``: its rate is that much smaller.
    """

    beta: Setting = 0.9

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """A first moment of 0."""
        return {"first": torch.zeros_like(weights)}

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        beta = column(self.beta)
        first = beta * state["first"] + (1 - beta) * gradient.full()
        return weights - column(rate) * first, {"first": first}


@dataclass(frozen=True)
class NormalizedGradientDescent(FullBatchMethod):
    """``w - rate g / ||g||_2``; the weights stay where the gradient is 0."""

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        norm = torch.linalg.vector_norm(gradient.values, dim=-1, keepdim=True)
        unit = torch.where(norm > 0, gradient.values / norm, 0.0)
        return weights - column(rate) * unit, state


@dataclass(frozen=True)
class SignDescent(FullBatchMethod):
    """``w - rate sign(g)``, with ``sign(0) = 0``."""

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        return weights - column(rate) * gradient.values.sign(), state


@dataclass(frozen=True)
class Signum(FullBatchMethod):
    """``m = beta m + (1 - beta) g``, ``w - rate sign(m)``; holds at any margin.

    Reference:
        Bernstein et al. 2018, arXiv:1802.04434.
    """

    beta: Setting = 0.9

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """A first moment of 0, in units of the last gradient's scale."""
        scale = weights.new_zeros(weights.shape[:-1])
        return {"first": torch.zeros_like(weights), "log_scale": scale}

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        beta = column(self.beta)
        past = _rescaling(state, gradient)
        first = beta * past * state["first"] + (1 - beta) * gradient.values
        moved = weights - column(rate) * first.sign()
        return moved, {"first": first, "log_scale": gradient.log_scale}


@dataclass(frozen=True)
class Adam(FullBatchMethod):
    """``m / (sqrt v + eps)`` with the moments ``m`` and ``v`` of the gradient, not bias-corrected.

    ``v`` underflows at a margin of about 373 in float64 (54 in float32): from there on this is
    momentum, or with ``eps = 0`` stands still where ``v`` is 0. :class:`LogDomainAdam` is Adam with
    ``eps = 0`` at every margin.

    Attributes:
        beta1: Of the first moment; the theory asks for ``beta1 <= beta2``, else a warning is given.
        beta2: Of the second.
        eps: Added to the root; 0 may be given.

    Reference:
        Kingma and Ba 2015, arXiv:1412.6980; without bias correction as in Zhang, Zou, Cao 2024,
        arXiv:2406.10650.
    """

    beta1: Setting = 0.9
    beta2: Setting = 0.99
    eps: Setting = 1e-8

    def __post_init__(self) -> None:
        _warn_of_betas(self.beta1, self.beta2)

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """Moments of 0."""
        return {"first": torch.zeros_like(weights), "second": torch.zeros_like(weights)}

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        beta1, beta2 = column(self.beta1), column(self.beta2)
        values = gradient.full()
        first = beta1 * state["first"] + (1 - beta1) * values
        second = beta2 * state["second"] + (1 - beta2) * values**2
        moved = weights - column(rate) * _ratio(first, second.sqrt() + column(self.eps))
        return moved, {"first": first, "second": second}


@dataclass(frozen=True)
class LogDomainAdam(FullBatchMethod):
    """:class:`Adam` with ``eps = 0``, its moments in units of the last gradient's scale.

    The same in real arithmetic, and without underflow at any margin. A coordinate whose gradient
    has always been 0 stays.

    Attributes:
        beta1: Of the first moment; the theory asks for ``beta1 <= beta2``, else a warning is given.
        beta2: Of the second.

    Reference:
        Zhang, Zou, Cao 2024, arXiv:2406.10650, the three update equations.
    """

    beta1: Setting = 0.9
    beta2: Setting = 0.99

    def __post_init__(self) -> None:
        _warn_of_betas(self.beta1, self.beta2)

    def init(self, weights: Float[Tensor, " *runs size"]) -> State:
        """Moments of 0."""
        moments = {"first": torch.zeros_like(weights), "second": torch.zeros_like(weights)}
        return {**moments, "log_scale": weights.new_zeros(weights.shape[:-1])}

    def update(
        self, weights: Float[Tensor, " *runs size"], gradient: Gradient, state: State, rate: Setting
    ) -> tuple[Float[Tensor, " *runs size"], State]:
        """See the class."""
        beta1, beta2 = column(self.beta1), column(self.beta2)
        past = _rescaling(state, gradient)
        first = beta1 * past * state["first"] + (1 - beta1) * gradient.values
        second = beta2 * past**2 * state["second"] + (1 - beta2) * gradient.values**2
        moved = weights - column(rate) * _ratio(first, second.sqrt())
        return moved, {"first": first, "second": second, "log_scale": gradient.log_scale}


def run_updates(
    method: FullBatchMethod,
    gradient: GradientFunction,
    weights: Float[Tensor, " *runs size"],
    state: State,
    rates: Float[Tensor, " count *rate_runs"],
) -> tuple[Float[Tensor, " *runs size"], State]:
    """One update per learning rate.

    Args:
        method: The rule.
        gradient: Of the full-batch loss.
        weights: Of the runs.
        state: From ``method.init`` or an earlier call.
        rates: Per update, and per run unless shared.

    Returns:
        The weights and the state after the last.
    """
    for rate in rates.to(weights.device):
        weights, state = method.update(weights, gradient(weights), state, rate)
    return weights, state


def _warn_of_betas(beta1: Setting, beta2: Setting) -> None:
    if bool((torch.as_tensor(beta1) > torch.as_tensor(beta2)).any()):
        warnings.warn(
            f"beta1 must be at most beta2 for the theorem on Adam's limit, got {beta1} and "
            f"{beta2}. The run goes on and may end elsewhere.",
            stacklevel=3,
        )


def column(setting: Setting) -> Setting:
    """A value per run, as a factor of the run's vector."""
    return setting.unsqueeze(-1) if isinstance(setting, Tensor) else setting


def _rescaling(state: State, gradient: Gradient) -> Tensor:
    """The factor from the last gradient's units to the new ones."""
    # Bounded for the first update, whose state is 0 and has no scale.
    return (state["log_scale"] - gradient.log_scale).clamp(max=300).exp().unsqueeze(-1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below == 0, 0.0, above / below)
