"""Which training examples to upsample: two clusters per class, the selection, the index list."""

import contextlib
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "Clusters",
    "Selection",
    "example_losses",
    "flattening_epoch",
    "indices_hash",
    "select_examples",
    "separate_examples",
    "upsampled_indices",
]

Selection = Literal["slow", "fast", "random", "high_loss", "misclassified", "longer", "weighted"]

_FAST, _SLOW, _NONE = 0, 1, -1


@dataclass(frozen=True)
class Clusters:
    """Fast and slow examples of each class.

    Attributes:
        cluster: Per example 0 (fast), 1 (slow) or -1 (its class was not clustered).
        sizes: Per class the number of fast and of slow examples; 0 if it was not clustered.
        mean_losses: Per class the mean loss of the fast and of the slow examples, NaN likewise.
        skipped: Classes with examples that were not clustered: fewer than 2 examples, or fewer
            than 2 different outputs.
    """

    cluster: Int[Tensor, " examples"]
    sizes: Int[Tensor, "classes 2"]
    mean_losses: Float64[Tensor, "classes 2"]
    skipped: tuple[int, ...]


def separate_examples(
    logits: Float[Tensor, "examples classes"],
    losses: Float[Tensor, " examples"],
    targets: Int[Tensor, " examples"],
    seed: int = 0,
) -> Clusters:
    """Cluster the logits of each class in two; the cluster with the higher mean loss is slow.

    k-means with k-means++, 10 restarts, no scaling, float32, one thread, on the rows in the order
    given: sort them by example id first. The labels that k-means gives decide nothing: where the
    mean losses differ by at most 1e-8, the smaller cluster is slow, then the one that holds the
    first example.

    Args:
        logits: Outputs, finite.
        losses: Loss per example, finite.
        targets: Class ids, at least 0; they need not be columns of ``logits``.
        seed: Of k-means.

    Raises:
        ValueError: If an output or a loss is not finite; names the first ten positions.

    Example:
        >>> logits = torch.tensor([[4.0], [5.0], [0.5], [3.0]])
        >>> losses = torch.tensor([0.02, 0.01, 0.5, 0.1])
        >>> separate_examples(logits, losses, torch.tensor([0, 0, 0, 1])).cluster.tolist()
        [0, 0, 1, -1]

    Reference:
        Nguyen et al. 2024, arXiv:2404.17768: two clusters per class on the network's output, the
        one with the higher mean loss is upsampled. The choice of logits over
        probabilities, the settings of k-means and the treatment of ties are ours.
    """
    logits, losses, targets = (t.detach().cpu() for t in (logits, losses, targets))
    _check_finite(logits, losses)
    num_classes = int(targets.max()) + 1 if len(targets) else 0
    cluster = torch.full_like(targets, _NONE)
    sizes = torch.zeros(num_classes, 2, dtype=torch.int64)
    mean_losses = torch.full((num_classes, 2), torch.nan, dtype=torch.float64)
    skipped = []
    with _one_thread():
        for k in range(num_classes):
            members = torch.nonzero(targets == k).flatten()
            labels = _two_means(logits[members].float().numpy(), seed)
            if labels is None:
                skipped += [k] * bool(len(members))
                continue
            slow = _is_slow(labels, losses[members].double())
            cluster[members] = slow.long()
            for side, chosen in ((_FAST, ~slow), (_SLOW, slow)):
                sizes[k, side] = chosen.sum()
                mean_losses[k, side] = losses[members][chosen].double().mean()
    return Clusters(cluster, sizes, mean_losses, tuple(skipped))


def select_examples(
    selection: Selection,
    clusters: Clusters,
    *,
    targets: Int[Tensor, " examples"],
    losses: Float[Tensor, " examples"],
    correct: Bool[Tensor, " examples"],
    seed: int = 0,
) -> Int[Tensor, " selected"]:
    """Positions of the examples to upsample, ascending.

    Args:
        selection: ``slow`` or ``fast``: that cluster of every class. Controls: ``random``: per
            class as many as are slow, drawn without replacement; ``high_loss``: as many as are
            slow in all, those with the highest loss, ties to the lowest position;
            ``misclassified``: those predicted wrongly, whatever their number; ``longer`` and
            ``weighted``: the slow ones, whose number says how much longer to train on the plain
            data, or which are to weigh more in the loss.
        clusters: Of :func:`separate_examples`.
        targets: Class ids.
        losses: Loss per example.
        correct: Whether each is predicted rightly.
        seed: Of ``random``.
    """
    if selection == "misclassified":
        return torch.nonzero(~correct).flatten()
    if selection == "high_loss":
        count = int(clusters.sizes[:, _SLOW].sum())
        return losses.double().argsort(descending=True, stable=True)[:count].sort().values
    if selection == "random":
        generator = torch.Generator().manual_seed(seed)
        chosen = [torch.empty(0, dtype=torch.int64)]
        for k, count in enumerate(clusters.sizes[:, _SLOW].tolist()):
            members = torch.nonzero(targets == k).flatten()
            chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
        return torch.cat(chosen).sort().values
    side = _FAST if selection == "fast" else _SLOW
    return torch.nonzero(clusters.cluster == side).flatten()


