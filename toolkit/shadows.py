"""Detects a folder of the user's own that takes the place of one of ours."""

import importlib.util
from pathlib import Path

__all__ = ["ShadowedError", "refuse_shadows"]

_OURS = ("toolkit", "callbacks", "recipes")


class ShadowedError(ImportError):
    """``import callbacks`` or the like would find somebody else's folder."""


def refuse_shadows() -> None:
    """Check that our top-level packages are the ones that Python finds.

    Raises:
        ShadowedError: Names the folder that Python finds, and ours.
    """
    home = Path(__file__).resolve().parents[1]
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        places = (
            [Path(place).resolve() for place in spec.submodule_search_locations or []]
            if spec
            else []
        )
        if home / name not in places:
            found = places[0] if places else (spec.origin if spec else "nothing")
            raise ShadowedError(
                f"{name} must be the toolkit's own package {home / name}, but Python finds "
                f"{found}. Rename that folder, or start from another folder."
            )
