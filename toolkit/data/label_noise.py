"""Wrong labels: drawn at random, or those that people gave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from toolkit.data.arrays import ImageArrays, integers
from toolkit.data.files import ArraySource, data_root

__all__ = ["LabelNoise", "symmetric_noise"]


def symmetric_noise(
    targets: Int[Tensor, " examples"],
    num_classes: int,
    fraction: float,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " examples"]:
    """Labels of which ``round(fraction * examples)`` were replaced by another class.

    Which examples, and which of the other classes, is drawn uniformly. So the share of wrong labels
    is the fraction itself; where the literature draws among all classes, the true one included,
    its rate r is the fraction ``r * (num_classes - 1) / num_classes`` here.

    Args:
        targets: In ``0..num_classes - 1``.
        num_classes: At least 2.
        fraction: In ``[0, 1]``.
        generator: Of the draws.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> targets = torch.zeros(10, dtype=torch.int64)
        >>> int((symmetric_noise(targets, 3, 0.2) != targets).sum())
        2
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2 for label noise, got {num_classes}.")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1], got {fraction}. 0.1 is 10 %.")
    chosen = torch.randperm(len(targets), generator=generator)[: round(fraction * len(targets))]
    shift = torch.randint(1, num_classes, (len(chosen),), generator=generator)
    noisy = targets.clone()
    noisy[chosen] = (targets[chosen] + shift) % num_classes
    return noisy


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """Noisy labels for the training data; the test data stays clean.

    Splits are made by the true labels, and the noise is drawn for each split apart from the seed of
    the data, so that all variants of a seed share both.

    Args:
        validation: Whether the validation data is ``clean`` or ``noisy``, too.
        fraction: Share of wrong labels, see :func:`symmetric_noise`.
        labels: Instead of ``fraction``: a label for each example of the source's training data, in
            its order; integers, or the name of an array such as ``cifar10n.npz:worst_labels``.
        root: Folder of the file that ``labels`` names; by default the environment variable
            ``TOOLKIT_DATA``, else ``data``.
        groups: Whether ``clean`` and ``noisy`` are the groups of the data.

    Raises:
        ValueError: If not exactly one of ``fraction`` and ``labels`` is given, or ``fraction`` is
            out of range.
    """

    validation: Literal["clean", "noisy"]
    fraction: float | None = None
    labels: str | Sequence[int] | None = None
    root: str | None = None
    groups: bool = False

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.labels is None):
            given = "neither" if self.labels is None else "both"
            raise ValueError(f"fraction or labels must be given, and one only, got {given}.")
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction must lie in [0, 1], got {self.fraction}. 0.1 is 10 %.")

    def given(self, num_examples: int, num_classes: int) -> Int[Tensor, " examples"] | None:
        """The labels given for the source's training data, or ``None`` where they are drawn.

        Raises:
            ValueError: If they are missing, of another number, or no classes; in one line.
        """
        if self.labels is None:
            return None
        values = self.labels
        if isinstance(values, str):
            root = data_root(self.root)
            values = ArraySource(None, root, None).read(values)  # type: ignore[assignment]
        labels = integers(values, "noisy labels")
        if len(labels) != num_examples:
            raise ValueError(
                f"noisy labels must be as many as the training data of the source, {num_examples}, "
                f"got {len(labels)}. Give one for each, in the same order."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
            raise ValueError(
                f"noisy labels must lie in 0..{num_classes - 1}, got {int(labels.min())}.."
                f"{int(labels.max())}. Use the classes of the data."
            )
        return labels

    def apply(
        self,
        arrays: ImageArrays,
        split: Literal["train", "val", "test"],
        given: Int[Tensor, " examples"] | None,
        generator: torch.Generator,
    ) -> ImageArrays:
        """The split with noisy labels where it is to have them, and with its groups.

        Args:
            arrays: The split, with true labels.
            split: Which one it is.
            given: Labels for its examples, or ``None`` to draw them.
            generator: Of the draws.

        Raises:
            ValueError: If the data has groups already and ``groups`` asks for others.
        """
        noisy = arrays.targets
        if split == "train" or (split == "val" and self.validation == "noisy"):
            noisy = given if given is not None else self._drawn(arrays, generator)
        if not self.groups:
            return replace(arrays, targets=noisy)
        if arrays.groups is not None:
            raise ValueError(
                f"label_noise.groups must be false where the data has groups, got those of "
                f"{list(arrays.group_names)[:4]}. Leave it out."
            )
        is_noisy = (noisy != arrays.targets).long()
        return replace(arrays, targets=noisy, groups=is_noisy, group_names=("clean", "noisy"))

    def _drawn(self, arrays: ImageArrays, generator: torch.Generator) -> Tensor:
        fraction = self.fraction or 0.0
        return symmetric_noise(arrays.targets, arrays.num_classes, fraction, generator)