def upsampled_indices(
    num_examples: int, selected: Int[Tensor, " selected"], factor: int
) -> Int[Tensor, " upsampled"]:
    """All examples, followed by ``factor - 1`` further copies of the selected ones.

    Raises:
        ValueError: If ``factor`` is below 1 or a position is out of range.

    Example:
        >>> upsampled_indices(4, torch.tensor([1, 3]), factor=3).tolist()
        [0, 1, 2, 3, 1, 3, 1, 3]
    """
    if factor < 1:
        raise ValueError(f"factor must be at least 1, got {factor}. 2 copies each example once.")
    if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < num_examples:
        raise ValueError(
            f"selected must lie in 0..{num_examples - 1}, got {int(selected.min())}.."
            f"{int(selected.max())}. They are positions in the training data."
        )
    return torch.cat([torch.arange(num_examples), selected.repeat(factor - 1)])


def example_losses(
    logits: Float[Tensor, "examples classes"], targets: Int[Tensor, " examples"]
) -> tuple[Float[Tensor, " examples"], Bool[Tensor, " examples"]]:
    """Cross-entropy of each example, and whether it is predicted rightly.

    A single column is the logit of class 1 against class 0.

    Raises:
        ValueError: If a target is no column of ``logits``.
    """
    classes = max(logits.shape[1], 2)
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise ValueError(
            f"targets must lie in 0..{classes - 1}, the columns of the logits, got "
            f"{int(targets.min())}..{int(targets.max())}. Give the losses by a callable."
        )
    if logits.shape[1] == 1:
        margins = logits.flatten()
        losses = F.binary_cross_entropy_with_logits(margins, targets.to(margins), reduction="none")
        return losses, (margins > 0) == (targets > 0)
    return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(1) == targets


def flattening_epoch(errors: Sequence[float], num_epochs: int) -> int | None:
    """The epoch at which the fall of the training error begins to flatten; a rule of ours.

    With falls ``d[s] = errors[s - 1] - errors[s]``, smoothed over the last three: the first
    ``s >= 3`` whose fall is at most a quarter of the largest so far, kept within 2 % and 10 % of
    ``num_epochs`` (and at least 1).

    Args:
        errors: Training error after 0, 1, 2, ... epochs; the first is that of the initial weights.
        num_epochs: Length of the whole training.

    Returns:
        The epoch, or ``None`` if the errors do not tell it yet.

    Example:
        >>> flattening_epoch([0.9, 0.6, 0.4, 0.3, 0.28, 0.27, 0.27], num_epochs=100)
        5
    """
    lowest, highest = max(1, -(-num_epochs // 50)), max(1, num_epochs // 10)
    last = len(errors) - 1
    falls = -np.diff(np.asarray(errors, dtype=np.float64))
    smooth = np.array([falls[max(0, s - 3) : s].mean() for s in range(1, last + 1)])
    flat = next((s for s in range(3, last + 1) if smooth[s - 1] <= 0.25 * smooth[:s].max()), None)
    if flat is None:
        return highest if last >= highest else None
    chosen = min(max(flat, lowest), highest)
    return chosen if last >= chosen else None


def indices_hash(indices: Int[Tensor, " indices"]) -> str:
    """SHA-256 of a list of positions, in the order given."""
    return hashlib.sha256(indices.cpu().to(torch.int64).numpy().tobytes()).hexdigest()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep k-means to one thread: the last bit of its sums would depend on their number."""
    # Imported here: 0.6 s that only a run with a separation stage has to pay.
    import sklearn.cluster  # noqa: F401 - loads the thread pools that are limited here
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped] # has none

    # Entered once for all classes: looking for the thread pools takes as long as five restarts.
    with threadpool_limits(limits=1):
        yield


def _two_means(rows: np.ndarray, seed: int) -> Tensor | None:
    """0 or 1 per row, or ``None`` where two clusters do not exist."""
    if len(rows) < 2 or (rows == rows[0]).all():
        return None
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Rows so close that two clusters cannot be told apart; the caller then gets None.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means = KMeans(n_clusters=2, init="k-means++", n_init=10, random_state=seed)
        labels = torch.from_numpy(means.fit_predict(rows).astype(np.bool_))
    return labels if 0 < int(labels.sum()) < len(rows) else None


def _is_slow(labels: Tensor, losses: Tensor) -> Tensor:
    """Which rows belong to the slow one of the clusters ``labels`` and ``~labels``."""
    sides = (labels, ~labels)
    means = [float(losses[side].mean()) for side in sides]
    if abs(means[0] - means[1]) > 1e-8:
        return sides[int(means[1] > means[0])]
    counts = [int(side.sum()) for side in sides]
    if counts[0] != counts[1]:
        return sides[int(counts[1] < counts[0])]
    return sides[int(sides[1][0])]


def _check_finite(logits: Tensor, losses: Tensor) -> None:
    bad = torch.nonzero(~(torch.isfinite(logits).all(1) & torch.isfinite(losses))).flatten()
    if len(bad):
        raise ValueError(
            f"outputs and losses must be finite, got {len(bad)} that are not, of the examples "
            f"{bad[:10].tolist()}{' and others' if len(bad) > 10 else ''}. Lower the learning rate "
            "or separate earlier."
        )
