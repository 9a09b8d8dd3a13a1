"""How each example was learnt: loss, correctness and margin in every epoch, and three scores."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from toolkit.history import replacing

__all__ = [
    "NOT_VISITED",
    "SCORES",
    "ExampleHistory",
    "first_learned_epoch",
    "forgetting_score",
    "learned_for_good_epoch",
    "score_means",
]

NOT_VISITED = 255
"""Stands in ``correct`` where an example was not visited in an epoch."""
SCORES = ("forgetting_score", "first_learned", "learned_for_good")
"""Names of the scores in a file and in logged keys."""

_CLUSTERS = {"fast": 0, "slow": 1}


def forgetting_score(
    correct: Shaped[Tensor, "epochs examples"],
) -> Float64[Tensor, " examples"]:
    """How often an example that was right at one visit was wrong at its next.

    An example that was never right scores 0, as one that was never wrong.

    Args:
        correct: Boolean, or 1 and 0 and, in epochs without a visit, :data:`NOT_VISITED`.

    Returns:
        Counts in ``0 .. epochs // 2``; NaN for an example that was never visited.

    Raises:
        ValueError: If ``correct`` holds another number.

    Example:
        >>> forgetting_score(torch.tensor([[0, 1], [1, 1], [0, 255], [1, 0]]))
        tensor([1., 1.], dtype=torch.float64)

    Reference:
        Toneva et al. 2019, arXiv:1812.05159, who count the presentations of an example.
    """
    score = torch.zeros(correct.shape[1], dtype=torch.float64, device=correct.device)
    before = torch.zeros_like(score, dtype=torch.bool)
    for right, wrong in _visits(correct):
        score += before & wrong
        before = (before | right) & ~wrong
    return _where_visited(score, correct)


def first_learned_epoch(
    correct: Shaped[Tensor, "epochs examples"],
) -> Float64[Tensor, " examples"]:
    """The first epoch in which an example was right, counted from 1; ``epochs + 1`` if in none.

    Arguments, NaN and errors are those of :func:`forgetting_score`.

    Example:
        >>> first_learned_epoch(torch.tensor([[0, 1, 0], [1, 1, 0]]))
        tensor([2., 1., 3.], dtype=torch.float64)
    """
    never = len(correct) + 1
    first = torch.full_like(correct[:1].sum(0), never, dtype=torch.float64)
    for epoch, (right, _) in enumerate(_visits(correct), start=1):
        first = torch.where(right & (first == never), float(epoch), first)
    return _where_visited(first, correct)


def learned_for_good_epoch(
    correct: Shaped[Tensor, "epochs examples"],
) -> Float64[Tensor, " examples"]:
    """The epoch, counted from 1, from which on an example was never wrong.

    It is a visit at which the example was right; ``epochs + 1`` if it was wrong at its last visit.
    Never below :func:`first_learned_epoch`, and equal to it just where nothing was forgotten.
    Arguments, NaN and errors are those of :func:`forgetting_score`.

    Example:
        >>> learned_for_good_epoch(torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0]]))
        tensor([3., 1., 4.], dtype=torch.float64)
    """
    never = len(correct) + 1
    since = torch.full_like(correct[:1].sum(0), never, dtype=torch.float64)
    for epoch, (right, wrong) in enumerate(_visits(correct), start=1):
        since = torch.where(right & (since == never), float(epoch), since)
        since = since.masked_fill(wrong, never)
    return _where_visited(since, correct)


def score_means(
    scores: Mapping[str, Float[Tensor, " examples"]],
    cluster: Int[Tensor, " examples"] | None = None,
) -> dict[str, Float64[Tensor, ""]]:
    """Mean of each score over the visited examples, over those of each cluster too.

    Args:
        scores: By name; NaN for examples that were never visited.
        cluster: Per example 0 (fast), 1 (slow) or -1 (neither).

    Returns:
        Under ``<score>``, ``<score>/fast`` and ``<score>/slow``; NaN without any example.

    Example:
        >>> means = score_means({"first_learned": torch.tensor([1.0, 3.0])}, torch.tensor([0, 1]))
        >>> {name: value.item() for name, value in means.items()}
        {'first_learned': 2.0, 'first_learned/fast': 1.0, 'first_learned/slow': 3.0}
    """
    means = {}
    for name, values in scores.items():
        means[name] = values.double().nanmean()
        for side, number in _CLUSTERS.items() if cluster is not None else ():
            means[f"{name}/{side}"] = values[cluster == number].double().nanmean()
    return means


class ExampleHistory:
    """Loss, correctness and margin of each example in each epoch, in arrays on the CPU.

    They take 9 bytes per example and epoch, 90 MB for 50,000 examples and 200 epochs, and grow only
    where more epochs or examples come than were announced.

    Attributes:
        num_epochs: Epochs up to the last one that was put.
        loss: float32 ``(epochs, examples)``, NaN where an example was not visited.
        margin: float32 likewise.
        correct: uint8 likewise, 1 or 0, :data:`NOT_VISITED` where not visited.
        targets: Per example, int64, -1 where it was never visited.

    Example:
        >>> history = ExampleHistory()
        >>> history.reserve(num_epochs=2, num_examples=3)
        >>> one = torch.tensor([1.0])
        >>> history.put(0, torch.tensor([2]), torch.tensor([7]), loss=one, correct=one, margin=one)
        >>> history.correct[0].tolist()
        [255, 255, 1]
    """

    def __init__(self) -> None:
        self.num_epochs = 0
        self.loss = torch.empty(0, 0)
        self.margin = torch.empty(0, 0)
        self.correct = torch.empty(0, 0, dtype=torch.uint8)
        self.targets = torch.empty(0, dtype=torch.int64)

    @property
    def num_examples(self) -> int:
        """Examples that there is room for."""
        return len(self.targets)

    def reserve(self, num_epochs: int, num_examples: int) -> None:
        """Make room for at least so many."""
        held, known = len(self.loss), self.num_examples
        num_epochs, num_examples = max(num_epochs, held), max(num_examples, known)
        if (num_epochs, num_examples) == (held, known):
            return
        for name, empty in (("loss", torch.nan), ("margin", torch.nan), ("correct", NOT_VISITED)):
            old = getattr(self, name)
            new = torch.full((num_epochs, num_examples), empty, dtype=old.dtype)
            new[:held, :known] = old
            setattr(self, name, new)
        more = self.targets.new_full((num_examples - known,), -1)
        self.targets = torch.cat([self.targets, more])

    def put(
        self,
        epoch: int,
        indices: Int[Tensor, " visited"],
        targets: Int[Tensor, " visited"],
        *,
        loss: Float[Tensor, " visited"],
        correct: Shaped[Tensor, " visited"],
        margin: Float[Tensor, " visited"],
    ) -> None:
        """Write an epoch, counted from 0; what it held before is forgotten.

        Raises:
            ValueError: If an index is negative.
        """
        if len(indices) and int(indices.min()) < 0:
            raise ValueError(
                f"indices must be positions in the data set, got {int(indices.min())}. Count the "
                "examples from 0."
            )
        rows = epoch + 1
        if rows > len(self.loss):
            rows = max(rows, 2 * len(self.loss))
        self.reserve(rows, int(indices.max()) + 1 if len(indices) else 0)
        self.loss[epoch] = self.margin[epoch] = torch.nan
        self.correct[epoch] = NOT_VISITED
        self.loss[epoch, indices] = loss.float()
        self.margin[epoch, indices] = margin.float()
        self.correct[epoch, indices] = correct.to(torch.uint8)
        self.targets[indices] = targets
        self.num_epochs = max(self.num_epochs, epoch + 1)

    def scores(self) -> dict[str, Float64[Tensor, " examples"]]:
        """Each of :data:`SCORES` per example, over the epochs so far."""
        correct = self.correct[: self.num_epochs]
        functions = (forgetting_score, first_learned_epoch, learned_for_good_epoch)
        return {name: score(correct) for name, score in zip(SCORES, functions, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """The epochs so far, for a checkpoint that ``weights_only=True`` can load."""
        names = ("loss", "margin", "correct")
        # Cloned: a checkpoint would hold the rows of epochs to come of a view.
        kept = {name: getattr(self, name)[: self.num_epochs].clone() for name in names}
        return {**kept, "targets": self.targets.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What :meth:`state_dict` gave."""
        for name in ("loss", "margin", "correct", "targets"):
            setattr(self, name, state_dict[name].cpu().clone())
        self.num_epochs = len(self.loss)

    def save(
        self, path: str | os.PathLike[str], cluster: Int[Tensor, " clustered"] | None = None
    ) -> None:
        """Write a NumPy archive in one step: the arrays, :data:`SCORES`, ``targets``, ``cluster``.

        Args:
            path: Of the ``.npz`` file.
            cluster: Per example 0 (fast), 1 (slow) or -1; examples beyond it are -1.
        """
        scores: dict[str, Any] = {key: values.numpy() for key, values in self.scores().items()}
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                loss=self.loss[: self.num_epochs].numpy(),
                correct=self.correct[: self.num_epochs].numpy(),
                margin=self.margin[: self.num_epochs].numpy(),
                targets=self.targets.numpy(),
                cluster=self.padded(cluster).to(torch.int8).numpy(),
                **scores,
            )

    def padded(self, cluster: Int[Tensor, " clustered"] | None) -> Int[Tensor, " examples"]:
        """The clusters of exactly these examples, -1 for those that are in none."""
        whole = torch.full((self.num_examples,), -1, dtype=torch.int64)
        if cluster is not None:
            count = min(len(cluster), self.num_examples)
            whole[:count] = cluster[:count]
        return whole


def _visits(correct: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Per epoch, which examples were right and which wrong."""
    for row in correct:
        right, wrong = row == 1, row == 0
        if not bool((right | wrong | (row == NOT_VISITED)).all()):
            odd = row[~(right | wrong)]
            raise ValueError(
                f"correct must hold 0, 1 and {NOT_VISITED} (not visited), got "
                f"{odd[odd != NOT_VISITED][0].item()}. Compare predictions with targets."
            )
        yield right, wrong


def _where_visited(score: Tensor, correct: Tensor) -> Tensor:
    visited = (correct != NOT_VISITED).any(0)
    return torch.where(visited, score, torch.nan)
