"""All runs of one recipe: which are missing, run them, collect what they say."""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit import claims, config, history
from toolkit.run import Event, FolderLock, Run, run_all
from toolkit.run.launched import run_here
from toolkit.run.rehearsal import rehearse

__all__ = ["Study", "StudyChangedError"]

_META = ("title", "paper", "description", "minutes", "device", "report")


class StudyChangedError(ValueError):
    """A run folder holds results of another configuration."""


@dataclass(frozen=True)
class Study:
    """All runs of one recipe, and the folder that holds them.

    Args:
        recipe: The loaded recipe.
        root: Folder of all studies; this one lies in ``root/<recipe>``.
        variants: Which variants to run; by default all.
        seeds: Which seeds to run; by default the recipe's.
    """

    recipe: config.Recipe
    root: Path
    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the study lies."""
        return self.root / self.recipe.name

    def runs(self) -> list[Run]:
        """The runs asked for, seed by seed, so that early results compare all variants."""
        return [
            self._run(variant, seed)
            for seed in self.seeds or self.recipe.seeds
            for variant in self.variants or self.recipe.variants
        ]

    def missing(self) -> list[Run]:
        """The runs asked for that have not finished.

        Raises:
            StudyChangedError: If a folder holds a run of another configuration; says what differs.
        """
        runs = self.runs()
        changed = [line for run in runs for line in _changes(run)]
        if changed:
            raise StudyChangedError(
                f"{self.folder} holds runs of another configuration: {'; '.join(changed[:5])}. "
                "Choose another --out, or --overwrite to train them again."
            )
        return [run for run in runs if not run.is_finished()]

    def clear(self) -> None:
        """Remove the folders of the runs asked for, those in use excepted.

        Raises:
            toolkit.run.FolderInUseError: If another process is writing one of them.
        """
        for run in self.runs():
            if run.folder.exists():
                with FolderLock(run.folder):
                    pass
                shutil.rmtree(run.folder)

    def check_data(self, num_ranks: int | None = None) -> None:
        """Read the data and build every part once, of all variants and before a folder is made.

        Args:
            num_ranks: Processes that a launcher has started; by default each run starts its own.

        Raises:
            ValueError: In one line, if something is wrong or does not fit the rest.
        """
        seed = (self.seeds or self.recipe.seeds)[0]
        rehearse([run for run in self.runs() if run.seed == seed], num_ranks)

    def train(self, jobs: int | None, listen: Callable[[Event], None]) -> list[Event]:
        """Train what is missing, ``jobs`` runs at a time; how each run ended.

        Raises:
            OSError: If the study's folder cannot be made.
        """
        runs = self.missing()
        self.folder.mkdir(parents=True, exist_ok=True)  # here, where a failure is told once
        gpus = _num_gpus(runs)
        outcomes = run_all(runs, jobs or _default_jobs(runs, gpus), listen, gpus)
        for outcome in outcomes:
            if outcome.kind == "failed":
                _record_failure(outcome)
        return outcomes

    def train_launched(self, listen: Callable[[Event], None]) -> list[Event]:
        """Train what is missing on the processes that torchrun or SLURM started."""
        return run_here(self.missing(), listen)

    def collect(self) -> dict[str, Any]:
        """Read every result in the folder, judge the claims, write and return ``study.json``.

        Results of variants and seeds that other machines wrote into the same folder count too.
        """
        known = self.recipe.variants
        found = claims.read_results(self.folder, known)
        results = {name: runs for name, runs in found.items() if name in known}
        nodes = self.recipe.claims
        meta = {key: getattr(self.recipe, key, None) for key in _META}
        study = claims.build_study({"recipe": self.recipe.name, **meta}, results, nodes)
        history.write_json(study, self.folder / "study.json")
        return study

    def _run(self, variant: str, seed: int) -> Run:
        folder = self.folder / variant / f"seed{seed}"
        resolved = self.recipe.resolve(variant, seed)
        return Run(self.recipe.name, variant, seed, folder, resolved)


def _record_failure(outcome: Event) -> None:
    run = outcome.run
    with contextlib.suppress(OSError):  # a full disk, say: the outcome itself tells
        history.write_json(
            {
                "recipe": run.recipe,
                "variant": run.variant,
                "seed": run.seed,
                "status": "failed",
                "error": outcome.content,
                "metrics": {},
            },
            run.folder / "result.json",
        )


def _num_gpus(runs: Sequence[Run]) -> int:
    """GPUs of this machine that the runs may use."""
    if any(run.resolved["trainer"].get("accelerator") == "cpu" for run in runs):
        return 0
    return torch.cuda.device_count()


def _default_jobs(runs: Sequence[Run], gpus: int) -> int:
    """Runs at a time that fill the machine: one a GPU, else one for each run's share of cores."""
    if not runs:
        return 1
    if gpus:
        return max(1, gpus // runs[0].num_ranks)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = runs[0].num_ranks * int(runs[0].resolved["threads"])
    return max(1, (cores or 1) // share)


def _changes(run: Run) -> list[str]:
    """What differs between a run's recipe as saved and as asked for, empty if nothing does."""
    saved = run.folder / "recipe.yaml"
    if not saved.exists():
        return []
    with history.reading(saved, f"Delete {run.folder} to train that run again."):
        old = dict(config.read_yaml(saved))
    if config.fingerprint(old) == config.fingerprint(run.resolved):
        return []
    return [f"{run.name}: {line}" for line in config.difference(old, run.resolved)]
