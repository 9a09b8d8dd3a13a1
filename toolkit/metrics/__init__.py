"""Metrics: pure functions, and thin torchmetrics classes over them."""

from toolkit.metrics.classification import LossAndAccuracy

__all__ = ["LossAndAccuracy"]
