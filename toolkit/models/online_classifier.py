"""Linear classifier under one-pass SGD on sub-populations, beside the equations it follows."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from toolkit.metrics import lead
from toolkit.models.joint import JointModel
from toolkit.optim.online_sgd import draw_examples, online_sgd
from toolkit.theory import OrderParameters, TeacherMixture

__all__ = ["OnlineClassifier"]

_NAMES = ("plus", "minus")
_BLOCK = 256
_CROSSINGS = 3


class OnlineClassifier(JointModel):
    """Student ``w . x / sqrt(d)`` that takes one fresh example per update, from a start of zeros.

    The data is a :class:`toolkit.data.GaussianGroups`. Losses and errors are those over each whole
    sub-population, which follow from the order parameters of the student. Time is updates over the
    dimension.

    | recorded key | |
    | --- | --- |
    | ``order/shift``, ``order/teacher/<group>``, ``order/norm`` | ``M``, ``R``, ``Q`` |
    | ``theory/shift``, ``theory/teacher/<group>``, ``theory/norm`` | of the equations |
    | ``val/group_loss/<group>``, ``val/group_error/<group>`` | half squared error, 0-1 error |
    | ``theory/group_loss/<group>`` | of the equations |
    | ``order/cosine`` | of the student and ``v``; 0 without a shift |
    | ``train/loss`` | over the mixture |
    | ``order/time`` | updates over the dimension |

    | key of the result only | |
    | --- | --- |
    | ``deviation/<order parameter>`` | simulated minus predicted at the end |
    | ``deviation/largest`` | largest absolute one of any recorded update |
    | ``crossings``, ``crossing/<k>`` | changes of the lead in loss, and their times |
    | ``theory/crossings``, ``theory/crossing/<k>`` | the same of the equations |
    | ``crossing_ratio/<k>`` | simulated over predicted time |
    | ``cosine_peak_ratio`` | largest ``order/cosine`` over the last |

    Args:
        lr: ``eta``, positive; from ``TeacherMixture.largest_learning_rate`` on the norm diverges.
        dimension: That of the data.
        lead_tolerance: Another sub-population takes the lead if its loss is lower by more than
            this, which keeps the noise of a finite dimension from changing it.
        seed: Of the examples.
        updates: Updates of the training.
        updates_per_step: See :class:`toolkit.models.JointModel`.
        log_per_decade: Likewise.

    Raises:
        ValueError: If a number is out of its range.

    Reference:
        Jain, Nobahari, Baratin, Sarao Mannelli 2024, arXiv:2405.18296.
    """

    needs_cpu = True
    logged_keys = (
        "order/shift", "order/teacher/*", "order/norm", "order/cosine", "theory/shift",
        "theory/teacher/*", "theory/norm", "theory/group_loss/*", "val/group_loss/*",
        "val/group_error/*", "train/loss", "order/time", "deviation/shift", "deviation/teacher/*",
        "deviation/norm", "deviation/largest", "crossings", "crossing/*", "theory/crossings",
        "theory/crossing/*", "crossing_ratio/*", "cosine_peak_ratio",
    )  # fmt: skip

    lr: Tensor
    seed: Tensor
    leader: Tensor
    times: Tensor
    extremes: Tensor

    def __init__(
        self,
        *,
        lr: float,
        dimension: int = 1000,
        lead_tolerance: float = 0.0,
        seed: int = 0,
        updates: int = 10_000,
        updates_per_step: int = 10_000,
        log_per_decade: int = 20,
    ) -> None:
        super().__init__(updates, updates_per_step, log_per_decade)
        if not 0 < lr < math.inf or dimension < 4 or not lead_tolerance >= 0:
            raise ValueError(
                "lr must be above 0, dimension at least 4 and lead_tolerance at least 0, got "
                f"{lr}, {dimension} and {lead_tolerance}. Take the dimension from the data."
            )
        self.lead_tolerance = lead_tolerance
        start = torch.zeros(1, dimension, dtype=torch.float64)
        self.student = nn.Parameter(start, requires_grad=False)
        self.register_buffer("lr", torch.tensor([lr], dtype=torch.float64))
        self.register_buffer("seed", torch.tensor([seed]))
        # Who leads (-1: nobody yet), when that changed, and the largest deviation and cosine.
        self.register_buffer("leader", torch.full((1,), -1))
        self.register_buffer("times", torch.full((1, _CROSSINGS), math.nan, dtype=torch.float64))
        self.register_buffer("extremes", torch.zeros(1, 2, dtype=torch.float64))
        self._mixtures: list[TeacherMixture] = []
        self._parts: list[dict[str, np.ndarray[Any, Any]]] = []
        self._paths: list[dict[int, OrderParameters]] = []

    def forward(self, inputs: Float[Tensor, "members examples dimension"]) -> Tensor:
        """Outputs ``(members, examples)``."""
        return (inputs @ self.student[:, :, None])[..., 0] / math.sqrt(self.student.shape[1])

    def settings(self) -> dict[str, Hashable]:
        """What all members of a program have to share."""
        return {**super().settings(), "lead_tolerance": self.lead_tolerance}

    def prepare(self, batch: Mapping[str, Tensor]) -> None:
        """Check the data, and keep each member's as arrays."""
        dimension = self.student.shape[1]
        if batch["centers"].shape[-1] != dimension:
            raise ValueError(
                f"model.dimension must be that of the data, {batch['centers'].shape[-1]}, got "
                f"{dimension}. Set both to one number."
            )
        arrays = {name: value.numpy() for name, value in batch.items()}
        self._parts = [{name: a[m] for name, a in arrays.items()} for m in range(self.num_members)]
        self._mixtures = [
            TeacherMixture(
                part["shares"],
                part["variances"],
                centers=part["overlaps"][0],
                alignments=part["overlaps"][1],
                teachers=part["overlaps"][2],
                biases=part["biases"],
            )
            for part in self._parts
        ]
        self._paths = [{} for _ in self._parts]

    def advance(self, num_updates: int) -> Int[Tensor, " members"]:
        """Make updates, one fresh example each."""
        made = torch.zeros(self.num_members, dtype=torch.int64)

        def train(m: int) -> None:
            made[m] = self._train(m, int(self.updates_done[m]), num_updates)

        self.map_members(train, self.active.nonzero().flatten().tolist())
        return made

    def observe(self) -> dict[str, Float[Tensor, " members"]]:
        """Order parameters, what the equations say of them, and losses."""
        rows = [self._observe(m) for m in range(self.num_members)]
        return {key: torch.tensor([row[key] for row in rows]).double() for key in rows[0]}

    def summarize(self) -> dict[str, Float[Tensor, " members"]]:
        """Deviations from the equations, crossings, and the peak of the cosine."""
        rows = [self._summarize(m) for m in range(self.num_members)]
        return {key: torch.tensor([row[key] for row in rows]).double() for key in rows[0]}

    def _train(self, m: int, first: int, count: int) -> int:
        part, student = self._parts[m], self.student[m].numpy()
        done = 0
        while done < count:
            block, offset = divmod(first + done, _BLOCK)
            clusters, noise = draw_examples(
                int(self.seed[m]), block, _BLOCK, len(student), part["shares"]
            )
            here = slice(offset, min(_BLOCK, offset + count - done))
            made = online_sgd(
                student, clusters[here], noise[here], part["centers"], part["teachers"],
                np.sqrt(part["variances"]), part["biases"], float(self.lr[m]),
            )  # fmt: skip
            done += made
            if made < here.stop - here.start:
                break
        return done

    def _observe(self, m: int) -> dict[str, float]:
        mixture, now, theory = self._mixtures[m], self._now(m), self._theory(m)
        losses, errors = mixture.mse(now)[0], mixture.error(now)[0]
        length = math.sqrt(float(mixture.centers[0, 0]) * float(now.norm[0]))
        cosine = float(now.shift[0, 0]) / length if length > 0 else 0.0
        values = {**_named("order", now), **_named("theory", theory), "order/cosine": cosine}
        values |= {f"val/group_loss/{name}": float(losses[k]) for k, name in enumerate(_NAMES)}
        values |= {f"val/group_error/{name}": float(errors[k]) for k, name in enumerate(_NAMES)}
        predicted = mixture.mse(theory)[0]
        values |= {f"theory/group_loss/{n}": float(predicted[k]) for k, n in enumerate(_NAMES)}
        values |= {"train/loss": float(mixture.shares @ losses), "order/time": self._time(m)}
        self._follow(m, torch.from_numpy(losses), max(_deviations(now, theory).values()), cosine)
        return values

    def _follow(self, m: int, losses: Tensor, deviation: float, cosine: float) -> None:
        """Keep who leads, and the largest values so far."""
        before = int(self.leader[m]) if self.leader[m] >= 0 else None
        if before is None and float((losses[0] - losses[1]).abs()) <= self.lead_tolerance:
            leader = None  # at the start both losses are equal
        else:
            leader = lead(losses, before, self.lead_tolerance)
        if leader is not None:
            count = int((~self.times[m].isnan()).sum())
            if before is not None and leader != before and count < _CROSSINGS:
                self.times[m, count] = self._time(m)
            self.leader[m] = leader
        latest = torch.tensor([deviation, cosine], dtype=torch.float64)
        self.extremes[m] = torch.maximum(self.extremes[m], latest)

    def _summarize(self, m: int) -> dict[str, float]:
        mixture, now, theory = self._mixtures[m], self._now(m), self._theory(m)
        simulated, predicted = _named("", now), _named("", theory)
        values = {f"deviation{key}": simulated[key] - predicted[key] for key in simulated}
        values["deviation/largest"] = float(self.extremes[m, 0])
        found = mixture.crossings(float(self.lr[m]), max(self._time(m), 1e-3))
        values["theory/crossings"] = len(found)
        values["crossings"] = int((~self.times[m].isnan()).sum())
        for k in range(_CROSSINGS):
            values[f"crossing/{k + 1}"] = float(self.times[m, k])
            values[f"theory/crossing/{k + 1}"] = found[k].time if k < len(found) else math.nan
            ratio = values[f"crossing/{k + 1}"] / values[f"theory/crossing/{k + 1}"]
            values[f"crossing_ratio/{k + 1}"] = ratio
        last = self._observe(m)["order/cosine"]
        values["cosine_peak_ratio"] = float(self.extremes[m, 1]) / last if last > 0 else math.nan
        return values

    def _now(self, m: int) -> OrderParameters:
        """Of the student as it is."""
        part, student = self._parts[m], self.student[m].numpy()
        d = len(student)
        return OrderParameters(
            np.array([self._time(m)]),
            (part["centers"] @ student / d)[None],
            (part["teachers"] @ student / d)[None],
            np.array([student @ student / d]),
        )

    def _theory(self, m: int) -> OrderParameters:
        """What the equations say of this update; solved once for every update of the record."""
        update = int(self.updates_done[m])
        if update not in self._paths[m]:
            time = self._time(m)
            path = self._mixtures[m].solve([0.0, time] if time else [0.0], float(self.lr[m]))
            self._paths[m][update] = OrderParameters(
                path.times[-1:], path.shift[-1:], path.teacher[-1:], path.norm[-1:]
            )
        return self._paths[m][update]

    def _time(self, m: int) -> float:
        return int(self.updates_done[m]) / self.student.shape[1]


def _named(prefix: str, path: OrderParameters) -> dict[str, float]:
    """The order parameters of one time, by key; the second centre is minus the first."""
    values = {f"{prefix}/shift": float(path.shift[0, 0]), f"{prefix}/norm": float(path.norm[0])}
    return values | {
        f"{prefix}/teacher/{n}": float(path.teacher[0, k]) for k, n in enumerate(_NAMES)
    }


def _deviations(now: OrderParameters, theory: OrderParameters) -> dict[str, float]:
    simulated, predicted = _named("", now), _named("", theory)
    return {key: abs(simulated[key] - predicted[key]) for key in simulated}
