"""Metrics: pure functions, and thin torchmetrics classes over them."""

from toolkit.metrics.classification import LossAndAccuracy
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
    "ExampleRows",
    "GroupMeans",
    "LossAndAccuracy",
    "SplitRows",
    "classification_margin",
    "group_means",
    "group_summary",
    "lead",
    "logit_normalized_margin",
    "margin_summary",
    "parameter_norm",
    "per_example_cross_entropy",
    "quantile_name",
]
