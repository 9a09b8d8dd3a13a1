"""Which runs share a process: those whose models train as one program."""

from collections.abc import Iterable

from toolkit import config
from toolkit.run.folder import Run

__all__ = ["crews", "trains_jointly"]


def trains_jointly(run: Run) -> bool:
    """Whether the run's model is a :class:`toolkit.models.JointModel`."""
    # Torch, which it imports, takes 2 s that starting processes does not have to wait for.
    from toolkit.models.joint import JointModel

    made = config.find_target(run.resolved["model"]["_target_"], run.resolved.get("packages") or ())
    return isinstance(made, type) and issubclass(made, JointModel)


def crews(runs: Iterable[Run], jobs: int) -> list[tuple[Run, ...]]:
    """The runs by process: those of joint models divided evenly over ``jobs``, others alone.

    Neighbours stay together, so that each process gets all variants of its seeds.
    """
    joint: list[Run] = []
    alone: list[tuple[Run, ...]] = []
    for run in runs:
        if trains_jointly(run):
            joint.append(run)
        else:
            alone.append((run,))
    size, rest = divmod(len(joint), jobs)
    ends = [size * (k + 1) + min(rest, k + 1) for k in range(jobs)]
    parts = [tuple(joint[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return [*filter(None, parts), *alone]
