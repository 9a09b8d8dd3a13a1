"""Metrics: pure functions, and thin torchmetrics classes over them."""

from toolkit.metrics.classification import LossAndAccuracy
from toolkit.metrics.curvature import (
    Spectrum,
    hessian_products,
    lanczos_eigenvalues,
    loss_increase,
    weight_norms,
)
from toolkit.metrics.dynamics import (
    NOT_VISITED,
    SCORES,
    ExampleHistory,
    first_learned_epoch,
    forgetting_score,
    learned_for_good_epoch,
    score_means,
)
from toolkit.metrics.examples import ExampleRows, SplitRows
from toolkit.metrics.groups import (
    GroupMeans,
    group_means,
    group_summary,
    lead,
    per_example_cross_entropy,
)
from toolkit.metrics.margins import (
    classification_margin,
    logit_normalized_margin,
    margin_summary,
    parameter_norm,
    quantile_name,
)

__all__ = [
    "NOT_VISITED",
    "SCORES",
    "ExampleHistory",
    "ExampleRows",
    "GroupMeans",
    "LossAndAccuracy",
    "Spectrum",
    "SplitRows",
    "classification_margin",
    "first_learned_epoch",
    "forgetting_score",
    "group_means",
    "group_summary",
    "hessian_products",
    "lanczos_eigenvalues",
    "lead",
    "learned_for_good_epoch",
    "logit_normalized_margin",
    "loss_increase",
    "margin_summary",
    "parameter_norm",
    "per_example_cross_entropy",
    "quantile_name",
    "score_means",
    "weight_norms",
]
