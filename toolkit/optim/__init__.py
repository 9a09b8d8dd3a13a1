"""Optimisers and schedules."""

from toolkit.optim.asam import ASAM
from toolkit.optim.passes import kept_buffers
from toolkit.optim.perturbation import asam_perturbation, sam_perturbation
from toolkit.optim.sam import SAM
from toolkit.optim.schedules import cosine, steps

__all__ = [
    "ASAM",
    "SAM",
    "asam_perturbation",
    "cosine",
    "kept_buffers",
    "sam_perturbation",
    "steps",
]
