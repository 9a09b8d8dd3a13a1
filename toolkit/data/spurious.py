"""Spurious features put into images: a colour or a corner patch that agrees with the class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from toolkit.data.arrays import ImageArrays
from toolkit.data.groups import class_by_attribute

__all__ = ["Agreement", "Spurious", "add_corner_patch", "color_images", "spurious_attributes"]


def spurious_attributes(
    targets: Int[Tensor, " examples"],
    num_attributes: int,
    agreement: float,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " examples"]:
    """Attributes that equal ``target % num_attributes`` with probability ``agreement``.

    Otherwise one of the other values, each with the same probability; so with ``agreement =
    1 / num_attributes`` attribute and class are independent.

    Args:
        targets: Class of each example.
        num_attributes: At least 2.
        agreement: In ``[0, 1]``.
        generator: Of the draws.

    Raises:
        ValueError: If ``agreement`` or ``num_attributes`` is out of range.
    """
    if num_attributes < 2:
        raise ValueError(f"num_attributes must be at least 2, got {num_attributes}.")
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement must lie in [0, 1], got {agreement}. It is a probability.")
    disagree = torch.rand(len(targets), generator=generator, dtype=torch.float64) >= agreement
    shift = torch.randint(1, num_attributes, (len(targets),), generator=generator)
    return (targets + disagree * shift) % num_attributes


def color_images(
    images: Shaped[Tensor, "examples channels height width"], attributes: Int[Tensor, " examples"]
) -> Shaped[Tensor, "examples 3 height width"]:
    """Grey images drawn in the colour of their attribute, one of ten; black stays black.

    Raises:
        ValueError: If the images have more than one channel or an attribute has no colour.
    """
    if images.shape[1] != 1:
        raise ValueError(
            f"images must have one channel to be coloured, got {images.shape[1]}. "
            "Use kind: patch for colour images."
        )
    if len(attributes) and int(attributes.max()) >= len(_PALETTE):
        raise ValueError(
            f"num_attributes must be at most {len(_PALETTE)} for colours, got attribute "
            f"{int(attributes.max())}. Use fewer attributes."
        )
    colors = torch.tensor(_PALETTE, dtype=torch.float64)[attributes][:, :, None, None]
    colored = images.double() * colors
    return colored.round().to(images.dtype) if images.dtype == torch.uint8 else colored.float()


def add_corner_patch(
    images: Shaped[Tensor, "examples channels height width"],
    attributes: Int[Tensor, " examples"],
    size: int = 4,
) -> Shaped[Tensor, "examples channels height width"]:
    """Copies with a white ``size`` x ``size`` patch at the top left where the attribute is 1.

    Raises:
        ValueError: If the patch does not fit or there are more than two attribute values.
    """
    if not 1 <= size <= min(images.shape[2:]):
        raise ValueError(f"patch_size must lie in 1..{min(images.shape[2:])}, got {size}.")
    if len(attributes) and int(attributes.max()) > 1:
        raise ValueError(
            f"num_attributes must be 2 for a patch, got attribute {int(attributes.max())}. "
            "Use kind: color for more."
        )
    patched = images.clone()
    white = 255 if images.dtype == torch.uint8 else 1
    patched[:, :, :size, :size].masked_fill_(attributes.bool()[:, None, None, None], white)
    return patched


@dataclass(frozen=True)
class Agreement:
    """Group of each example of a batch: 1 where spurious attribute and class agree, else 0.

    For a ``groups`` field of a callback, on data whose groups are class x attribute; two groups in
    place of one for each pair.

    Args:
        num_attributes: As in :class:`Spurious`.

    Example:
        >>> batch = {"targets": torch.tensor([0, 1, 2]), "groups": torch.tensor([0, 2, 4])}
        >>> Agreement(num_attributes=2)(batch).tolist()
        [1, 0, 1]
    """

    num_attributes: int = 2

    def __call__(self, batch: Mapping[str, Tensor]) -> Int[Tensor, " batch"]:
        """Read ``targets`` and ``groups``."""
        attributes = batch["groups"] % self.num_attributes
        return (attributes == batch["targets"] % self.num_attributes).long()


@dataclass(frozen=True)
class Spurious:
    """A spurious feature: an attribute that agrees with the class in training, and less in tests.

    Groups are class x attribute, ``class * num_attributes + attribute``.

    Args:
        kind: ``color`` draws grey images in one of ``num_attributes`` colours; ``patch`` puts a
            white patch into a corner where the attribute is 1.
        agreement: Probability that the attribute is ``class % num_attributes``, in the training
            and validation data.
        test_agreement: The same in the test data; by default ``1 / num_attributes``: independent.
        num_attributes: 2 for a patch, up to 10 colours.
        patch_size: Side of the patch in pixels.

    Raises:
        ValueError: If ``num_attributes`` does not suit the kind or a probability is out of range.
    """

    kind: Literal["color", "patch"] = "color"
    agreement: float = 0.95
    test_agreement: float | None = None
    num_attributes: int = 2
    patch_size: int = 4

    def __post_init__(self) -> None:
        most = 2 if self.kind == "patch" else len(_PALETTE)
        if not 2 <= self.num_attributes <= most:
            raise ValueError(
                f"num_attributes must lie in 2..{most} for kind {self.kind}, got "
                f"{self.num_attributes}. A patch is there or not; colours are ten."
            )
        for key in ("agreement", "test_agreement"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{key} must lie in [0, 1], got {value}. It is a probability.")

    def apply(self, arrays: ImageArrays, generator: torch.Generator) -> ImageArrays:
        """The data with the feature put in, and with its groups."""
        independent = 1 / self.num_attributes
        in_test = independent if self.test_agreement is None else self.test_agreement
        agreement = in_test if arrays.name == "test" else self.agreement
        attributes = spurious_attributes(arrays.targets, self.num_attributes, agreement, generator)
        if self.kind == "color":
            images = color_images(arrays.images, attributes)
        else:
            images = add_corner_patch(arrays.images, attributes, self.patch_size)
        groups = class_by_attribute(
            arrays.targets, attributes, arrays.num_classes, self.num_attributes
        )
        return replace(arrays, images=images, groups=groups.ids, group_names=groups.names)


# Ten colours that are told apart well, each with one channel at full strength.
_PALETTE = (
    (1.0, 0.2, 0.2), (0.2, 1.0, 0.2), (0.3, 0.4, 1.0), (1.0, 1.0, 0.2), (1.0, 0.3, 1.0),
    (0.2, 1.0, 1.0), (1.0, 0.6, 0.2), (0.6, 0.3, 1.0), (0.7, 1.0, 0.6), (1.0, 1.0, 1.0),
)  # fmt: skip
