"""Potentials: derivatives, inverses, horizons; which ones are refused."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from toolkit.theory import (
    AbsLog,
    CustomPotential,
    ExpSquare,
    HyperbolicCosine,
    HyperbolicEntropy,
    LpNorm,
    Potential,
    Power,
    QuadraticForm,
    SeparablePotential,
    SquarePlusFourth,
    horizon_at,
)

MATRIX = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]], dtype=torch.float64)
TABLE: dict[str, Potential] = {
    "square": Power(2.0),
    "p = 3": Power(3.0),
    "p = 1.5": Power(1.5),
    "weighted p = 3": Power(3.0, torch.tensor([1.0, 2.0, 0.5])),
    "hyperbolic entropy": HyperbolicEntropy(),
    "narrow hyperbolic entropy": HyperbolicEntropy(1e-3),
    "abs log": AbsLog(),
    "cosh": HyperbolicCosine(),
    "exp square": ExpSquare(),
    "square plus fourth": SquarePlusFourth(),
    "quadratic form": QuadraticForm(MATRIX),
    "custom": CustomPotential(lambda b: b.abs() ** 3 / 3, 3, LpNorm(3.0)),
}
POINTS = torch.tensor([[1.0, 0.5, -0.25], [-3.0, 1e-3, 2.0], [5.0, -5.0, 0.1]], dtype=torch.float64)


@pytest.mark.parametrize("name", TABLE)
def test_gradient_and_hessian_are_the_derivatives_of_the_value(name: str) -> None:
    potential = TABLE[name]
    for point in POINTS:
        moving = point.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(potential.value(moving), moving)
        torch.testing.assert_close(potential.gradient(point), gradient)
        step = 1e-6 * torch.eye(3, dtype=torch.float64) * point.abs()
        rise = potential.gradient(point + step) - potential.gradient(point - step)
        slope = rise / (2 * step.diagonal()[:, None])
        torch.testing.assert_close(potential.hessian(point), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", TABLE)
def test_the_inverse_undoes_the_gradient(name: str) -> None:
    potential = TABLE[name]
    torch.testing.assert_close(
        potential.inverse(potential.gradient(POINTS)), POINTS, rtol=1e-12, atol=1e-12
    )
    zero = torch.zeros(3, dtype=torch.float64)
    assert potential.inverse(zero).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("potential", "largest"),
    [(HyperbolicCosine(), 1e305), (ExpSquare(), 1e305), (HyperbolicEntropy(), 700.0),
     (AbsLog(), 700.0), (SquarePlusFourth(), 1e200)],
)  # fmt: skip
def test_the_inverse_holds_for_tiny_and_for_huge_duals(
    potential: Potential, largest: float
) -> None:
    duals = torch.tensor([largest, -largest, 1e-200, -1e-9, 1e-3], dtype=torch.float64)
    weights = potential.inverse(duals)
    # An error of rounding in b is one of b times as much in exp(b).
    torch.testing.assert_close(potential.gradient(weights), duals, rtol=3e-12, atol=0)


def test_what_overflows_is_infinite_and_not_nan() -> None:
    far = torch.tensor([800.0, -800.0], dtype=torch.float64)
    assert HyperbolicCosine().gradient(far).tolist() == [math.inf, -math.inf]
    assert ExpSquare().gradient(far).tolist() == [math.inf, -math.inf]
    for potential in (HyperbolicCosine(), ExpSquare()):
        assert potential.inverse(far * math.inf).tolist() == [math.inf, -math.inf]


# The horizon at b = (1, 0.5, 0.25), by an independent calculation to the digits given.
@pytest.mark.parametrize(
    ("potential", "eta", "expected"),
    [
        (HyperbolicEntropy(), 1e-1, 1.315),
        (HyperbolicEntropy(), 1e-2, 1.464),
        (HyperbolicEntropy(), 1e-4, 1.589),
        (HyperbolicEntropy(), 1e-8, 1.665),
        (HyperbolicEntropy(), 1e-16, 1.706),
        (SquarePlusFourth(), 1e-8, 1.0162),
        (HyperbolicCosine(), 0.1, 1.0007),
        (HyperbolicCosine(), 0.02, 1.0000),
    ],
)
def test_the_horizon_is_approached_as_it_should(
    potential: SeparablePotential, eta: float, expected: float
) -> None:
    digits = 5e-4 if expected > 1.1 else 5e-5
    assert horizon_at(potential, POINTS[0], eta).item() == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("eta", [10.0, 1.0, 1e-3])
def test_the_horizon_of_a_power_is_its_root_at_every_eta(p: float, eta: float) -> None:
    found = horizon_at(Power(p), POINTS, eta)
    torch.testing.assert_close(found, POINTS.norm(p, dim=-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "eta", "tolerance"),
    [("hyperbolic entropy", 1e-280, 0.01), ("narrow hyperbolic entropy", 1e-280, 0.01),
     ("abs log", 1e-280, 0.01), ("cosh", 0.01, 2e-3), ("exp square", 0.2, 1e-3),
     ("square plus fourth", 1e-5, 1e-6), ("custom", 1e-5, 1e-12)],
)  # fmt: skip
def test_each_norm_is_the_limit_of_its_horizon(name: str, eta: float, tolerance: float) -> None:
    potential = TABLE[name]
    assert isinstance(potential, SeparablePotential)
    found = horizon_at(potential, POINTS, eta)
    torch.testing.assert_close(found, potential.norm(POINTS), rtol=tolerance, atol=0)


def test_the_dual_norm_is_the_conjugate_one() -> None:
    slope = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    expected = {"square": 3.0, "hyperbolic entropy": 2.0, "cosh": 5.0}
    for name, value in expected.items():
        assert TABLE[name].norm.dual(slope).item() == pytest.approx(value)
    inverse = float((slope @ MATRIX.inverse() @ slope).sqrt())
    assert TABLE["quadratic form"].norm.dual(slope).item() == pytest.approx(inverse)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (lambda b: b.cosh().log(), "coordinate 0 must have an unbounded derivative, got 1 at"),
        (lambda b: torch.where(b.abs() < 1, b**2 / 2, b.abs() - 0.5), "an unbounded derivative"),
        (lambda b: (1 + b**2).sqrt(), "an unbounded derivative"),
        (lambda b: b.abs(), "an unbounded derivative"),
        (lambda b: b * b.log() - b, "must be defined on the whole line, got nan at -0.01"),
        (lambda b: -b.log(), "must be defined on the whole line"),
        (lambda b: -(1 - b**2).log(), "must be defined on the whole line"),
        (lambda b: -(b**2), "must be convex"),
        (lambda b: b.cos(), "must be convex"),
        (lambda b: torch.stack([b[..., 0] ** 2, b[..., 1] ** 4], -1), "must grow alike"),
    ],
)
def test_potentials_outside_the_theory_are_refused_with_the_reason(
    profile: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CustomPotential(profile, 2)


@pytest.mark.parametrize(
    "profile",
    [
        lambda b: b * b.asinh() - (b**2 + 1).sqrt(),
        lambda b: b.abs() * b.abs().log1p(),
        lambda b: b.cosh(),
        lambda b: (b**2).exp(),
        lambda b: b.abs() ** 1.1,
        lambda b: b**10,
        lambda b: b**2 * torch.tensor([1.0, 100.0]),
        lambda b: (b * torch.tensor([1.0, 3.0])).cosh(),
    ],
)
def test_potentials_within_the_theory_pass(profile: Callable[[Tensor], Tensor]) -> None:
    potential = CustomPotential(profile, 2)
    points = torch.tensor([[2.0, -1.0], [0.1, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(potential.inverse(potential.gradient(points)), points)
    with pytest.raises(ValueError, match="norm must be given"):
        assert potential.norm


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"p must be above 1 and finite, got 1\.0"):
        Power(1.0)
    with pytest.raises(ValueError, match=r"k must be positive and finite, got 0"):
        HyperbolicEntropy(0.0)
    with pytest.raises(ValueError, match=r"weights must be one per coordinate"):
        Power(3.0, [1.0, 2.0]).gradient(POINTS)
    with pytest.raises(ValueError, match="eta must keep"):
        horizon_at(HyperbolicCosine(), POINTS, 1e-5)
