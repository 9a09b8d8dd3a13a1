"""Lightning callbacks, one per file; each says "Observes" or "Changes training"."""

from callbacks.bias_tracker import BiasTracker
from callbacks.example_dynamics import ExampleDynamics
from callbacks.margin_logger import MarginLogger
from callbacks.sharpness_aware import SharpnessAware
from callbacks.solution_probe import SolutionProbe
from callbacks.useful_upsampling import UsefulUpsampling

__all__ = [
    "BiasTracker",
    "ExampleDynamics",
    "MarginLogger",
    "SharpnessAware",
    "SolutionProbe",
    "UsefulUpsampling",
]
