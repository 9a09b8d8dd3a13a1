"""The arguments of the command line ``python -m toolkit.fit``."""

import argparse
from pathlib import Path
from typing import NoReturn

from toolkit.suggest import nearest

__all__ = ["make_parser"]

_BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    """Answers a misspelt option with the nearest one."""

    def error(self, message: str) -> NoReturn:
        words = [word for word in message.split() if word.startswith("--")]
        known = [option for action in self._actions for option in action.option_strings]
        near = [match for word in words if (match := nearest(word, known))]
        hint = f" Did you mean {near[0]}?" if near else " See --help."
        self.exit(_BAD_INPUT, f"{message}.{hint}\n")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m toolkit.fit``."""
    parser = _Parser(prog="python -m toolkit.fit", description=description, allow_abbrev=False)
    add = parser.add_argument
    add("recipe", nargs="?", help="name of a recipe, or path of a YAML file")
    add("overrides", nargs="*", metavar="key=value", help="changes; ~key removes")
    add("--list", action="store_true", help="show the recipes")
    add("--describe", action="store_true", help="say what the recipe asks, and its variants")
    add("--print", action="store_true", help="show the final configuration of a variant")
    add("--dry-run", action="store_true", help="build everything, push one batch through")
    add("--variants", metavar="A,B", help="which variants; by default all")
    add("--seeds", metavar="0-4", help="which seeds, such as 0-4 or 0,3; by default the recipe's")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder of all studies")
    add("--jobs", type=_positive, metavar="N", help="runs side by side; by default what fits")
    add("--overwrite", action="store_true", help="train again what has finished")
    add("--strict", action="store_true", help="exit with 1 if a claim is refuted")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return int(text)
