"""Nets: torch modules and their builders, with explicit signatures."""

from toolkit.nets.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
