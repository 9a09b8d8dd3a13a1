"""The summary of a study: per-variant means over seeds, and the claims with their verdicts."""

import importlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.claims.estimate import Results
from toolkit.claims.judgement import Claim, ClaimResult, Floor, evaluate
from toolkit.history import read_json, reading

__all__ = ["build_study", "claim_from_node", "read_results", "summarize"]

_BUDGETS = ("seconds", "updates", "epochs", "examples_seen")


def build_study(
    meta: Mapping[str, Any], results: Results, nodes: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of ``study.json``.

    Args:
        meta: ``recipe`` (its name) and what else to keep for the report: ``title``, ``paper``,
            ``description``, ``minutes``, ``device``, ``report`` (its settings).
        results: ``{variant: {seed: content of result.json}}``, variants in the recipe's order; a
            failed run has ``status`` ``failed`` and ``error``, one line.
        nodes: The claims by name as plain ``_target_`` nodes; one that cannot be built is
            *not tested*.

    Returns:
        ``recipe``, ``title``, ``meta``, ``variants`` (per variant ``n``, ``seeds``, ``metrics``,
        ``seconds``, ``updates``, ``epochs``, ``examples_seen``, each with ``mean``, ``std`` of
        ddof 1 and ``values`` in the order of the seeds), ``claims``, ``claim_nodes``,
        ``failed``. A number that is absent or not finite is ``None``.
    """
    return {
        "recipe": meta["recipe"],
        "title": meta.get("title") or meta["recipe"],
        "meta": dict(meta),
        "variants": {name: _variant(runs) for name, runs in results.items()},
        "claims": [_judge(name, node, results).as_dict() for name, node in nodes.items()],
        "claim_nodes": dict(nodes),
        "failed": [
            {"variant": name, "seed": seed, "error": run.get("error")}
            for name, runs in results.items()
            for seed, run in sorted(runs.items())
            if run.get("status") == "failed"
        ],
    }


def summarize(folder: Path) -> dict[str, Any]:
    """The content of ``study.json``, worked out again from the record alone.

    Runs are read from their folders; title, claims and the order of variants from the
    ``study.json`` that is there.

    Raises:
        FileNotFoundError: If the folder holds neither ``study.json`` nor a run.
    """
    old = read_json(folder / "study.json") or {}
    results = read_results(folder, tuple(old.get("variants", {})))
    if not old and not any(results.values()):
        raise FileNotFoundError(
            f"{folder} must hold study.json or <variant>/seed<k>/result.json, got neither. "
            "Give the folder of a study, such as runs/quickstart."
        )
    for failure in old.get("failed", []):
        run = {"status": "failed", "error": failure.get("error")}
        results.setdefault(failure["variant"], {}).setdefault(failure["seed"], run)
    meta = {"recipe": folder.resolve().name, **old.get("meta", {})}
    return build_study(meta, results, old.get("claim_nodes", {}))


def read_results(
    folder: Path, variants: Sequence[str] = ()
) -> dict[str, dict[int, dict[str, Any]]]:
    """``{variant: {seed: content of result.json}}`` of a study's folder.

    Each has its run's ``folder`` too, for claims that read records.

    Args:
        folder: ``runs/<recipe>``.
        variants: These come first, in this order, whether they have runs or not.
    """
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in variants}
    for path in sorted(folder.glob("*/seed*/result.json")):
        number = path.parent.name.removeprefix("seed")
        if number.isdecimal():
            results.setdefault(path.parts[-3], {})[int(number)] = _read_result(path)
    return {name: dict(sorted(runs.items())) for name, runs in results.items()}


def _read_result(path: Path) -> dict[str, Any]:
    with reading(path, "Delete that file."):
        result = read_json(path) or {}
        for value in result.get("metrics", {}).values():
            if not isinstance(value, int | float | None):
                raise TypeError(f"no number but {value!r}")
        return {**result, "folder": str(path.parent)}


def claim_from_node(node: Mapping[str, Any]) -> Claim:
    """The claim that a plain ``_target_`` node describes.

    Raises:
        ValueError: If the class cannot be found or does not take the arguments.

    Example:
        >>> node = {"_target_": "toolkit.claims.Threshold", "text": "It learns.", "source": "",
        ...         "metric": "test/acc", "variant": "sgd", "at_least": 0.9}
        >>> claim_from_node(node).text
        'It learns.'
    """
    arguments = dict(node)
    target = arguments.pop("_target_", "")
    module, _, name = str(target).rpartition(".")
    try:
        if isinstance(arguments.get("requires"), Mapping):
            floor = {k: v for k, v in arguments["requires"].items() if k != "_target_"}
            arguments["requires"] = Floor(**_as_floats(floor))
        claim = getattr(importlib.import_module(module), name)(**_as_floats(arguments))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"claim {target!r} must be a class that takes its arguments, got {error}. "
            "See toolkit.claims for those there are."
        ) from error
    if not isinstance(claim, Claim):
        found = [name for name in ("text", "source", "requires", "judge") if hasattr(claim, name)]
        raise ValueError(
            f"claim {target!r} must have text, source, requires and judge, got {found}. "
            "See toolkit.claims.Claim."
        )
    return claim


def _as_floats(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """JSON writes 1.0 and 1 alike; the bounds and tolerances of claims are floats."""
    bounds = ("at_least", "at_most", "tolerance", "slack", "factor", "share")
    return {k: float(v) if k in bounds and v is not None else v for k, v in arguments.items()}


def _judge(name: str, node: Mapping[str, Any], results: Results) -> ClaimResult:
    try:
        return evaluate(claim_from_node(node), results, name)
    except Exception as error:  # noqa: BLE001 - a user's own claim must not cost the others
        text, source = str(node.get("text", "")), str(node.get("source", ""))
        kind = (
            "" if isinstance(error, ValueError) else f"judging it raised {type(error).__name__}: "
        )
        reason = " ".join(f"{kind}{error}".split())
        return ClaimResult(
            name, text, source, "not tested", {"reason": reason}, f"not tested: {reason}"
        )


def _variant(runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    seeds = [seed for seed, run in sorted(runs.items()) if run.get("status") == "finished"]
    metrics = dict.fromkeys(key for seed in seeds for key in runs[seed].get("metrics", {}))
    return {
        "n": len(seeds),
        "seeds": seeds,
        "metrics": {
            key: _moments([runs[seed].get("metrics", {}).get(key) for seed in seeds])
            for key in metrics
        },
        **{unit: _moments([runs[seed].get(unit) for seed in seeds]) for unit in _BUDGETS},
    }


def _moments(values: Sequence[float | int | None]) -> dict[str, Any]:
    """Mean and standard deviation (ddof 1) of the values that are there."""
    kept = [None if value is None or not math.isfinite(value) else value for value in values]
    known = [value for value in kept if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "values": kept,
    }
