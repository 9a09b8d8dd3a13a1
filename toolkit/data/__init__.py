"""Data sets, loaders, samplers, group partitions and Lightning data modules."""

from toolkit.data.array_images import ArrayImages
from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation, FlipAndCrop
from toolkit.data.digits import Digits
from toolkit.data.groups import Groups, class_by_attribute
from toolkit.data.loader import ArrayLoader, Normalize
from toolkit.data.module import ImageData, Source
from toolkit.data.patch_signals import PatchSignals
from toolkit.data.resident import ResidentData
from toolkit.data.sampler import EpochSampler
from toolkit.data.split import stratified_split
from toolkit.data.spurious import Spurious, add_corner_patch, color_images, spurious_attributes
from toolkit.data.torchvision_images import TorchvisionImages

__all__ = [
    "ArrayImages",
    "ArrayLoader",
    "Augmentation",
    "Digits",
    "EpochSampler",
    "FlipAndCrop",
    "Groups",
    "ImageArrays",
    "ImageData",
    "Normalize",
    "PatchSignals",
    "ResidentData",
    "Source",
    "Spurious",
    "TorchvisionImages",
    "add_corner_patch",
    "class_by_attribute",
    "color_images",
    "spurious_attributes",
    "stratified_split",
]
