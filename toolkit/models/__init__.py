"""LightningModules: each joins a net, a loss, its metrics and an optimiser."""
