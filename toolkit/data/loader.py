"""Batches out of arrays: one gather per batch, no worker processes."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from toolkit import distributed
from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation
from toolkit.data.mixup import Mixing, check_mixup, mixup_draws
from toolkit.data.sampler import AUGMENTATION, MIXUP, EpochSampler, GroupBalancedSampler

__all__ = ["ArrayLoader", "Balance", "Normalize"]

Balance = Literal["groups", "classes"]


class Normalize:
    """Pixels as float32, minus ``mean``, divided by ``std``; uint8 is first divided by 255.

    Args:
        mean: One number per channel, or a single one for all.
        std: Likewise, positive.

    Raises:
        ValueError: If a standard deviation is not positive or the lengths differ.
    """

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(
                f"mean and std must have one number per channel, std positive, got mean "
                f"{list(mean)} and std {list(std)}. Give both for every channel."
            )
        self.mean = tuple(mean)
        self.std = tuple(std)
        self._kept: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, arrays: ImageArrays) -> "Normalize":
        """The mean and standard deviation of each channel of these images."""
        means, stds = [], []
        for channel in arrays.images.unbind(1):
            values = channel.flatten()
            if values.dtype == torch.uint8:  # exact, and without a copy of all pixels as floats
                counts = torch.bincount(values, minlength=256).double().cpu()
                levels = torch.arange(256, dtype=torch.float64) / 255
            else:
                counts, levels = torch.ones((), dtype=torch.float64), values.double()
            mean = (counts * levels).sum() / values.numel()
            variance = (counts * (levels - mean) ** 2).sum() / values.numel()
            means.append(float(mean))
            stds.append(float(variance.sqrt()) or 1.0)
        return cls(means, stds)

    def __call__(
        self, images: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Normalised images, a new tensor."""
        factor, shift = self._constants(images)
        # Two roundings rather than a fused multiply-add, which a vectorised loop would use for
        # most elements and not for the last few: bits would depend on the size of the batch.
        return images.to(torch.float32, copy=True).mul_(factor).sub_(shift)

    def _constants(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What to multiply by, then subtract; kept per device, since copies to it cost time."""
        key = (images.device, images.dtype)
        if key not in self._kept:
            unit = 255.0 if images.dtype == torch.uint8 else 1.0
            mean = torch.tensor(self.mean, dtype=torch.float64).view(-1, 1, 1)
            std = torch.tensor(self.std, dtype=torch.float64).view(-1, 1, 1)
            pair = ((1 / (unit * std)).float(), (mean / std).float())
            self._kept[key] = (pair[0].to(images.device), pair[1].to(images.device))
        return self._kept[key]


class ArrayLoader:
    """Batches ``{"inputs", "targets", "indices"}`` of a data set in memory.

    ``inputs`` are float32 ``(batch, channels, height, width)``; ``targets`` int64; ``indices`` the
    examples' positions in ``arrays``. ``groups`` is there where the data has groups, and ``weight``
    (0-d float32) where a partial batch is divided unevenly over ranks, see
    :class:`~toolkit.data.sampler.LocalBatch`. Order, augmentation and mixing come from (seed,
    epoch) for the whole epoch and are then divided, so ranks together see what one process would
    see. Batches lie on the device of ``arrays``.

    With ``mixup`` the inputs are ``mix_share`` (0-d float32, at least 0.5) of the example's own and
    the rest another one's of the global batch, whose classes are ``mix_targets``; the loss is to be
    shared likewise, as :class:`toolkit.models.ImageClassifier` does. ``targets`` and ``indices``
    stay the example's own. ``loss_weights`` (float32, one per example) are there where examples
    weigh differently.

    Args:
        arrays: The data.
        batch_size: Examples of a global batch, over all ranks.
        indices: Which examples make an epoch, repeats allowed; by default each once.
        shuffle: A new order for each epoch; ``False`` keeps the order given.
        drop_last: Leave out a partial last batch.
        seed: At least 0; of the order and of the augmentation, which are independent streams.
        augment: Random changes of the images.
        normalize: Turns images into inputs; by default uint8 divided by 255, floats as they are.
        length: Positions of an epoch, see :class:`~toolkit.data.EpochSampler`.
        mixup: Parameter of the Beta distribution of MixUp, see
            :func:`toolkit.data.mixup.mixup_draws`; 0 mixes nothing.
        loss_weights: ``(examples,)``, the weight of each example's loss.
        balance: Give each group, or each class, equally many positions of an epoch, see
            :class:`~toolkit.data.GroupBalancedSampler`; only with ``shuffle``.

    Raises:
        ValueError: If an argument is out of range; see :class:`~toolkit.data.EpochSampler` for
            those that depend on the number of ranks, which are checked when batches are asked for.

    Example:
        >>> images = torch.zeros(5, 1, 2, 2, dtype=torch.uint8)
        >>> arrays = ImageArrays(images=images, targets=torch.arange(5), num_classes=5)
        >>> [batch["targets"].tolist() for batch in ArrayLoader(arrays, batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """

    batch_sampler: None = None  # Lightning asks whatever has a ``sampler`` for it

    def __init__(  # noqa: PLR0913 - one key for each choice, all but two with defaults
        self,
        arrays: ImageArrays,
        batch_size: int,
        *,
        indices: Int[Tensor, " positions"] | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        augment: Augmentation | None = None,
        normalize: Normalize | None = None,
        length: int | None = None,
        mixup: float = 0.0,
        loss_weights: Float[Tensor, " examples"] | None = None,
        balance: Balance | None = None,
    ) -> None:
        check_mixup(mixup)
        self.mixup = mixup
        self.loss_weights = None if loss_weights is None else loss_weights.float()
        self.arrays = arrays
        self.indices = torch.arange(len(arrays)) if indices is None else indices.cpu()
        _check_indices(self.indices, len(arrays))
        if augment is not None:
            augment.check(arrays)
        self.augment = augment
        self.normalize = normalize or Normalize()
        self.balance = balance
        if balance is None:
            self.sampler = EpochSampler(
                len(self.indices),
                batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                seed=seed,
                length=length,
            )
            return
        labels = _labels(arrays, balance, shuffle=shuffle and length is None)[self.indices]
        self.sampler = GroupBalancedSampler(labels, batch_size, drop_last=drop_last, seed=seed)

    def with_indices(self, indices: Int[Tensor, " positions"]) -> "ArrayLoader":
        """A loader over another list of examples, repeats allowed, with the same settings.

        Over ``torch.arange(len(loader.arrays))`` it gives bit for bit the batches of a loader over
        all examples.
        """
        return self._like(indices=indices, length=None)

    def with_length(self, length: int) -> "ArrayLoader":
        """A loader over the same examples whose epochs have ``length`` positions."""
        return self._like(length=length)

    def with_loss_weights(self, weights: Float[Tensor, " examples"]) -> "ArrayLoader":
        """A loader over the same examples whose batches hold these weights of their losses."""
        return self._like(loss_weights=weights)

    def _like(self, **changes: Any) -> "ArrayLoader":
        settings: dict[str, Any] = {
            "indices": self.indices,
            "shuffle": self.sampler.shuffle,
            "drop_last": self.sampler.drop_last,
            "seed": self.sampler.seed,
            "augment": self.augment,
            "normalize": self.normalize,
            "mixup": self.mixup,
            "loss_weights": self.loss_weights,
            "balance": self.balance,
        }
        return ArrayLoader(self.arrays, self.sampler.batch_size, **(settings | changes))

    def __len__(self) -> int:
        """The number of this rank's batches."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # A generator: nothing is drawn before the first batch is asked for, since Lightning makes
        # an epoch's iterator before it sets the epoch.
        device = self.arrays.images.device
        chosen = self.indices[self.sampler.order()].to(device)
        draws: dict[str, Tensor] = {}
        if self.augment is not None:
            draws = self.augment.draw(len(chosen), self.sampler.generator(AUGMENTATION))
            draws = {key: values.to(device) for key, values in draws.items()}
        mixing = self._mixing(len(chosen), device)
        for start, stop, weight in self.sampler:
            here = slice(start, stop)
            inputs = self._inputs(chosen, draws, here)
            batch = self._batch(chosen[here], inputs)
            if mixing is not None:
                others = mixing.partners[here]
                share = float(mixing.shares[start // self.sampler.batch_size])
                if distributed.world_size() == 1:  # the partners are in this batch
                    theirs = inputs.index_select(0, others - start)
                else:
                    theirs = self._inputs(chosen, draws, others)
                # Two roundings, as in Normalize.
                batch["inputs"] = inputs.mul_(share).add_(theirs.mul_(1 - share))
                batch["mix_targets"] = self.arrays.targets[chosen[others]]
                batch["mix_share"] = torch.tensor(share, device=device)
            if weight is not None:
                batch["weight"] = torch.tensor(weight, device=device)
            yield batch

    def _mixing(self, length: int, device: torch.device) -> Mixing | None:
        if not self.mixup:
            return None
        sampler = self.sampler
        draws = mixup_draws(length, sampler.batch_size, self.mixup, sampler.generator(MIXUP))
        return Mixing(draws.partners.to(device), draws.shares)

    def _inputs(self, chosen: Tensor, draws: dict[str, Tensor], rows: slice | Tensor) -> Tensor:
        """Inputs at some positions of the epoch, as floats of their own."""
        if self.augment is None:
            return self.normalize(self.arrays.images.index_select(0, chosen[rows]))
        drawn = {key: values[rows] for key, values in draws.items()}
        return self.normalize(self.augment.take(self.arrays, chosen[rows], drawn))

    def _batch(self, indices: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        arrays = self.arrays
        batch = {"inputs": inputs, "targets": arrays.targets[indices], "indices": indices}
        if arrays.groups is not None:
            batch["groups"] = arrays.groups[indices]
        if self.loss_weights is not None:
            self.loss_weights = self.loss_weights.to(indices.device)
            batch["loss_weights"] = self.loss_weights[indices]
        return batch


def _labels(arrays: ImageArrays, balance: Balance, *, shuffle: bool) -> Tensor:
    """What is to be balanced."""
    if not shuffle:
        raise ValueError(
            f"balance must go with shuffled epochs of the data's own length, got {balance!r}. "
            "Leave one of the two out."
        )
    labels = arrays.targets if balance == "classes" else arrays.groups
    if labels is None:
        raise ValueError(
            f"balance must be 'classes' where {arrays.name} has no groups, got {balance!r}. Give "
            "groups, or balance the classes."
        )
    return labels.cpu()


def _check_indices(indices: Tensor, num_examples: int) -> None:
    if indices.ndim != 1 or indices.dtype != torch.int64 or not len(indices):
        raise ValueError(
            f"indices must be a non-empty int64 list, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}. Name at least one example, and convert with .long()."
        )
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= num_examples:
        raise ValueError(
            f"indices must lie in 0..{num_examples - 1}, got {low}..{high}. They are positions in "
            "the loader's arrays."
        )
