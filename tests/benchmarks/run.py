"""All benchmarks, each in a process of its own, as one table.

    python tests/benchmarks/run.py

Takes about ten minutes on two cores; use an idle machine. Single ones, in any choice:
``python tests/benchmarks/run.py data training sam useful memory two_layer_cnn margins``.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from measuring import Row, machine, one_thread, table

BENCHMARKS = ("data", "training", "sam", "useful", "memory", "two_layer_cnn", "margins")


def measure(name: str) -> list[Row]:
    """The rows of one benchmark."""
    benchmark = importlib.import_module(f"bench_{name}")
    if name != "data":
        rows: list[Row] = benchmark.measure()
        return rows
    base, ours = benchmark.measure(examples=50_000, repeats=3, threads=1).values()
    return [
        Row(
            name="data, images per second",
            ours=f"{ours:,.0f}",
            baseline=f"{base:,.0f}",
            ratio="",
            spread="best of 3 epochs each",
            wall=f"{ours / base:.1f}",
            target=">= 15",
            met=ours >= 15 * base,
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="name")
    names = parser.parse_args().names or BENCHMARKS
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a process starts
    one_thread()
    rows: list[Row] = []
    for name in names:
        # Not a Pool, whose processes may not start the baseline's own workers.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            rows += pool.submit(measure, name).result()
        sys.stderr.write(f"{name} done\n")
    sys.stdout.write(f"{table(rows)}\n\n{machine()}\n")


if __name__ == "__main__":
    main()
