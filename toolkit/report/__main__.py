"""Redraw studies from their record: ``python -m toolkit.report RUNS``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit.console import LastingConsole, accept_any_text

__all__ = ["main"]

DONE, BAD_INPUT = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0 done, 2 bad path or unreadable record."""
    parser = argparse.ArgumentParser(prog="python -m toolkit.report", description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of a study, or of several studies")
    accept_any_text()
    options = parser.parse_args(arguments)
    folders = _studies(options.runs)
    if not folders:
        return _end(
            f"{options.runs} must be the folder of a study (runs/<recipe>) or of studies (runs), "
            "got no study.json and no <variant>/seed<k>/result.json in it. Check the path."
        )
    from toolkit.history import DamagedFileError, read_json
    from toolkit.report import terminal_table, write_report

    console = LastingConsole()
    for folder in folders:
        try:
            page = write_report(folder)
        except DamagedFileError as error:
            return _end(str(error))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return _end(f"{folder} must hold a readable record, got {error!r}. Run it again.")
        console.print(terminal_table(read_json(folder / "study.json") or {}))
        console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    return DONE


def _studies(folder: Path) -> list[Path]:
    """The folder if it is a study's, else the studies in it."""
    if _is_study(folder):
        return [folder]
    if not folder.is_dir():
        return []
    return [child for child in sorted(folder.iterdir()) if _is_study(child)]


def _is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file() or any(folder.glob("*/seed*/result.json"))


def _end(text: str) -> int:
    sys.stderr.write(text + "\n")
    return BAD_INPUT


if __name__ == "__main__":
    raise SystemExit(main())
