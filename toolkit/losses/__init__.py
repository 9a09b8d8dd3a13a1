"""Losses: pure functions, and modules where a loss has a state."""

from toolkit.losses.group_dro import GroupDRO

__all__ = ["GroupDRO"]
