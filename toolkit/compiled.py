"""Loops in machine code, for models so small that calls would cost more than their arithmetic."""

import inspect
from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Any:
    """The function in machine code, kept on disk for later processes; it lets go of Python's lock.

    Sums may be reordered and multiplications fused, in a way that is fixed when it is compiled.
    """
    plain = inspect.unwrap(function)  # a test run wraps functions to check their arguments
    return numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})(plain)
