"""Images and labels from .npz or .npy files, or from arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.arrays import ImageArrays, integers
from toolkit.data.files import Array, ArraySource, data_root
from toolkit.data.groups import Groups, class_by_attribute
from toolkit.data.module import ImageData, Source

__all__ = ["ArrayImages"]


class ArrayImages(ImageData):
    """Images and labels from arrays: one ``.npz`` with all splits, or one ``.npy`` each.

    ``{split}`` in the name of an array stands for ``train``, ``val`` and ``test``. Each name is an
    array of ``file``, or ``other.npz:array``, ``other.npy`` or ``other.csv:column`` under ``root``.
    Images may be uint8 or floating point, see :meth:`toolkit.data.ImageArrays.build`.

    Args:
        file: The ``.npz``, or a mapping of names to arrays; not needed where every name has a file.
        root: Folder of the files; by default the environment variable ``TOOLKIT_DATA``, else
            ``data``.
        images: Name of the images.
        labels: Name of the labels.
        train_labels: Other labels for the training data, validation split included; splits are
            then made by them. ``label_noise`` makes them by the true ones.
        class_names: Name of the array of class names; by default ``class_names`` if there is one.
        groups: Name of an array of group ids.
        group_names: One name per group id; by default ``group0`` to the largest id that occurs, or
            ``<class>_<attribute>``.
        attributes: Name of an array of attribute values, whole numbers from 0 or text; groups are
            then class x attribute.
        cache: Folder for unpacked copies of arrays stored with LZMA or BZIP2, which take seconds to
            unpack; ``None`` unpacks each time.
        val_size: Validation examples, a count or a fraction; ``None`` reads the ``val`` arrays.
        **shared: Further ones of :class:`~toolkit.data.ImageData`.

    Raises:
        ValueError: If both ``groups`` and ``attributes`` are given; :meth:`check` raises it, in one
            line, where a file or array is missing or does not fit.

    Example:
        >>> images, labels = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
        >>> data = ArrayImages({"images": images, "labels": labels}, images="images",
        ...                    labels="labels", val_size=4, test_size=6)
        >>> data.setup()
        >>> len(data.train), len(data.val), len(data.test)
        (10, 4, 6)
    """

    def __init__(  # noqa: PLR0913 - a name for each array there may be
        self,
        file: str | dict[str, Any] | None = None,
        *,
        root: str | None = None,
        images: str = "{split}_images",
        labels: str = "{split}_labels",
        train_labels: str | None = None,
        class_names: str | None = None,
        groups: str | None = None,
        group_names: list[str] | None = None,
        attributes: str | None = None,
        cache: str | None = "~/.cache/bias-toolkit",
        val_size: int | float | None = 0.1,
        **shared: Any,
    ) -> None:
        super().__init__(
            val_size=val_size,
            **shared,
        )
        if groups is not None and attributes is not None:
            raise ValueError(
                f"groups and attributes must not both be given, got {groups!r} and {attributes!r}. "
                "Leave one out."
            )
        self.file = file
        self.root = root
        self.cache = cache
        self.names = {"images": images, "labels": labels, "train_labels": train_labels or labels}
        self.class_names_array = class_names
        self.groups = groups
        self.given_group_names = group_names
        self.attributes = attributes

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return data_root(self.root)

    def read(self) -> Source:
        """The training data, and the splits whose size is not given."""
        source = ArraySource(self.file, self.folder, self.cache)
        splits = ["train"]
        splits += ["val"] if self.val_size is None else []
        splits += ["test"] if self.test_size is None else []
        labels = {split: source.read(self._name("labels", split)) for split in splits}
        class_names = self._read_class_names(source)
        arrays = {
            split: ImageArrays.build(
                source.read(self._name("images", split)),
                labels[split],
                num_classes=len(class_names) or _count_ids(labels.values()),
                class_names=class_names,
                name=split,
            )
            for split in splits
        }
        return Source(**self._with_groups(source, arrays))

    def _name(self, what: str, split: str) -> str:
        template = self.names["train_labels" if (what, split) == ("labels", "train") else what]
        return _for_split(template, split)

    def _read_class_names(self, source: ArraySource) -> list[str]:
        name = self.class_names_array
        if name is None:
            if not source.has("class_names"):
                return []
            name = "class_names"
        return [str(value) for value in source.read(name)]

    def _with_groups(
        self, source: ArraySource, arrays: dict[str, ImageArrays]
    ) -> dict[str, ImageArrays]:
        """The same data with the groups that were asked for."""
        template = self.groups or self.attributes
        if template is None:
            return arrays
        values = {split: source.read(_for_split(template, split)) for split in arrays}
        values, names = _as_ids(values, "group" if self.groups else "attr")
        return {split: self._grouped(arrays[split], values[split], names) for split in arrays}

    def _grouped(self, arrays: ImageArrays, values: Array, names: list[str]) -> ImageArrays:
        ids = integers(values, f"{arrays.name} {'group ids' if self.groups else 'attributes'}")
        groups = Groups(ids, tuple(names))
        if self.attributes:
            groups = class_by_attribute(
                arrays.targets,
                ids,
                arrays.num_classes,
                len(names),
                arrays.class_names,
                names,
                name=arrays.name,
            )
        group_names = tuple(self.given_group_names or groups.names)
        return replace(arrays, groups=groups.ids, group_names=group_names)


def _for_split(template: str, split: str) -> str:
    if split != "train" and "{split}" not in template:
        raise ValueError(
            f"names of arrays must hold {{split}} where the {split} split is read from arrays, got "
            f"{template!r}. Give {split}_size to take it from the training data."
        )
    return template.replace("{split}", split)


def _count_ids(arrays: Any) -> int:
    """The largest id of all splits + 1; arrays that hold none are refused elsewhere."""
    filled = [array for array in arrays if array.dtype.kind in "iu" and array.size]
    return max((int(array.max()) + 1 for array in filled), default=0)


def _as_ids(values: dict[str, Array], prefix: str) -> tuple[dict[str, Array], list[str]]:
    """Values as ids, the same in all splits, and a name for each id; text is sorted."""
    if not any(array.dtype.kind in "US" for array in values.values()):
        return values, [f"{prefix}{k}" for k in range(_count_ids(values.values()))]
    names, ids = np.unique(np.concatenate(list(values.values())).astype(str), return_inverse=True)
    ends = np.cumsum([len(array) for array in values.values()])
    parts = np.split(ids, ends[:-1])
    return dict(zip(values, parts, strict=True)), [str(name) for name in names]
