"""Perturbations of the weights towards a higher loss, of SAM and ASAM."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["asam_perturbation", "sam_perturbation"]

_EPS = 1e-12  # a zero gradient gives a zero perturbation


def sam_perturbation(gradients: Sequence[Tensor], rho: float) -> list[Tensor]:
    """``rho * g / ||g||``, the norm taken over all tensors together, in float32 or wider.

    Raises:
        TypeError: If a gradient is sparse or complex.

    Example:
        >>> sam_perturbation([torch.tensor([3.0]), torch.tensor([4.0])], rho=1.0)
        [tensor([0.6000]), tensor([0.8000])]

    Reference:
        Foret et al. 2021, arXiv:2010.01412.
    """
    _check(gradients)
    return _scaled(gradients, rho / (_norm(gradients) + _EPS))


def asam_perturbation(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    adaptive: Sequence[bool],
    rho: float,
    eta: float,
) -> list[Tensor]:
    """``rho * T^2 g / ||T g||`` with ``T = |w| + eta`` where ``adaptive``, elsewhere 1.

    Raises:
        TypeError: If a gradient is sparse or complex.

    Example:
        >>> weight, gradient = torch.tensor([2.0, 1.0]), torch.tensor([2.0, 10.0])
        >>> asam_perturbation([weight], [gradient], [True], rho=0.1, eta=0.0)
        [tensor([0.0743, 0.0928])]

    Reference:
        Kwon et al. 2021, arXiv:2102.11600.
    """
    _check(gradients)
    chosen = [p for p, a in zip(parameters, adaptive, strict=True) if a]
    scales = iter(torch._foreach_add(torch._foreach_abs(chosen), eta) if chosen else ())
    scale = [next(scales) if a else None for a in adaptive]
    once = [g if t is None else g * t for g, t in zip(gradients, scale, strict=True)]
    twice = [g if t is None else g * t for g, t in zip(once, scale, strict=True)]
    return _scaled(twice, rho / (_norm(once) + _EPS))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    dtype = torch.float32
    for kind in {tensor.dtype for tensor in tensors}:
        dtype = torch.promote_types(dtype, kind)
    norms = torch._foreach_norm(list(tensors), 2, dtype=dtype)
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(tensors[0].device) for norm in norms])
    )
    return total


def _scaled(tensors: Sequence[Tensor], scale: Tensor) -> list[Tensor]:
    if len({tensor.device for tensor in tensors}) == 1:
        return list(torch._foreach_mul(list(tensors), scale))
    return [tensor * scale.to(tensor.device) for tensor in tensors]


def _check(gradients: Sequence[Tensor]) -> None:
    for gradient in gradients:
        if gradient.is_sparse or gradient.is_complex():
            kind = "a sparse" if gradient.is_sparse else "a complex"
            raise TypeError(
                f"Gradients must be dense and real for SAM, got {kind} one of shape "
                f"{tuple(gradient.shape)}. Set sparse=False in nn.Embedding."
            )
