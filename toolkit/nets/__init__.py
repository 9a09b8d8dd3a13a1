"""Nets: torch modules and their builders, with explicit signatures."""

from toolkit.nets.mlp import MLP
from toolkit.nets.small_cnn import SmallCNN
from toolkit.nets.timm_net import timm_net

__all__ = ["MLP", "SmallCNN", "timm_net"]
