"""Adaptive sharpness-aware minimisation."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.optim.perturbation import asam_perturbation
from toolkit.optim.sam import SAM

__all__ = ["ASAM"]


class ASAM(SAM):
    """SAM whose neighbourhood is measured relative to the size of each weight.

    ``e = rho * T^2 g / ||T g||``. With ``T = |w|``, rescaling weights in a way that leaves the
    function alone rescales ``e`` alike, so that it leaves the perturbed function alone too.
    Everything else is as in :class:`SAM`.

    Two variants go by this name. ``"official"``, the authors' code: ``T = |w| + eta`` for
    parameters whose full name contains "weight" (scales of normalisation too), 1 for the others.
    ``"all_parameters"``, a widely used one: ``T = |w|`` for every parameter, no ``eta``; it needs
    about four times the ``rho``. The first must know names: pass ``model.named_parameters()``, or
    leave it to ``callbacks.SharpnessAware`` in Lightning.

    Args:
        params: As for any torch optimizer; named parameters for ``"official"``.
        base: Takes the parameters, returns the optimizer that makes the step.
        rho: Radius, ``>= 0``; 0.5 to 1 is usual for ``"official"``, about 2 for the other.
        perturbation: Whose gradient perturbs the weights.
        m: Examples per perturbation.
        eta: Added to ``|w|`` by the official variant, ``>= 0``; the other one has none.
        variant: Which parameters are scaled.

    Raises:
        ValueError: As for :class:`SAM`, or if ``eta`` is negative.

    Reference:
        Kwon et al. 2021, arXiv:2102.11600.
    """

    _usual_rho = (0.05, 5.0)

    def __init__(
        self,
        params: Iterable[Any],
        base: Callable[[Iterable[nn.Parameter]], Optimizer],
        rho: float = 0.5,
        perturbation: Literal["global", "local"] = "global",
        m: int | None = None,
        eta: float = 0.01,
        variant: Literal["official", "all_parameters"] = "official",
    ) -> None:
        if not eta >= 0:
            raise ValueError(f"eta must be at least 0, got {eta}. The authors use 0 to 0.01.")
        super().__init__(params, base, rho, perturbation, m)
        self.eta = eta
        self.variant = variant
        self._names: dict[Tensor, str] = {}

    def name_parameters(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Tell the parameters' names, as ``model.named_parameters()`` gives them."""
        self._names = {parameter: name for name, parameter in named}

    def _perturbation(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        if self.variant == "all_parameters":
            everything = [True] * len(parameters)
            return asam_perturbation(parameters, gradients, everything, self.rho, 0.0)
        names = self._named()
        adaptive = ["weight" in names[parameter] for parameter in parameters]
        return asam_perturbation(parameters, gradients, adaptive, self.rho, self.eta)

    def _named(self) -> dict[Tensor, str]:
        names = dict(self._names)
        for group in self.param_groups:
            names.update(zip(group["params"], group.get("param_names", ()), strict=False))
        if any(parameter not in names for parameter in self._parameters()):
            raise RuntimeError(
                "ASAM's official variant must know the parameters' names, got parameters without. "
                "Build it from model.named_parameters(), or choose variant='all_parameters'."
            )
        return names
