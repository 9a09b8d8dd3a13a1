"""Data sets, loaders, samplers, group partitions and Lightning data modules."""

from toolkit.data.adult import Adult
from toolkit.data.array_images import ArrayImages
from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation, Compose, FlipAndCrop
from toolkit.data.digits import Digits
from toolkit.data.groups import Groups, class_by_attribute
from toolkit.data.label_noise import LabelNoise, symmetric_noise
from toolkit.data.loader import ArrayLoader, Normalize
from toolkit.data.long_tail import LongTail
from toolkit.data.module import ImageData, Source
from toolkit.data.patch_signals import PatchSignals
from toolkit.data.resident import ResidentData
from toolkit.data.sampler import EpochSampler, GroupBalancedSampler
from toolkit.data.split import stratified_split
from toolkit.data.spurious import (
    Agreement,
    Spurious,
    add_corner_patch,
    color_images,
    spurious_attributes,
)
from toolkit.data.teacher_mixture import GaussianGroups
from toolkit.data.torchvision_images import TorchvisionImages
from toolkit.data.trivial_augment import TrivialAugment
from toolkit.data.waterbirds import Waterbirds

__all__ = [
    "Adult",
    "Agreement",
    "ArrayImages",
    "ArrayLoader",
    "Augmentation",
    "Compose",
    "Digits",
    "EpochSampler",
    "FlipAndCrop",
    "GaussianGroups",
    "GroupBalancedSampler",
    "Groups",
    "ImageArrays",
    "ImageData",
    "LabelNoise",
    "LongTail",
    "Normalize",
    "PatchSignals",
    "ResidentData",
    "Source",
    "Spurious",
    "TorchvisionImages",
    "TrivialAugment",
    "Waterbirds",
    "add_corner_patch",
    "class_by_attribute",
    "color_images",
    "spurious_attributes",
    "stratified_split",
    "symmetric_noise",
]
