"""LightningModules: each joins a net, a loss, its metrics and an optimiser."""

from toolkit.models.image_classifier import ImageClassifier
from toolkit.models.joint import JointModel
from toolkit.models.online_classifier import OnlineClassifier
from toolkit.models.two_layer_cnn import TwoLayerCNN

__all__ = ["ImageClassifier", "JointModel", "OnlineClassifier", "TwoLayerCNN"]
