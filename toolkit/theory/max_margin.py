"""Exact max margins of linear classifiers in any norm, with a certificate in every answer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from toolkit.theory.least_norm import least_norm
from toolkit.theory.norms import LpNorm, Norm, QuadraticNorm
from toolkit.theory.separability import NotSeparableError, least_violation

__all__ = [
    "MaxMargin",
    "max_margin",
    "max_margin_of_constraints",
    "multiclass_constraints",
    "multiclass_max_margin",
    "signed_inputs",
]

Array = Tensor | NDArray[np.floating] | NDArray[np.integer] | Sequence[Sequence[float]]
Labels = Tensor | NDArray[np.floating] | NDArray[np.integer] | Sequence[float] | Sequence[int]


@dataclass(frozen=True)
class MaxMargin:
    """The largest normalised margin ``gamma = max of min_i (G w)_i over ||w|| <= 1``.

    Attributes:
        margin: ``min_i (G w)_i`` of :attr:`direction`, a lower bound of gamma by arithmetic alone.
        upper: An upper bound of gamma: the dual norm of ``G' weights``, for any convex
            combination ``weights`` of the rows.
        direction: The maximiser, of norm 1; ``(size,)``, or ``(size, classes)`` if multiclass.
        weights: One per row of ``G``, on the simplex; positive on the support vectors only.
        unique: Whether the direction was shown to be the only maximiser. In l_1 and l_inf there
            may be others; compare directions only where this is true, else margins.
        norm: Of which the margin is.
    """

    margin: float
    upper: float
    direction: Float[Tensor, " *shape"]
    weights: Float[Tensor, " rows"]
    unique: bool
    norm: Norm

    @property
    def gap(self) -> float:
        """``upper - margin``: gamma is known to within this."""
        return self.upper - self.margin


def max_margin(inputs: Array, labels: Labels, norm: Norm | float = 2.0) -> MaxMargin:
    """Max margin of a linear classifier without bias on two classes.

    Args:
        inputs: ``(examples, size)``.
        labels: ``(examples,)``, each -1 or +1, both present.
        norm: A norm, or the p of l_p.

    Raises:
        ValueError: If an argument is not as described.
        NotSeparableError: If no ``w`` classifies every example rightly.

    Example:
        >>> found = max_margin([[1.0, 0.5], [-2.0, -1.5]], [1, -1], norm=math.inf)
        >>> round(found.margin, 6), [round(value, 6) for value in found.direction.tolist()]
        (1.5, [1.0, 1.0])
    """
    return max_margin_of_constraints(signed_inputs(inputs, labels), norm)


def multiclass_max_margin(
    inputs: Array, labels: Labels, norm: Norm | float = 2.0, num_classes: int | None = None
) -> MaxMargin:
    """Max margin of linear scores ``X W``: the least ``S_{i,y_i} - S_{i,k}`` over i and k != y_i.

    The norm is of all entries of ``W`` as one vector: l_2 is the Frobenius norm of the hard-margin
    multiclass SVM, l_inf the entrywise maximum.

    Args:
        inputs: ``(examples, size)``.
        labels: ``(examples,)``, whole numbers from 0, every class present.
        norm: A norm, or the p of l_p.
        num_classes: The largest label plus 1 by default.

    Raises:
        ValueError: If an argument is not as described.
        NotSeparableError: If no ``W`` classifies every example rightly.

    Reference:
        Crammer and Singer 2001, JMLR 2:265; Ravi, Scott, Soudry, Wang 2024, arXiv:2411.01350.
    """
    examples, targets = _checked(inputs, labels)
    classes = _checked_classes(targets, num_classes)
    constraints = multiclass_constraints(examples, targets.long(), classes)
    found = max_margin_of_constraints(constraints, norm)
    direction = found.direction.reshape(examples.shape[1], classes)
    return MaxMargin(found.margin, found.upper, direction, found.weights, found.unique, found.norm)


def signed_inputs(inputs: Array, labels: Labels) -> Float[Tensor, "examples size"]:
    """``y_i x_i`` in float64, after the checks of :func:`max_margin`.

    Raises:
        ValueError: If an argument is not as described there.
    """
    examples, signs = _checked(inputs, labels)
    strange = signs[(signs != 1) & (signs != -1)]
    if len(strange):
        raise ValueError(
            f"labels must be -1 or +1, got {float(strange[0]):g}. Map classes 0 and 1 by 2 * y - 1."
        )
    if bool((signs == signs[0]).all()):
        raise ValueError(
            f"labels must hold both -1 and +1, got only {float(signs[0]):+g}. With one class "
            "there is nothing to separate."
        )
    return signs[:, None] * examples


def multiclass_constraints(
    inputs: Float[Tensor, "examples size"], targets: Tensor, num_classes: int
) -> Float[Tensor, "rows entries"]:
    """Rows ``x_i (e_{y_i} - e_k)'`` flattened as ``W`` is; example by example, k ascending."""
    signs = torch.eye(num_classes, dtype=torch.float64)
    codes = signs[targets][:, None, :] - signs[None]  # (examples, classes, classes)
    rivals = torch.arange(num_classes)[None] != targets[:, None]
    rows = inputs[:, None, :, None] * codes[:, :, None, :]
    return rows[rivals].flatten(1)


