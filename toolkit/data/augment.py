"""Random changes of the images of a batch, drawn per position of the epoch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from toolkit.data.arrays import ImageArrays

__all__ = ["Augmentation", "Compose", "FlipAndCrop"]


class Augmentation(ABC):
    """A random change of images, split into drawing and doing.

    All draws of an epoch are made at once, one row per position of the global order; a batch is
    then a function of its rows alone. So the number of ranks changes nothing, and the copies of
    an upsampled example are changed independently.
    """

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws for ``count`` images; the first axis of each tensor is ``count`` long."""

    @abstractmethod
    def change(
        self, images: Shaped[Tensor, "batch channels height width"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """New images, changed as the draws say, of the same type and size."""

    def take(
        self, arrays: ImageArrays, indices: Int[Tensor, " batch"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """New images: those at ``indices``, changed as the draws say, of the type of ``arrays``."""
        return self.change(arrays.images.index_select(0, indices), draws)

    def check(self, arrays: ImageArrays) -> None:  # noqa: B027 - most take any image
        """Check that images of this type and size can be changed; a loader asks at its making.

        Raises:
            ValueError: If not.
        """


@dataclass(frozen=True)
class FlipAndCrop(Augmentation):
    """Horizontal flip with probability 1/2, and a random shift with zeros coming in at the sides.

    The same distribution as torchvision's ``RandomCrop(size, padding)`` followed by
    ``RandomHorizontalFlip()``.

    Args:
        padding: The largest shift in pixels, at least 0.
        flip: Whether to flip; switch it off for digits and text.

    Raises:
        ValueError: If ``padding`` is negative.
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}.")

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """``down`` and ``right`` in ``0..2 * padding``, the window's corner, and ``flip``."""
        shifts = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flip = torch.randint(2, (count,), generator=generator).bool()
        return {"down": shifts[0], "right": shifts[1], "flip": flip & self.flip}

    def change(
        self, images: Shaped[Tensor, "batch channels height width"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """Windows of the images, padded here, flipped where drawn."""
        padded = F.pad(images, (self.padding,) * 4).contiguous()
        return self._windows(padded, torch.arange(len(images), device=images.device), draws)

    def take(
        self, arrays: ImageArrays, indices: Int[Tensor, " batch"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """Windows of the images, padded once for all epochs, flipped where drawn."""
        return self._windows(arrays.padded(self.padding), indices, draws)

    def _windows(self, padded: Tensor, indices: Tensor, draws: dict[str, Tensor]) -> Tensor:
        _, channels, rows, columns = padded.shape
        shape = (channels, rows - 2 * self.padding, columns - 2 * self.padding)
        # A view of every window of every image, by its place in memory: one gather of whole windows
        # crops the batch, each image at its own place. The view overlaps itself and is only read.
        strides = (rows * columns, columns, 1)
        span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        windows = padded.as_strided((padded.numel() - span, *shape), (1, *strides))
        starts = indices * (channels * rows * columns) + draws["down"] * columns + draws["right"]
        # index_select copies row by row; indexing with [] goes byte by byte, 2.5 times slower.
        images = windows.index_select(0, starts)
        if not self.flip:
            return images
        places = torch.arange(len(images), device=images.device) + len(images) * draws["flip"]
        return torch.cat([images, images.flip(-1)]).index_select(0, places)


class Compose(Augmentation):
    """Several augmentations, one after the other.

    The first draws the same as alone, so that a run with further steps is paired with one without.

    Args:
        steps: At least one.

    Raises:
        ValueError: If there is none.
    """

    def __init__(self, steps: Sequence[Augmentation]) -> None:
        if not steps:
            raise ValueError("steps must hold at least one augmentation, got none. Leave it out.")
        self.steps = tuple(steps)

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The draws of each step in turn, under ``<number of the step>.<name>``."""
        drawn = [step.draw(count, generator) for step in self.steps]
        return {f"{k}.{name}": rows for k, one in enumerate(drawn) for name, rows in one.items()}

    def change(
        self, images: Shaped[Tensor, "batch channels height width"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """The images after all steps."""
        return self._rest(self.steps[0].change(images, _of(0, draws)), draws)

    def take(
        self, arrays: ImageArrays, indices: Int[Tensor, " batch"], draws: dict[str, Tensor]
    ) -> Shaped[Tensor, "batch channels height width"]:
        """Those at ``indices`` after all steps."""
        return self._rest(self.steps[0].take(arrays, indices, _of(0, draws)), draws)

    def check(self, arrays: ImageArrays) -> None:
        """Check each step."""
        for step in self.steps:
            step.check(arrays)

    def _rest(self, images: Tensor, draws: dict[str, Tensor]) -> Tensor:
        for number, step in enumerate(self.steps[1:], start=1):
            images = step.change(images, _of(number, draws))
        return images


def _of(number: int, draws: dict[str, Tensor]) -> dict[str, Tensor]:
    """The draws of one step."""
    start = f"{number}."
    return {key.removeprefix(start): rows for key, rows in draws.items() if key.startswith(start)}
