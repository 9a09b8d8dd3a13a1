"""The Adult census data: a table with protected attributes, for the same nets and callbacks."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.arrays import ImageArrays, integers
from toolkit.data.files import ArraySource, data_root
from toolkit.data.groups import class_by_attribute
from toolkit.data.module import ImageData, Source
from toolkit.suggest import nearest

__all__ = ["Adult"]

_CLASSES = ("up_to_50K", "above_50K")


class Adult(ImageData):
    """Census records of 1994: does a person earn above 50,000 dollars a year?

    A record's numbers and one-hot categories are the channels of an image of one pixel, so that
    ``inputs`` are ``(batch, features, 1, 1)``, each feature of mean 0 and standard deviation 1 over
    the training data. Groups are class x attribute. The 16,281 test records are the published
    ones; validation records are taken from the 32,561 training records.

    Args:
        file: An ``.npz`` file with, for ``train`` and ``test``, ``{split}_numeric`` ``(n, 6)``,
            ``{split}_categorical`` codes ``(n, 8)``, ``{split}_labels``, and the names
            ``numeric_names``, ``categorical_names`` and ``categories_<name>``.
        root: Folder of the file; by default ``TOOLKIT_DATA``, else ``data``.
        attribute: The protected attribute of the groups, a categorical column.
        exclude: Columns that are no inputs, such as the attribute itself.
        val_size: Validation examples, a count or a fraction of the training records.
        batch_size: Training examples per update, over all ranks.
        eval_batch_size: Examples per batch elsewhere.
        **shared: Further ones of :class:`~toolkit.data.ImageData`.

    Raises:
        ValueError: :meth:`check` raises it where the file is missing or a column is unknown.

    Reference:
        Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi 10.24432/C5XW20.
    """

    def __init__(
        self,
        *,
        file: str = "adult.npz",
        root: str | None = None,
        attribute: str = "sex",
        exclude: Sequence[str] = (),
        val_size: int | float = 0.1,
        batch_size: int = 256,
        eval_batch_size: int = 4096,
        **shared: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            val_size=val_size,
            **shared,
        )
        self.file = file
        self.root = root
        self.attribute = attribute
        self.exclude = tuple(exclude)

    def read(self) -> Source:
        """Both parts of the published data."""
        source = ArraySource(self.file, data_root(self.root), None)
        numeric = [str(name) for name in source.read("numeric_names")]
        categorical = [str(name) for name in source.read("categorical_names")]
        _check_columns([self.attribute], categorical, "attribute")
        _check_columns(self.exclude, [*numeric, *categorical], "exclude")
        levels = {name: len(source.read(f"categories_{name}")) for name in categorical}
        names = [str(name) for name in source.read(f"categories_{self.attribute}")]
        splits: tuple[Literal["train", "test"], ...] = ("train", "test")
        train, test = (self._part(source, split, numeric, levels, names) for split in splits)
        return Source(train, test=test)

    def _part(
        self,
        source: ArraySource,
        split: str,
        numeric: Sequence[str],
        levels: dict[str, int],
        attribute_names: Sequence[str],
    ) -> ImageArrays:
        numbers = source.read(f"{split}_numeric").astype(np.float32)
        codes = dict(zip(levels, source.read(f"{split}_categorical").T, strict=True))
        kept = [i for i, name in enumerate(numeric) if name not in self.exclude]
        columns = [numbers[:, kept]]
        columns += [
            _one_hot(codes[name], count, f"{split} {name}")
            for name, count in levels.items()
            if name not in self.exclude
        ]
        targets = integers(source.read(f"{split}_labels"), f"{split} labels")
        groups = class_by_attribute(
            targets,
            integers(codes[self.attribute], f"{split} {self.attribute}"),
            len(_CLASSES),
            len(attribute_names),
            _CLASSES,
            attribute_names,
            name=split,
        )
        return ImageArrays(
            images=torch.from_numpy(np.concatenate(columns, 1))[:, :, None, None],
            targets=targets,
            num_classes=len(_CLASSES),
            groups=groups.ids,
            group_names=groups.names,
            class_names=_CLASSES,
            name=split,
        )


def _one_hot(codes: NDArray[np.integer], count: int, name: str) -> NDArray[np.float32]:
    if codes.size and int(codes.max()) >= count:
        raise ValueError(
            f"{name} codes must be in 0..{count - 1}, got {int(codes.max())}. Check the file."
        )
    rows: NDArray[np.float32] = np.eye(count, dtype=np.float32)[codes]
    return rows


def _check_columns(given: Sequence[str], known: Sequence[str], what: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        near = nearest(unknown[0], known)
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(
            f"{what} must be among the columns {', '.join(known)}, got {', '.join(unknown)}.{hint}"
        )
