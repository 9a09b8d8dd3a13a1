"""Nets: torch modules and their builders, with explicit signatures."""
