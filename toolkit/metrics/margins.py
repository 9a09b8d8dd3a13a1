"""Classification margins: per example, normalised, and their summary per class."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "Norm",
    "classification_margin",
    "logit_normalized_margin",
    "margin_summary",
    "parameter_norm",
    "quantile_name",
]

Norm = Literal["l1", "l2", "linf"]


def classification_margin(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Logit of the true class minus the largest other logit; positive if the prediction is right.

    Half-precision logits are taken to float32 first. NaN where a logit is NaN.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> classification_margin(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0]))
        tensor([ 2., -2.])
    """
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits must have at least 2 classes, got shape {tuple(logits.shape)}. For a single "
            "logit z of class 1 give the two logits 0 and z."
        )
    exact = logits if logits.dtype == torch.float64 else logits.float()
    column = targets.long().unsqueeze(1)
    rival = exact.scatter(1, column, -torch.inf).amax(1)
    return exact.gather(1, column).squeeze(1) - rival


def logit_normalized_margin(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Margin divided by the Euclidean norm of the example's centred logits, in [-sqrt 2, sqrt 2].

    ``margin / ||f - mean(f)||_2``: neither a scale nor an offset of the logits changes it, so it
    compares nets, and epochs, whatever the architecture. 0 where all logits are equal.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0], [30.0, 10.0]])
        >>> logit_normalized_margin(logits, torch.tensor([0, 0]))
        tensor([1.4142, 1.4142])
    """
    margins = classification_margin(logits, targets)
    exact = logits.to(margins.dtype)
    norms = (exact - exact.mean(1, keepdim=True)).norm(dim=1)
    return torch.where(norms == 0, 0.0, margins / norms)


def parameter_norm(parameters: Iterable[Tensor], norm: Norm) -> Float[Tensor, ""]:
    """Norm of all parameters as one vector, in double precision.

    ``l2`` is the norm whose max-margin solution gradient descent approaches on separable data,
    ``linf`` that of Adam without eps, ``l1`` that of mirror descent with the hyperbolic entropy.
    Margin over norm is free of the parameters' scale for models that are linear in the parameters;
    a net homogeneous of degree L needs the norm's L-th power.

    Raises:
        ValueError: If there are no parameters.

    Example:
        >>> parameter_norm([torch.tensor([3.0]), torch.tensor([[4.0]])], "l2")
        tensor(5., dtype=torch.float64)

    Reference:
        Soudry et al. 2018, JMLR 19:70 (l2); Zhang, Zou, Cao 2024, arXiv:2406.10650 (linf); Pesme,
        Dragomir, Flammarion 2024, arXiv:2406.12763 (l1).
    """
    order = {"l1": 1.0, "l2": 2.0, "linf": torch.inf}[norm]
    parts = []
    for parameter in parameters:
        # Apple's GPUs have no double precision.
        dtype = torch.float32 if parameter.device.type == "mps" else torch.float64
        parts.append(torch.linalg.vector_norm(parameter.detach(), order, dtype=dtype))
    if not parts:
        raise ValueError(
            f"parameters must not be empty for the {norm} norm, got none. Use another normaliser."
        )
    whole: Tensor = torch.linalg.vector_norm(
        torch.stack([part.to(parts[0]) for part in parts]), order
    )
    return whole


def quantile_name(quantile: float) -> str:
    """``median`` for 0.5, else ``q`` and the percentage: ``q10``, ``q05``, ``q2.5``."""
    return "median" if quantile == 0.5 else f"q{100 * quantile:02g}"


def margin_summary(
    margins: Float[Tensor, " examples"],
    labels: Int[Tensor, " examples"],
    num_labels: int,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
) -> dict[str, Float[Tensor, " labels"]]:
    """Minimum, mean, quantiles and share of margins <= 0 of the examples of each label.

    All NaN for a label without examples, and for one with a NaN among its margins. Quantiles are
    interpolated linearly, as in NumPy; there is no limit on the number of examples.

    Args:
        margins: Per example.
        labels: In ``0..num_labels - 1``, for example the classes; zeros for one summary of all.
        num_labels: The number of labels, also of those without an example here.
        quantiles: Each in [0, 1].

    Returns:
        Under ``min``, ``mean``, the names of the quantiles (see :func:`quantile_name`) and
        ``nonpositive_share`` (the error rate, ties counted as errors) one number per label.

    Raises:
        ValueError: If a label is out of range.

    Example:
        >>> margins, labels = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0, 0, 2])
        >>> summary = margin_summary(margins, labels, num_labels=3, quantiles=(0.5,))
        >>> {name: values.tolist() for name, values in summary.items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'min': [-2.0, nan, 3.0], 'mean': [-0.5, nan, 3.0], 'median': [-0.5, nan, 3.0],
         'nonpositive_share': [0.5, nan, 0.0]}
    """
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_labels):
        raise ValueError(
            f"labels must lie in 0..{num_labels - 1}, got "
            f"{int(labels.min())}..{int(labels.max())}. Check the targets."
        )
    ordered, order = margins.sort()  # NaN comes last
    labels_ordered, by_label = labels.long()[order].sort(stable=True)
    ordered = ordered[by_label]
    counts = labels_ordered.bincount(minlength=num_labels)
    starts = counts.cumsum(0) - counts
    # One row more, so that a label without examples has something to look up; it becomes NaN.
    ordered_padded = torch.cat([ordered, ordered.new_full((1,), torch.nan)])
    last = ordered_padded[starts + counts - (counts > 0).long()]
    undefined = (counts == 0) | last.isnan()

    def share(values: Tensor) -> Tensor:
        return margins.new_zeros(num_labels).index_add(0, labels_ordered, values) / counts

    summary = {"min": ordered_padded[starts], "mean": share(ordered)}
    for quantile in quantiles:
        place = quantile * (counts - 1).clamp(min=0).double()
        low = place.floor().long()
        high = place.ceil().long()
        below, above = ordered_padded[starts + low], ordered_padded[starts + high]
        part = (place - low).to(margins.dtype) * (above - below)
        step = torch.where(below == above, 0.0, part)  # inf - inf would be NaN
        summary[quantile_name(quantile)] = below + step
    summary["nonpositive_share"] = share((ordered <= 0).to(margins.dtype))
    return {
        name: torch.where(undefined, torch.nan, values).to(margins.dtype)
        for name, values in summary.items()
    }
