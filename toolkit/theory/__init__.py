"""Reference answers that experiments are held against."""

from toolkit.theory.bias_dynamics import TeacherMixture
from toolkit.theory.horizon import CustomPotential, check_profile, horizon_at, level_radius
from toolkit.theory.max_margin import (
    MaxMargin,
    max_margin,
    max_margin_of_constraints,
    multiclass_constraints,
    multiclass_max_margin,
    signed_inputs,
)
from toolkit.theory.norms import LpNorm, Norm, QuadraticNorm
from toolkit.theory.order_parameters import Crossing, OrderParameters
from toolkit.theory.potential import Potential, QuadraticForm, SeparablePotential
from toolkit.theory.potentials import (
    AbsLog,
    ExpSquare,
    HyperbolicCosine,
    HyperbolicEntropy,
    Power,
    SquarePlusFourth,
)
from toolkit.theory.separability import LeastViolation, NotSeparableError, least_violation

__all__ = [
    "AbsLog",
    "Crossing",
    "CustomPotential",
    "ExpSquare",
    "HyperbolicCosine",
    "HyperbolicEntropy",
    "LeastViolation",
    "LpNorm",
    "MaxMargin",
    "Norm",
    "NotSeparableError",
    "OrderParameters",
    "Potential",
    "Power",
    "QuadraticForm",
    "QuadraticNorm",
    "SeparablePotential",
    "SquarePlusFourth",
    "TeacherMixture",
    "check_profile",
    "horizon_at",
    "least_violation",
    "level_radius",
    "max_margin",
    "max_margin_of_constraints",
    "multiclass_constraints",
    "multiclass_max_margin",
    "signed_inputs",
]
