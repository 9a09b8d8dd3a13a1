"""Train a recipe's runs, check its claims and show them: ``python -m toolkit.fit RECIPE``."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Nothing here imports torch: --help, --list and a misspelt recipe answer at once.
from toolkit import config
from toolkit.arguments import make_parser
from toolkit.console import LastingConsole, accept_any_text
from toolkit.shadows import ShadowedError, refuse_shadows

if TYPE_CHECKING:
    from toolkit.run import Event
    from toolkit.study import Study

__all__ = ["RunsFailedError", "fit", "main"]

DONE, REFUTED, BAD_INPUT, RUN_FAILED, INTERRUPTED = 0, 1, 2, 3, 130


class RunsFailedError(RuntimeError):
    """Some runs of the study failed; the others are finished and recorded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code.

    0: done, whatever the verdicts. 1: a claim was refuted, with ``--strict``. 2: a bad recipe,
    bad arguments or bad data. 3: a run failed. 130: interrupted.
    """
    accept_any_text()
    options = _parser().parse_intermixed_args(arguments)
    try:
        refuse_shadows()
        with _interruptible():
            return _command(options)
    except KeyboardInterrupt:
        return _end("interrupted; the same command continues", INTERRUPTED)
    except (config.RecipeError, ShadowedError) as error:
        return _end(str(error), BAD_INPUT)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:  # no space for our output, say
        return _end(str(error), BAD_INPUT)


def fit(
    recipe: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    variants: Sequence[str] = (),
    seeds: Sequence[int] = (),
    out: str | os.PathLike[str] = "runs",
    jobs: int | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a recipe from Python; the content of ``study.json``, and its ``folder``.

    Args:
        recipe: Name of a recipe, or path of its file.
        overrides: As on the command line: ``"model.optimizer.lr=0.1"``, ``"~callbacks.margin"``.
        variants: Which variants; by default all.
        seeds: Which seeds; by default the recipe's.
        out: Folder of all studies.
        jobs: Runs side by side; by default as many as fill the machine.
        overwrite: Train again what has finished.

    Raises:
        toolkit.config.RecipeError: All faults of the recipe, before any data is read.
        ValueError: A fault of the data, or a folder that holds another configuration.
        RunsFailedError: If a run failed; the others are finished and recorded.
    """
    refuse_shadows()
    console = LastingConsole()
    loaded = config.load_recipe(os.fspath(recipe), overrides)
    study, outcomes = _train(
        loaded, (tuple(variants), tuple(seeds)), Path(out), jobs, console, overwrite=overwrite
    )
    content = {**study.collect(), "folder": str(study.folder)}
    _raise_failures(outcomes)
    return content


def _command(options: argparse.Namespace) -> int:
    console = LastingConsole()
    if options.list:
        return _list(console)
    if options.recipe is None:
        return _end(
            "a recipe is needed: python -m toolkit.fit RECIPE; --list shows them", BAD_INPUT
        )
    recipe = config.load_recipe(options.recipe, options.overrides)
    chosen = _chosen(recipe, options)
    if options.describe:
        return _describe(recipe, console)
    if options.print:
        variant, seed = (chosen[0] or recipe.variants)[0], (chosen[1] or recipe.seeds)[0]
        sys.stdout.write(config.to_yaml(recipe.resolve(variant, seed)))
        return DONE
    if options.dry_run:
        return _preview(recipe, chosen, console)
    return _study(recipe, chosen, options, console)


def _study(
    recipe: config.Recipe,
    chosen: tuple[tuple[str, ...], tuple[int, ...]],
    options: argparse.Namespace,
    console: LastingConsole,
) -> int:
    """Train, judge, draw, and say what came out."""
    from toolkit import report
    from toolkit.run.launched import LaunchedRunError, is_launched
    from toolkit.run.lock import FolderInUseError

    is_other = is_launched() and int(os.environ["RANK"]) > 0  # rank 0 tells
    console.quiet |= is_other
    try:
        study, outcomes = _train(
            recipe, chosen, options.out, options.jobs, console, overwrite=options.overwrite
        )
        if is_other:
            return DONE
        content = study.collect()
        page = report.write_report(study.folder)
    except config.RecipeError:
        raise
    except (ValueError, FolderInUseError) as error:  # of the data, or of a file in the folder
        return _end(str(error), BAD_INPUT)
    except BrokenPipeError:
        raise
    except OSError as error:  # no such place, no right to write, no space
        return _end(f"{options.out} must be a folder to write in, got {error}.", BAD_INPUT)
    except LaunchedRunError as error:
        return _end(str(error), RUN_FAILED)
    console.print(report.terminal_table(content))
    console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    if any(outcome.kind == "failed" for outcome in outcomes):
        return RUN_FAILED
    refuted = any(claim["verdict"] == "refuted" for claim in content["claims"])
    return REFUTED if options.strict and refuted else DONE


