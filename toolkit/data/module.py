"""The base of the data modules: splits, checks and loaders of images in memory."""

from abc import abstractmethod
from typing import Literal, NamedTuple

import lightning as L
import torch
from jaxtyping import Int
from torch import Tensor

from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation
from toolkit.data.label_noise import LabelNoise
from toolkit.data.loader import ArrayLoader, Balance, Normalize
from toolkit.data.long_tail import LongTail
from toolkit.data.sampler import LONG_TAIL, NOISE, SPURIOUS, epoch_generator
from toolkit.data.split import stratified_split
from toolkit.data.spurious import Spurious

__all__ = ["ImageData", "Source"]


class Source(NamedTuple):
    """What a data module reads: the data to train on, and the splits that came with it."""

    train: ImageArrays
    val: ImageArrays | None = None
    test: ImageArrays | None = None


class _Positions(NamedTuple):
    """Where splits come from: how many examples there were, and which ones these are."""

    num_examples: int
    train: Int[Tensor, " train"]
    val: Int[Tensor, " val"] | None


class ImageData(L.LightningDataModule):
    """Images in memory in three splits that never overlap; a subclass says where to read them.

    Splits that the source does not bring are taken from its training data: first test, then
    validation, then ``train_size`` of the rest, each stratified by class. They depend on ``seed``
    and on the sizes alone, so variants that share these share the splits.

    On a GPU the arrays are moved to it once. :meth:`check` reads and validates; :meth:`setup` does
    not read again. After either, ``train``, ``val`` and ``test`` are
    :class:`~toolkit.data.ImageArrays`, and ``num_classes``, ``class_names``, ``num_groups``,
    ``group_names``, ``input_shape`` ``(channels, height, width)`` and ``normalize`` are set; and
    ``true_targets``, the training labels without noise.

    Args:
        batch_size: Training examples per update, over all ranks.
        eval_batch_size: Examples per batch elsewhere, over all ranks; changes the speed only.
        train_size: How many of the training examples to use; ``None`` is all that is left.
        val_size: Validation examples, a count or (below 1) a fraction of the source's training
            data; ``None`` where the source brings its own.
        test_size: Test examples likewise.
        seed: Of the splits, the order and the augmentation; at least 0.
        drop_last: Leave out a partial last training batch; else it is weighted by its count.
        augment: Random changes of the training images.
        normalize: Of all images; by default each channel gets mean 0 and standard deviation 1 over
            the training images.
        spurious: A feature to put into all images.
        mixup: Parameter of MixUp's Beta distribution for the training batches; 0 mixes nothing.
            The model must read the keys that :class:`~toolkit.data.ArrayLoader` then adds, as
            :class:`toolkit.models.ImageClassifier` does.
        label_noise: Noisy labels for the training data.
        long_tail: Fewer training examples of some classes.
        balance: Give each group, or each class, equally many positions of a training epoch.
    """

    train: ImageArrays
    val: ImageArrays
    test: ImageArrays
    true_targets: Tensor

    def __init__(  # noqa: PLR0913 - the keys that every data node of a recipe shares
        self,
        *,
        batch_size: int = 128,
        eval_batch_size: int = 512,
        train_size: int | None = None,
        val_size: int | float | None = None,
        test_size: int | float | None = None,
        seed: int = 0,
        drop_last: bool = False,
        augment: Augmentation | None = None,
        normalize: Normalize | None = None,
        spurious: Spurious | None = None,
        mixup: float = 0.0,
        label_noise: LabelNoise | None = None,
        long_tail: LongTail | None = None,
        balance: Balance | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.train_size = train_size
        self.val_size = val_size
        self.test_size = test_size
        self.seed = seed
        self.drop_last = drop_last
        self.augment = augment
        self.spurious = spurious
        self.mixup = mixup
        self.label_noise = label_noise
        self.long_tail = long_tail
        self.balance = balance
        self._normalize = normalize
        self._checked = False

    @abstractmethod
    def read(self) -> Source:
        """Read the data.

        Raises:
            ValueError: If something is missing or wrong, in one line.
        """

    def check(self) -> None:
        """Read, split and validate the data once; nothing of a run is written.

        Raises:
            ValueError: If the data or the sizes are wrong, in one line.
        """
        if self._checked:
            return
        splits, positions = self._split(self.read())
        if self.spurious is not None:
            splits = [
                self.spurious.apply(split, epoch_generator(self.seed, k, SPURIOUS))
                for k, split in enumerate(splits)
            ]
        self.true_targets = splits[0].targets
        if self.label_noise is not None:
            splits = self._with_noise(self.label_noise, splits, positions)
        self.train, self.val, self.test = splits
        _check_alike(splits)
        self.num_classes = self.train.num_classes
        self.class_names = self.train.class_names
        self.num_groups = len(self.train.group_names)
        self.group_names = self.train.group_names
        self.input_shape = self.train.shape
        self.normalize = self._normalize or Normalize.of(self.train)
        if len(self.normalize.mean) not in (1, self.input_shape[0]):
            raise ValueError(
                f"normalize must have 1 or {self.input_shape[0]} numbers, one per channel, got "
                f"{len(self.normalize.mean)}. Leave it out to take those of the training images."
            )
        self.train_dataloader(), self.val_dataloader()  # loaders check the sizes of batches
        self._checked = True

    def setup(self, stage: str | None = None) -> None:
        """Read what was not read yet, and move it to the trainer's GPU if it has one."""
        self.check()
        device = self.trainer.strategy.root_device if self.trainer is not None else None
        if device is not None and device.type == "cuda":
            self.train, self.val, self.test = (
                split.to(device) for split in (self.train, self.val, self.test)
            )

    def train_dataloader(self) -> ArrayLoader:
        """Shuffled, augmented training data."""
        return ArrayLoader(
            self.train,
            self.batch_size,
            shuffle=True,
            drop_last=self.drop_last,
            seed=self.seed,
            augment=self.augment,
            normalize=self.normalize,
            mixup=self.mixup,
            balance=self.balance,
        )

    def val_dataloader(self) -> ArrayLoader:
        """Validation data in order."""
        return self._evaluation(self.val)

    def test_dataloader(self) -> ArrayLoader:
        """Test data in order."""
        return self._evaluation(self.test)

    def scoring_dataloader(self) -> ArrayLoader:
        """The training data in order, every example once, without augmentation."""
        return self._evaluation(self.train)

    def _evaluation(self, split: ImageArrays) -> ArrayLoader:
        return ArrayLoader(split, self.eval_batch_size, normalize=self.normalize)

    def _split(self, source: Source) -> tuple[list[ImageArrays], _Positions]:
        """The three splits, and where their examples come from in the source's training data."""
        pool = source.train
        test_count = _count("test_size", self.test_size, source.test, len(pool))
        val_count = _count("val_size", self.val_size, source.val, len(pool))
        left = len(pool) - test_count - val_count
        train_count = left if self.train_size is None else self.train_size
        if not 0 < train_count <= left:
            raise ValueError(
                f"train_size must lie in 1..{left}, what {val_count} validation and {test_count} "
                f"test examples leave of {len(pool)}, got {train_count}. Use smaller sizes."
            )
        test, val, train = stratified_split(
            pool.targets, [test_count, val_count, train_count], self.seed
        )
        if self.long_tail is not None:
            generator = epoch_generator(self.seed, 0, LONG_TAIL)
            targets = pool.targets[train]
            train = train[self.long_tail.positions(targets, pool.num_classes, generator)]
        is_whole = torch.equal(train, torch.arange(len(pool)))
        splits = [
            pool if is_whole else pool.select(train, "train"),
            source.val or pool.select(val, "val"),
            source.test or pool.select(test, "test"),
        ]
        return splits, _Positions(len(pool), train, None if source.val else val)

    def _with_noise(
        self, noise: LabelNoise, splits: list[ImageArrays], positions: _Positions
    ) -> list[ImageArrays]:
        given = noise.given(positions.num_examples, splits[0].num_classes)
        if given is not None and positions.val is None and noise.validation == "noisy":
            raise ValueError(
                "label_noise.validation must be clean where labels are given for the training data "
                "and the validation data comes from elsewhere, got noisy. Set val_size, or clean."
            )
        parts: list[tuple[Literal["train", "val", "test"], Tensor | None]] = [
            ("train", positions.train), ("val", positions.val), ("test", None),
        ]  # fmt: skip
        return [
            noise.apply(
                split,
                name,
                None if given is None or part is None else given[part],
                epoch_generator(self.seed, k, NOISE),
            )
            for k, (split, (name, part)) in enumerate(zip(splits, parts, strict=True))
        ]


def _count(key: str, size: int | float | None, given: ImageArrays | None, available: int) -> int:
    """The number of examples to take from the training data for a split."""
    if given is not None:
        if size is not None:
            raise ValueError(
                f"{key} must be null where the data brings that split, got {size}. Leave it out."
            )
        return 0
    if size is None:
        raise ValueError(
            f"{key} must be given, since the data has no such split, got null. Use 0.1, say."
        )
    count = round(size * available) if 0 < size < 1 else int(size)
    if count < 1 or count != size >= 1:
        raise ValueError(
            f"{key} must be a fraction below 1 or a count, and at least one example, got {size} of "
            f"{available}. Use 0.1, say."
        )
    return count


def _check_alike(splits: list[ImageArrays]) -> None:
    train = splits[0]
    for split in splits[1:]:
        if split.shape != train.shape or split.images.dtype != train.images.dtype:
            raise ValueError(
                f"{split.name} images must have the shape and type of the training images, "
                f"{train.shape} {train.images.dtype}, got {split.shape} {split.images.dtype}. "
                "Convert both alike."
            )
        if split.num_classes != train.num_classes or split.group_names != train.group_names:
            raise ValueError(
                f"{split.name} data must have the classes and groups of the training data, "
                f"{train.num_classes} and {list(train.group_names)}, got {split.num_classes} and "
                f"{list(split.group_names)}. Declare them in every split, also without examples."
            )
