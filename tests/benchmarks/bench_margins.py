"""Updates of full-batch logistic regression: compiled, against a plain NumPy loop.

    python tests/benchmarks/bench_margins.py

50 examples of 50 features in float64. The baseline is a loop over one seed in its fastest form:
arrays allocated before, products by BLAS, no temporaries, the learning rate multiplied into the
data. Ours runs one seed in one thread, then 64 seeds in two. Sides take turns. The ratio is of CPU
times, times two for two threads, which is what two idle cores give; next to it the ratio of wall
times as they were, with whatever else ran.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from measuring import Row, Seconds, alternate, machine, one_thread, table

from toolkit.optim import (
    FullBatchMethod,
    FusedBinary,
    GradientDescent,
    LogDomainAdam,
    power_rates,
)

SIZE = 50
SEEDS = 64
UPDATES = 20_000


def numpy_gradient_descent(signed: np.ndarray, updates: int) -> None:
    """The plain loop."""
    scaled = signed * (0.1 / len(signed))
    weights, margins, step = np.zeros(SIZE), np.empty(SIZE), np.empty(SIZE)
    for _ in range(updates):
        np.dot(signed, weights, out=margins)
        np.exp(margins, out=margins)
        np.add(margins, 1.0, out=margins)
        np.reciprocal(margins, out=margins)
        np.dot(margins, scaled, out=step)
        np.add(weights, step, out=weights)


def numpy_adam(signed: np.ndarray, updates: int) -> None:
    """The plain loop, in the log domain as ours, since without it Adam underflows."""
    scaled = signed / len(signed)
    weights, margins, first, second = (np.zeros(SIZE) for _ in range(4))
    factors, gradient, buffer = (np.empty(SIZE) for _ in range(3))
    before = 0.0
    for _ in range(updates):
        np.dot(signed, weights, out=margins)
        least = max(float(margins.min()), 0.0)
        np.negative(margins, out=factors)
        np.exp(factors, out=factors)
        np.add(factors, 1.0, out=buffer)
        np.subtract(least, margins, out=factors)
        np.exp(factors, out=factors)
        np.divide(factors, buffer, out=factors)
        np.dot(factors, scaled, out=gradient)
        past = np.exp(least - before)
        before = least
        first *= 0.9 * past
        np.multiply(gradient, 0.1, out=buffer)
        first += buffer
        second *= 0.99 * past * past
        np.multiply(gradient, gradient, out=gradient)
        gradient *= 0.01
        second += gradient
        np.sqrt(second, out=buffer)
        np.divide(first, buffer, out=buffer)
        buffer *= 0.001
        weights += buffer


def signed_rows(seed: int) -> np.ndarray:
    """Gaussian inputs with random signs, which 50 dimensions separate."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((SIZE, SIZE))
    return rng.choice([-1.0, 1.0], SIZE)[:, None] * inputs


def ours(method: FullBatchMethod, rate: float, seeds: int, updates: int) -> Callable[[], None]:
    """The compiled updates, one thread for one seed, two for many; the data are ready."""
    signed = torch.from_numpy(np.stack([signed_rows(seed) for seed in range(seeds)]))
    fused = FusedBinary(signed, "logistic")
    weights = torch.zeros(seeds, SIZE, dtype=torch.float64)
    rates = power_rates(rate, count=updates)

    def run() -> None:
        fused.run(method, weights, method.init(weights), rates, threads=min(seeds, 2))

    return run


def measure(repetitions: int = 9) -> list[Row]:
    """One seed and many, gradient descent and Adam."""
    one_thread()
    rows = []
    cases: tuple[tuple[str, Callable[..., None], FullBatchMethod, float], ...] = (
        ("gradient descent", numpy_gradient_descent, GradientDescent(), 0.1),
        ("Adam, log domain", numpy_adam, LogDomainAdam(), 0.001),
    )
    for name, plain, method, rate in cases:
        sides = [
            partial(plain, signed_rows(0), UPDATES),
            ours(method, rate, 1, 5 * UPDATES),
            ours(method, rate, SEEDS, UPDATES // 4),
        ]
        base, single, many = alternate(sides, repetitions)
        rows.append(row(f"updates, {name}, 1 seed", single, base, 5.0, 1, 2))
        rows.append(row(f"updates, {name}, {SEEDS} seeds, 2 threads", many, base, SEEDS / 4, 2, 10))
    return rows


def row(
    name: str,
    ours: Sequence[Seconds],
    baseline: Sequence[Seconds],
    work: float,
    threads: int,
    at_least: float,
) -> Row:
    """How many times the baseline's updates per second; ``work`` times its updates were done."""
    pairs = list(zip(ours, baseline, strict=True))
    ratios = [threads * work * other.cpu / one.cpu for one, other in pairs]
    ratio = statistics.median(ratios)
    per_update = [1e9 * one.cpu / (threads * work * UPDATES) for one in ours]
    return Row(
        name=name,
        ours=f"{statistics.median(per_update):,.0f} ns",
        baseline=f"{1e9 * statistics.median(one.cpu for one in baseline) / UPDATES:,.0f} ns",
        ratio=f"{ratio:.1f}",
        spread=f"{min(ratios):.1f} to {max(ratios):.1f} ({len(pairs)})",
        wall=f"{statistics.median(work * other.wall / one.wall for one, other in pairs):.1f}",
        target=f">= {at_least}",
        met=ratio >= at_least,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    rows = measure(**vars(parser.parse_args()))
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
