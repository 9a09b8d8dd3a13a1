"""Recipes: one YAML file per study, found by name."""
