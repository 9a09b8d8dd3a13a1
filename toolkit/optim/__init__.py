"""Optimisers, schedules, and full-batch methods as pure functions."""

from toolkit.optim.asam import ASAM
from toolkit.optim.full_batch import (
    Adam,
    FullBatchMethod,
    Gradient,
    GradientDescent,
    GradientFunction,
    LogDomainAdam,
    Momentum,
    NormalizedGradientDescent,
    SignDescent,
    Signum,
    State,
    run_updates,
)
from toolkit.optim.fused import FusedBinary
from toolkit.optim.fused_multiclass import FusedMulticlass
from toolkit.optim.implicit_mirror import ImplicitMirrorFlow
from toolkit.optim.linear_gradients import (
    binary_gradient,
    binary_weights,
    linear_gradient,
    stable_rate,
)
from toolkit.optim.mirror import MirrorDescent, MirrorMap, TimeChangedMirrorFlow, stop_reason
from toolkit.optim.passes import kept_buffers
from toolkit.optim.perturbation import asam_perturbation, sam_perturbation
from toolkit.optim.power_rates import power_rates
from toolkit.optim.sam import SAM
from toolkit.optim.schedules import cosine, steps

__all__ = [
    "ASAM",
    "SAM",
    "Adam",
    "FullBatchMethod",
    "FusedBinary",
    "FusedMulticlass",
    "Gradient",
    "GradientDescent",
    "GradientFunction",
    "ImplicitMirrorFlow",
    "LogDomainAdam",
    "MirrorDescent",
    "MirrorMap",
    "Momentum",
    "NormalizedGradientDescent",
    "SignDescent",
    "Signum",
    "State",
    "TimeChangedMirrorFlow",
    "asam_perturbation",
    "binary_gradient",
    "binary_weights",
    "cosine",
    "kept_buffers",
    "linear_gradient",
    "power_rates",
    "run_updates",
    "sam_perturbation",
    "stable_rate",
    "steps",
    "stop_reason",
]