def max_margin_of_constraints(
    constraints: Float[Tensor, "rows size"], norm: Norm | float = 2.0
) -> MaxMargin:
    """``max of min_i (G w)_i over ||w|| <= 1`` for any finite rows ``G``.

    Raises:
        ValueError: If the norm is none, or has weights of another size.
        NotSeparableError: If there is no ``w`` with ``G w > 0``; gamma is then 0.
        RuntimeError: If the bounds do not meet to 1e-6 of the margin.
    """
    given = norm if isinstance(norm, Norm) else LpNorm(norm)
    rows = constraints.double()
    _check_separable(rows)
    plain, p, back = _plain_lp(rows, given)
    weights, multipliers = least_norm(plain.numpy(), p)
    direction = back(torch.from_numpy(np.ascontiguousarray(weights)))
    direction = direction / given(direction)
    dual = torch.from_numpy(np.maximum(multipliers, 0.0))
    dual = dual / dual.sum()
    margin, upper = float((rows @ direction).min()), float(given.dual(dual @ rows))
    if not upper - margin <= 1e-6 * upper:
        raise RuntimeError(
            f"the margin's bounds must meet, got {margin:.9g} and {upper:.9g} for {given}. Scale "
            "the inputs to entries of about 1, or choose a p nearer to 2."
        )
    unique = 1 < p < math.inf or _is_unique(plain, dual, p)
    # Rounding may leave the bounds in the wrong order by a unit in the last place.
    return MaxMargin(margin, max(upper, margin), direction, dual, unique, given)


def _plain_lp(rows: Tensor, norm: Norm) -> tuple[Tensor, float, Callable[[Tensor], Tensor]]:
    """Rows in the coordinates in which the norm is a plain l_p, its p, and the way back."""
    size = rows.shape[1]
    if isinstance(norm, QuadraticNorm):
        factor = norm.factor
        if len(factor) != size:
            raise ValueError(
                f"the norm's matrix must be of the weights' size {size}, got {len(factor)}. Give "
                "one row and column per weight."
            )
        plain = torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT
        return plain, 2.0, lambda weights: torch.linalg.solve(factor.mT, weights)
    if isinstance(norm, LpNorm):
        scales = norm.scales(size)
        return rows / scales, norm.p, lambda weights: weights / scales
    raise ValueError(
        f"norm must be an LpNorm or a QuadraticNorm, got {type(norm).__name__}. No solver is known "
        "for others."
    )


def _is_unique(rows: Tensor, dual: Tensor, p: float) -> bool:
    """Whether the multipliers alone pin the direction down, for p = 1 and inf.

    Rows with a positive multiplier are active at every maximiser. So are, in l_1, the zeros where
    ``|G' dual|`` is below its maximum and, in l_inf, the bounds where it is not 0. What these leave
    free must have no null space.
    """
    active = rows[dual > 1e-9]
    slopes = (dual @ rows).abs()
    if p == 1:
        free = active[:, slopes >= slopes.max() * (1 - 1e-9)]
    else:
        free = active[:, slopes <= 1e-9 * rows.abs().max()]
        free = torch.cat([free, -torch.ones(len(free), 1, dtype=rows.dtype)], 1)
    return int(torch.linalg.matrix_rank(free)) == free.shape[1]


def _check_separable(rows: Tensor) -> None:
    scale = float(rows.abs().max())
    margin = 0.0
    if scale > 0:
        weights, _ = least_norm((rows / scale).numpy(), math.inf)
        margin = float((rows / scale @ torch.from_numpy(weights)).min())
    if margin <= 1e-9:
        least = least_violation(rows)
        raise NotSeparableError(
            "the data must be separable by a linear classifier without bias, got a least total "
            f"slack of {least.total_slack:.6g} over {len(rows)} constraints, of which "
            f"{len(least.violated)} are violated. There is no max margin: leave out normalised "
            "margins, or add features (a constant one is a bias).",
            least,
        )


def _checked(inputs: Array, labels: Labels) -> tuple[Tensor, Tensor]:
    examples, targets = torch.as_tensor(inputs), torch.as_tensor(labels)
    if examples.ndim != 2 or targets.shape != examples.shape[:1] or not examples.numel():
        raise ValueError(
            "inputs must be (examples, size) and labels (examples,), got "
            f"{tuple(examples.shape)} and {tuple(targets.shape)}. Flatten images; one label each."
        )
    for name, values in (("inputs", examples), ("labels", targets)):
        if not bool(values.isfinite().all()):
            raise ValueError(
                f"{name} must be finite, got {int((~values.isfinite()).sum())} NaN or infinite "
                "entries. Drop these examples."
            )
    return examples.detach().cpu().double(), targets.detach().cpu().double()


def _checked_classes(targets: Tensor, num_classes: int | None) -> int:
    classes = num_classes if num_classes is not None else int(targets.max()) + 1
    wrong = targets[(targets != targets.round()) | (targets < 0) | (targets >= classes)]
    if len(wrong):
        raise ValueError(
            f"labels must be whole numbers in 0..{classes - 1}, got {float(wrong[0]):g}. Number "
            "the classes from 0."
        )
    missing = sorted(set(range(classes)) - set(targets.long().tolist()))
    if missing or classes < 2:
        raise ValueError(
            f"labels must hold every one of at least 2 classes, got none of class "
            f"{missing[0] if missing else 1}. Renumber the classes, or draw other data."
        )
    return classes
