"""Losses: pure functions, classes over them, and modules where a loss has a state."""

from toolkit.losses.exponential import CrossEntropy, MulticlassExponential, PairLogLoss
from toolkit.losses.group_dro import GroupDRO
from toolkit.losses.other_tails import (
    CrammerSingerHinge,
    FocalLoss,
    GammaPhiLoss,
    WestonWatkinsHinge,
)
from toolkit.losses.perm import PERMLoss, relative_margins
from toolkit.losses.tail import ExponentialTail, exponential_tail, has_exponential_tail

__all__ = [
    "CrammerSingerHinge",
    "CrossEntropy",
    "ExponentialTail",
    "FocalLoss",
    "GammaPhiLoss",
    "GroupDRO",
    "MulticlassExponential",
    "PERMLoss",
    "PairLogLoss",
    "WestonWatkinsHinge",
    "exponential_tail",
    "has_exponential_tail",
    "relative_margins",
]
