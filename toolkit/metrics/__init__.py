"""Metrics: pure functions, and thin torchmetrics classes over them."""
