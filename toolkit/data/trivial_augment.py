"""TrivialAugment: one random operation at a random strength for each image."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor
from torch.nn import functional as F

from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation

__all__ = ["OPERATIONS", "TrivialAugment"]

OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate",
    "Brightness", "Color", "Contrast", "Sharpness",
    "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
"""The operations, by the number that is drawn."""

Images = UInt8[Tensor, "batch channels height width"]
Magnitudes = Float64[Tensor, " batch"]


@dataclass(frozen=True)
class TrivialAugment(Augmentation):
    """TrivialAugment (wide): each image gets one of 14 operations, at one of 31 strengths.

    Both are drawn uniformly. The strength runs from none to the largest of the operation, in even
    steps; shears (up to 0.99), translations (32 pixels), rotations (135 degrees), brightness,
    colour, contrast and sharpness (0.99) go to either side with probability 1/2. Posterising
    keeps 8 to 2 bits, solarising inverts from level 255 down to 0; ``AutoContrast`` and
    ``Equalize`` have no strength. Geometric operations take the nearest pixel, and zero from
    outside. A large translation of a small image leaves nothing of it.

    The operations are those of torchvision's ``TrivialAugmentWide`` and give its bytes; where a
    shear or rotation lands halfway between two pixels, the neighbour may be the other one. Each
    operation runs once per batch, on the images that drew it. On a GPU the host waits once per
    batch, for the number of images of each operation.

    Args:
        num_strengths: Steps of the strength, at least 2.

    Raises:
        ValueError: If there are fewer than 2; when a loader is made, if images are not uint8 with
            1 or 3 channels.

    Reference:
        Mueller and Hutter 2021, arXiv:2103.10158; its wide space as in torchvision.
    """

    num_strengths: int = 31

    def __post_init__(self) -> None:
        if self.num_strengths < 2:
            raise ValueError(
                f"num_strengths must be at least 2, got {self.num_strengths}. 31 is usual."
            )

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """``operation``, a number of :data:`OPERATIONS`, and its ``magnitude``, float64."""
        operation = torch.randint(len(OPERATIONS), (count,), generator=generator)
        level = torch.randint(self.num_strengths, (count,), generator=generator)
        mirrored = torch.randint(2, (count,), generator=generator).bool()
        magnitudes = torch.stack([_magnitudes(name, self.num_strengths) for name in OPERATIONS])
        has_sides = torch.tensor([name in _SIDED for name in OPERATIONS])
        magnitude = magnitudes[operation, level]
        magnitude = torch.where(mirrored & has_sides[operation], -magnitude, magnitude)
        return {"operation": operation, "magnitude": magnitude}

    def change(self, images: Images, draws: dict[str, Tensor]) -> Images:
        """The images after their operations."""
        order = draws["operation"].argsort(stable=True)
        parts = images.index_select(0, order)
        magnitude = draws["magnitude"].index_select(0, order)
        counts = torch.bincount(draws["operation"], minlength=len(OPERATIONS)).tolist()
        changed, start = [], 0
        for name, count in zip(OPERATIONS, counts, strict=True):
            rows = slice(start, start + count)
            start += count
            if count:
                changed.append(_OPERATE[name](parts[rows], magnitude[rows]))
        # Back to the order of the batch: the inverse of the permutation.
        return torch.cat(changed).index_select(0, order.argsort())

    def check(self, arrays: ImageArrays) -> None:
        """Refuse images that are not bytes, or neither grey nor RGB."""
        channels = arrays.shape[0]
        if arrays.images.dtype != torch.uint8 or channels not in (1, 3):
            raise ValueError(
                f"{arrays.name} images must be uint8 with 1 or 3 channels for TrivialAugment, got "
                f"{arrays.images.dtype} with {channels}. Convert them, or leave it out."
            )


def _magnitudes(name: str, count: int) -> Float64[Tensor, " strengths"]:
    """The magnitudes of an operation, from the weakest to the strongest."""
    if name == "Posterize":
        return 8 - (torch.arange(count) / ((count - 1) / 6)).round().double()
    start, end = (255.0, 0.0) if name == "Solarize" else (0.0, _LARGEST.get(name, 0.0))
    return torch.linspace(start, end, count, dtype=torch.float32).double()


def _affine(images: Images, matrix: Float[Tensor, "batch 2 2"], shift: Tensor) -> Images:
    """Each output pixel (column, row) from the nearest one at ``matrix @ (column, row) + shift``.

    Elementwise, so that an image's bytes do not depend on the batch it is in.
    """
    count, channels, height, width = images.shape
    device = images.device
    columns = torch.arange(width, device=device, dtype=torch.float64)[None, None, :]
    rows = torch.arange(height, device=device, dtype=torch.float64)[None, :, None]

    def source(k: int) -> Tensor:
        at = columns * matrix[:, k, 0, None, None] + rows * matrix[:, k, 1, None, None]
        return (at + shift[:, k, None, None]).round().long()

    x, y = source(0), source(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    places = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).view(count, 1, -1)
    taken = images.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(images)
    return taken * inside[:, None]


def _shear(axis: int) -> Callable[[Images, Magnitudes], Images]:
    """Shears along the columns (0) or the rows (1); the top left corner of the image stays."""

    def operate(images: Images, magnitude: Magnitudes) -> Images:
        matrix = torch.eye(2, dtype=torch.float64, device=images.device).repeat(len(images), 1, 1)
        matrix[:, axis, 1 - axis] = magnitude
        shift = torch.zeros(len(images), 2, dtype=torch.float64, device=images.device)
        shift[:, axis] = 0.5 * magnitude  # pixels' centres lie at halves
        return _affine(images, matrix, shift)

    return operate


def _translate(axis: int) -> Callable[[Images, Magnitudes], Images]:
    def operate(images: Images, magnitude: Magnitudes) -> Images:
        matrix = torch.eye(2, dtype=torch.float64, device=images.device).repeat(len(images), 1, 1)
        shift = torch.zeros(len(images), 2, dtype=torch.float64, device=images.device)
        shift[:, axis] = -magnitude.trunc()
        return _affine(images, matrix, shift)

    return operate


def _rotate(images: Images, magnitude: Magnitudes) -> Images:
    """About the middle of the image, counter-clockwise for positive angles."""
    angle = magnitude * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2)
    height, width = images.shape[2:]
    middle = torch.tensor([width - 1, height - 1], dtype=torch.float64, device=images.device) / 2
    turned = (matrix * middle).sum(2)
    return _affine(images, matrix, middle - turned)


def _blend(images: Images, others: Tensor, magnitude: Magnitudes) -> Images:
    """``factor * images + (1 - factor) * others`` in float32, cut to whole levels."""
    factor = (1.0 + magnitude)[:, None, None, None]
    mixed = factor.float() * images + (1.0 - factor).float() * others
    return mixed.clamp(0, 255).to(torch.uint8)


def _grey(images: Images) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]


def _brightness(images: Images, magnitude: Magnitudes) -> Images:
    return _blend(images, torch.zeros_like(images), magnitude)


def _color(images: Images, magnitude: Magnitudes) -> Images:
    return images if images.shape[1] == 1 else _blend(images, _grey(images), magnitude)


def _contrast(images: Images, magnitude: Magnitudes) -> Images:
    grey = _grey(images)
    # A sum of whole numbers: the same whatever the order in which a device adds them up.
    mean = grey.sum((1, 2, 3), keepdim=True).float() / grey[0].numel()
    return _blend(images, mean, magnitude)


def _sharpness(images: Images, magnitude: Magnitudes) -> Images:
    """Blends with the images smoothed by (1 1 1; 1 5 1; 1 1 1) / 13, except at the border."""
    if min(images.shape[2:]) <= 2:
        return images
    wide = images.int()
    across = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    sums = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :]
    sums = sums + 4 * wide[..., 1:-1, 1:-1]
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = ((2 * sums + 13) // 26).to(torch.uint8)  # rounded; no ties at 13
    return _blend(images, smooth, magnitude)


def _posterize(images: Images, magnitude: Magnitudes) -> Images:
    mask = (255 << (8 - magnitude.long())) & 255
    return images & mask.to(torch.uint8)[:, None, None, None]


def _solarize(images: Images, magnitude: Magnitudes) -> Images:
    threshold = magnitude.float()[:, None, None, None]
    return torch.where(images >= threshold, 255 - images, images)


def _autocontrast(images: Images, magnitude: Magnitudes) -> Images:
    """Stretches each channel to 0..255; one of a single level stays."""
    low = images.amin((2, 3), keepdim=True).float()
    high = images.amax((2, 3), keepdim=True).float()
    flat = high == low
    scale = torch.where(flat, 1.0, 255.0 / (high - low).clamp_min(1.0))
    low = torch.where(flat, 0.0, low)
    return ((images - low) * scale).clamp(0, 255).to(torch.uint8)


def _equalize(images: Images, magnitude: Magnitudes) -> Images:
    """Levels of each channel by their ranks, in steps that make the histogram even."""
    pixels = images.flatten(2)
    levels = torch.arange(256, device=images.device)
    ordered = pixels.sort(2).values.int()
    # cumulative[level]: how many pixels are at most that level
    cumulative = torch.searchsorted(
        ordered, levels.int().expand(*pixels.shape[:2], -1).contiguous(), right=True
    )
    below_last = torch.searchsorted(ordered, ordered[..., -1:].contiguous(), right=False)
    step = below_last // 255
    safe = step.clamp_min(1)
    table = F.pad((cumulative + safe // 2) // safe, (1, 0))[..., :-1].clamp(0, 255)
    table = torch.where(step == 0, levels, table)  # too few pixels to be told apart
    return table.gather(2, pixels.long()).to(torch.uint8).view_as(images)


_OPERATE: dict[str, Callable[[Images, Magnitudes], Images]] = {
    "Identity": lambda images, magnitude: images,
    "ShearX": _shear(0),
    "ShearY": _shear(1),
    "TranslateX": _translate(0),
    "TranslateY": _translate(1),
    "Rotate": _rotate,
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
}

_SIDED = frozenset(OPERATIONS[1:10])
_LARGEST = {
    **dict.fromkeys(("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), 0.99),
    **dict.fromkeys(("TranslateX", "TranslateY"), 32.0),
    "Rotate": 135.0,
}
