"""LightningModules: each joins a net, a loss, its metrics and an optimiser."""

from toolkit.models.image_classifier import ImageClassifier

__all__ = ["ImageClassifier"]
