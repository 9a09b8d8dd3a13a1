"""Labelled images held in memory, checked on entry."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

__all__ = ["ImageArrays", "integers"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageArrays:
    """Images and their labels; the position of an example in these arrays is its index.

    Use :meth:`build` for arrays of another layout or type. Everything is checked here, so that a
    fault of the data ends before training.

    Args:
        images: ``(examples, channels, height, width)``, uint8 in 0..255 or finite float32.
        targets: ``(examples,)``, int64 in ``0..num_classes - 1``.
        num_classes: The number of classes, also of those without an example here.
        groups: ``(examples,)``, int64 in ``0..len(group_names) - 1``, or ``None``.
        group_names: One name per group id; empty without groups.
        class_names: One name per class, or empty.
        name: What messages call the data: ``train``, ``val``, ``test``.

    Raises:
        ValueError: In one line that says what is wrong with which array.
    """

    images: Tensor
    targets: Tensor
    num_classes: int
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    name: str = "data"
    _padded: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_images(self.images, self.name)
        _check_ids(self.targets, len(self), self.num_classes, f"{self.name} labels")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"class names must be {self.num_classes}, one per class, "
                f"got {len(self.class_names)}. Name every class, or none."
            )
        if self.groups is not None:
            _check_ids(self.groups, len(self), len(self.group_names), f"{self.name} group ids")

    @classmethod
    def build(
        cls,
        images: Any,
        targets: Any,
        *,
        num_classes: int | None = None,
        groups: Any = None,
        group_names: Sequence[str] = (),
        class_names: Sequence[str] = (),
        name: str = "data",
    ) -> "ImageArrays":
        """Convert NumPy or torch arrays, and check them.

        Args:
            images: uint8 or floating point, ``(examples, height, width)``,
                ``(examples, height, width, channels)`` or ``(examples, channels, height, width)``;
                channels are 1, 3 or 4, and come last where both readings are possible.
            targets: Integers ``(examples,)``.
            num_classes: By default as many as there are class names, else the largest label + 1.
            groups: Integers ``(examples,)`` or ``None``.
            group_names: One name per group id; by default ``group0``, ``group1``, ...
            class_names: One name per class, or empty.
            name: What messages call the data.

        Raises:
            ValueError: If the arrays do not fit, in one line.
        """
        labels = integers(targets, f"{name} labels")
        if num_classes is None:
            num_classes = len(class_names) or _count(labels)
        ids = None if groups is None else integers(groups, f"{name} group ids")
        if ids is not None and not len(group_names):
            group_names = [f"group{k}" for k in range(_count(ids))]
        pixels = np.asarray(images)
        if not pixels.flags.writeable:  # torch has no read-only tensors
            pixels = pixels.copy()
        return cls(
            images=_channels_first(pixels, name),
            targets=labels,
            num_classes=num_classes,
            groups=ids,
            group_names=tuple(map(str, group_names)),
            class_names=tuple(map(str, class_names)),
            name=name,
        )

    def __len__(self) -> int:
        return int(self.images.shape[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of images, labels and groups: two data sets with the same one are the same."""
        digest = hashlib.sha256(f"{self.images.dtype}{tuple(self.images.shape)}".encode())
        for values in (self.images, self.targets, self.groups):
            if values is not None:
                digest.update(values.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def select(self, indices: Int[Tensor, " chosen"], name: str | None = None) -> "ImageArrays":
        """The examples at ``indices``, in that order, as a data set of their own."""
        return replace(
            self,
            images=self.images[indices],
            targets=self.targets[indices],
            groups=None if self.groups is None else self.groups[indices],
            name=self.name if name is None else name,
        )

    def to(self, device: torch.device | str) -> "ImageArrays":
        """The same data on another device; itself where it is there already."""
        if self.images.device == torch.device(device):
            return self
        return replace(
            self,
            images=self.images.to(device),
            targets=self.targets.to(device),
            groups=None if self.groups is None else self.groups.to(device),
        )

    def padded(self, padding: int) -> Shaped[Tensor, "examples channels rows columns"]:
        """The images with ``padding`` zeros on each side, contiguous; made once, then kept."""
        if padding == 0 and self.images.is_contiguous():
            return self.images
        if padding not in self._padded:
            sides = (padding,) * 4
            self._padded[padding] = torch.nn.functional.pad(self.images, sides).contiguous()
        return self._padded[padding]


def integers(values: Any, what: str) -> Int[Tensor, " examples"]:
    """A list of whole numbers as int64.

    Args:
        values: NumPy or torch array, or nested lists.
        what: What messages call them.

    Raises:
        ValueError: If they are of another type or have more than one axis.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"{what} must be integers of shape (examples,), got {array.dtype} of shape "
            f"{array.shape}. Convert them, for instance with .astype('int64').ravel()."
        )
    return torch.from_numpy(array.astype(np.int64))


def _check_images(images: Tensor, name: str) -> None:
    if images.ndim != 4 or images.dtype not in (torch.uint8, torch.float32):
        raise ValueError(
            f"{name} images must be uint8 or float32 of shape (examples, channels, height, width), "
            f"got {images.dtype} of shape {tuple(images.shape)}. ImageArrays.build converts them."
        )
    if images.numel() == 0:
        raise ValueError(
            f"{name} images must hold at least one example, got shape {tuple(images.shape)}. "
            "Check the file and the sizes of the splits."
        )
    if images.is_floating_point():
        bad = (~images.isfinite()).flatten(1).sum(1)
        if bad.any():
            raise ValueError(
                f"{name} images must be finite, got {int(bad.sum())} NaN or infinite pixels in "
                f"{int((bad > 0).sum())} images, the first at index {int(bad.nonzero()[0])}. "
                "Repair or leave out these images."
            )


def _check_ids(ids: Tensor, num_examples: int, num_ids: int, what: str) -> None:
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise ValueError(
            f"{what} must be int64 of shape (examples,), got {ids.dtype} of shape "
            f"{tuple(ids.shape)}. ImageArrays.build converts other integers."
        )
    if len(ids) != num_examples:
        raise ValueError(
            f"{what} must be as many as the images, got {len(ids)} for {num_examples} images. "
            "Check that both arrays belong to the same split."
        )
    bad = ((ids < 0) | (ids >= num_ids)).nonzero().flatten()
    if len(bad):
        values = sorted(set(ids[bad].tolist()))
        shown = ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
        raise ValueError(
            f"{what} must lie in 0..{num_ids - 1}, got {shown} in {len(bad)} examples, the first "
            f"at index {int(bad[0])}. Renumber them from 0, or declare as many names."
        )


def _channels_first(pixels: np.ndarray[Any, np.dtype[Any]], name: str) -> Tensor:
    """Contiguous ``(examples, channels, height, width)``, uint8 or float32."""
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(
            f"{name} images must be uint8 or floating point, got {pixels.dtype}. "
            "Convert values of 0..255 with .astype('uint8')."
        )
    images = torch.from_numpy(pixels)
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif images.ndim == 4 and images.shape[3] in _CHANNELS:
        images = images.permute(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in _CHANNELS:
        raise ValueError(
            f"{name} images must have shape (examples, height, width), (examples, height, width, "
            f"channels) or (examples, channels, height, width) with 1, 3 or 4 channels, "
            f"got {tuple(images.shape)}. Reshape the array."
        )
    if images.is_floating_point():
        images = images.float()
    return images.contiguous()


def _count(ids: Tensor) -> int:
    return int(ids.max()) + 1 if len(ids) else 0


_CHANNELS = (1, 3, 4)