def _train(
    recipe: config.Recipe,
    chosen: tuple[tuple[str, ...], tuple[int, ...]],
    out: Path,
    jobs: int | None,
    console: LastingConsole,
    *,
    overwrite: bool,
) -> "tuple[Study, list[Event]]":
    """Check the recipe and its data, then train what is missing."""
    from toolkit.run.launched import is_launched

    launched = is_launched()
    if not launched:
        from toolkit.run.processes import prepare

        prepare()
    from toolkit import distributed
    from toolkit.display import Display
    from toolkit.study import Study

    variants, seeds = chosen
    config.check(recipe, variants or None)
    study = Study(recipe, out, variants, seeds)
    study.check_data(int(os.environ["WORLD_SIZE"]) if launched else None)
    with distributed.joined_group() if launched else contextlib.nullcontext():
        if overwrite and distributed.is_main():
            study.clear()
        distributed.barrier()
        with Display(len(study.missing()), console) as display:
            outcomes = study.train_launched(display) if launched else study.train(jobs, display)
    return study, outcomes


def _raise_failures(outcomes: "list[Event]") -> None:
    failed = [f"{end.run.name}: {end.content}" for end in outcomes if end.kind == "failed"]
    if failed:
        raise RunsFailedError("; ".join(failed))


def _list(console: LastingConsole) -> int:
    from rich.table import Table

    table = Table("recipe", "title", "paper", "minutes", "device", box=None, pad_edge=False)
    for name, path in config.list_recipes().items():
        try:
            recipe = config.load_recipe(path)
        except config.RecipeError as error:  # of a user's own; the others are still of use
            table.add_row(name, str(error.faults[0]))
            continue
        minutes = "" if recipe.minutes is None else f"{recipe.minutes:g}"
        table.add_row(name, recipe.title, recipe.paper, minutes, recipe.device)
    console.print(table)
    return DONE


def _describe(recipe: config.Recipe, console: LastingConsole) -> int:
    lines = [recipe.title, recipe.paper, "", recipe.description, "", f"file: {recipe.path}"]
    lines += [f"variants: {', '.join(recipe.variants)}"]
    lines += [f"seeds: {', '.join(map(str, recipe.seeds))}", "claims:"]
    lines += [
        f"  {name}: {node['text']} ({node['source']})" for name, node in recipe.claims.items()
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return DONE


def _chosen(
    recipe: config.Recipe, options: argparse.Namespace
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The variants and seeds asked for; empty where none were named."""
    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    if options.variants is not None:
        variants = recipe.select([name.strip() for name in options.variants.split(",")])
    if options.seeds is not None:
        try:
            seeds = config.read_seeds(options.seeds)
        except ValueError as error:
            raise config.RecipeError([config.Fault("--seeds", str(error))]) from error
    return variants, seeds


def _preview(
    recipe: config.Recipe,
    chosen: tuple[tuple[str, ...], tuple[int, ...]],
    console: LastingConsole,
) -> int:
    from toolkit.preview import preview

    config.check(recipe, chosen[0] or None)
    try:
        table = preview(recipe, *chosen)
    except Exception as error:  # noqa: BLE001 - whatever training would raise
        bad = isinstance(error, ValueError)
        return _end(str(error) if bad else config.one_line(error), BAD_INPUT if bad else RUN_FAILED)
    console.print(table)
    return DONE


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM, which SLURM sends at the end of the time, do what Ctrl-C does.

    Not among launched ranks: these wait for one another, and only the launcher can end them all.
    """
    from toolkit.run.launched import is_launched

    if threading.current_thread() is not threading.main_thread() or is_launched():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    return make_parser(__doc__)


def _end(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
