"""Nets: torch modules and their builders, with explicit signatures."""

from toolkit.nets.small_cnn import SmallCNN
from toolkit.nets.timm_net import timm_net

__all__ = ["SmallCNN", "timm_net"]
