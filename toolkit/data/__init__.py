"""Data sets, loaders, samplers, group partitions and Lightning data modules."""
