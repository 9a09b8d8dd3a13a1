"""See and steer what training prefers: recipes, models, data and claims."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("bias-toolkit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
