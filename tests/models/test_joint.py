"""Models that train as one program: company changes nothing, members fail alone."""

import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor

from toolkit.data import PatchSignals
from toolkit.data.resident import ResidentBatch, joined_batch
from toolkit.functional import next_log_point
from toolkit.models import JointModel, TwoLayerCNN
from toolkit.models.joint import NoMemberLeftError, join_models


class Rows(Logger):
    """Keeps what is logged."""

    name, version = "", ""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, dict[str, Tensor]] = {}

    def log_members(self, values: Mapping[str, Tensor], update: int, active: Tensor) -> None:
        self.rows[update] = dict(values)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Lightning's own."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""


class PlainRows(Rows):
    """A logger that knows nothing of members."""

    log_members = None  # type: ignore[assignment]

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        assert step is not None
        self.rows[step] = dict(metrics)


def parts(seed: int, **arguments: Any) -> tuple[TwoLayerCNN, PatchSignals]:
    data = PatchSignals(num_examples=40, num_test=30, dim=10, slow_strength=0.3, seed=seed)
    torch.manual_seed(seed)
    given = {"num_filters": 6, "dim": 10, "updates": 150, "init_std": 0.1, **arguments}
    return TwoLayerCNN(seed=seed, **given), data


def fit(model: JointModel, batch: Mapping[str, Tensor], logger: Logger) -> None:
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_dataloaders=ResidentBatch(batch))


def results(model: TwoLayerCNN, member: int = 0) -> list[Tensor]:
    values = {**model.observe(), **model.summarize()}
    return [*model.member_state(member).values(), *(value[member] for value in values.values())]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(
        torch.equal(one.nan_to_num(-9), other.nan_to_num(-9))
        for one, other in zip(ones, others, strict=True)
    )


@pytest.mark.parametrize("selection", [None, "slow"])
def test_a_member_s_numbers_do_not_depend_on_its_company(selection: str | None) -> None:
    settings = {"selection": selection, "separation_at": [0.5], "updates": 500}
    kinds = [(0, None), (1, 0.01), (2, None), (1, None)]
    made = [parts(seed, rho=rho, **settings) for seed, rho in kinds]
    alone = []
    for seed, rho in kinds:
        model, data = parts(seed, rho=rho, **settings)
        fit(model, data.batch, Rows())
        alone.append(results(model))
    assert not same(alone[0], alone[1])
    assert not same(alone[1], alone[3])
    for company in ([0, 1, 2, 3], [2, 0], [3, 1]):
        joint = join_models([made[k][0] for k in company])
        fit(joint, joined_batch([made[k][1].batch for k in company]), Rows())
        for place, k in enumerate(company):
            assert same(results(joint, place), alone[k]), (company, k)


def test_steps_and_threads_change_no_number() -> None:
    whole, data = parts(0, rho=0.01)
    fit(whole, data.batch, first := Rows())
    stepwise, _ = parts(0, rho=0.01, updates_per_step=7)
    fit(stepwise, data.batch, second := Rows())
    assert same(results(whole), results(stepwise))
    assert first.rows.keys() == second.rows.keys()
    for update, row in first.rows.items():
        assert same([*row.values()], [*second.rows[update].values()]), update
    pairs = [parts(seed) for seed in (0, 1)]
    found = []
    for threads in (1, 2):
        joint = join_models([model for model, _ in pairs])
        torch.set_num_threads(threads)
        try:
            fit(joint, joined_batch([data.batch for _, data in pairs]), Rows())
        finally:
            torch.set_num_threads(1)
        found.append([*results(joint, 0), *results(joint, 1)])
    assert same(*found)


def test_the_record_has_the_start_a_logarithmic_grid_and_the_end() -> None:
    model, data = parts(0, updates=130, log_per_decade=4)
    fit(model, data.batch, rows := Rows())
    grid = [0]
    while (point := next_log_point(grid[-1], 4)) < 130:
        grid.append(point)
    assert list(rows.rows) == [*grid, 130]
    first = rows.rows[0]
    assert first["train/loss"].item() == pytest.approx(math.log(2), abs=1e-2)


def test_a_member_that_is_not_finite_stops_alone() -> None:
    good, bad = parts(0), parts(1, lr=1e60)
    joint = join_models([bad[0], good[0]])
    fit(joint, joined_batch([bad[1].batch, good[1].batch]), Rows())
    assert joint.failed.tolist() == [True, False]
    assert joint.updates_done[1] == 150
    assert joint.updates_done[0] < 150
    assert torch.isfinite(joint.weights).all()
    model, data = parts(0)
    fit(model, data.batch, Rows())
    assert joint.weights[1].equal(model.weights[0])


def test_the_last_member_that_is_not_finite_is_an_error() -> None:
    model, data = parts(1, lr=1e60)
    with pytest.raises(NoMemberLeftError, match=r"must be finite, got none at update \d"):
        fit(model, data.batch, Rows())


def test_joining_leaves_the_models_alone_and_keys_say_which_join() -> None:
    (one, data), (other, _) = parts(0), parts(1, rho=0.1)
    before = one.weights.clone()
    joint = join_models([one, other])
    joint.weights.data.zero_()
    assert one.num_members == 1
    assert one.weights.equal(before)
    assert one.join_key(data.batch) == other.join_key(data.batch)
    for change in ({"num_filters": 5}, {"updates": 10}, {"selection": "slow"}):
        different, _ = parts(0, **change)
        assert different.join_key(data.batch) != one.join_key(data.batch), change
    other.updates_done += 3
    assert one.join_key(data.batch) != other.join_key(data.batch)


def test_a_single_model_trains_and_is_tested_in_a_plain_trainer() -> None:
    model, data = parts(0)
    rows = PlainRows()
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=rows,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    assert model.done == 150
    assert rows.rows[150]["train/loss"] < rows.rows[0]["train/loss"]
    (tested,) = trainer.test(model, datamodule=data, verbose=False)
    assert tested["test/acc"] == pytest.approx(rows.rows[150]["test/acc"])
    outputs = model(data.batch["test_inputs"])[0]
    hits = outputs * data.batch["test_targets"][0] > 0
    assert tested["test/acc"] == pytest.approx(hits.double().mean().item())


def test_upsampling_by_one_is_the_plain_run_bit_for_bit() -> None:
    plain, data = parts(0, updates=500)
    fit(plain, data.batch, Rows())
    once, _ = parts(0, updates=500, selection="slow", factor=1)
    fit(once, data.batch, Rows())
    twice, _ = parts(0, updates=500, selection="slow", factor=2)
    fit(twice, data.batch, Rows())
    assert 0 < twice.summarize()["useful/selected"].item() < 0.5
    assert once.weights.equal(plain.weights)
    assert not twice.weights.equal(plain.weights)


def test_filters_and_radii_outside_the_theory_are_warned_of() -> None:
    model, data = parts(0, rho=2.0)
    with pytest.warns(UserWarning, match=r"rho must be at most half the radius .* got 2"):
        fit(model, data.batch, Rows())
    small, _ = parts(0, rho=0.001)
    fit(small, data.batch, Rows())  # a warning would be an error
    swapped, _ = parts(0)
    swapped.initial[0] = data.batch["features"][0, 1] * 0.1
    with pytest.warns(UserWarning, match=r"must start faster than the slow one.* seed 0"):
        fit(swapped, data.batch, Rows())


def test_a_fast_feature_that_is_never_learnt_selects_nothing() -> None:
    model, data = parts(0, selection="slow", updates=2)
    with pytest.warns(UserWarning, match="must be learnt within the updates"):
        fit(model, data.batch, Rows())
    summary = model.summarize()
    assert summary["useful/selected"] == 0
    assert summary["fast_update"].isnan()
    assert summary["stalled"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"updates": 0}, "updates must be at least 1, got 0"),
        ({"rho": -0.1}, "rho must be at least 0, or null without SAM, got -0.1"),
        ({"lr": 0.0}, "lr must be above 0, got 0"),
        ({"factor": 0}, "factor must be at least 1, got 0"),
        ({"separation_at": [0.5, -1.0]}, "separation_at must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts(0, **arguments)


def test_data_that_does_not_fit_is_refused() -> None:
    model, data = parts(0)
    wide, _ = parts(0, dim=12)
    with pytest.raises(ValueError, match=r"model.dim must be .* 10, got 12"):
        wide.prepare(data.batch)
    with pytest.raises(ValueError, match="targets must be -1 or"):
        model.prepare({**data.batch, "targets": data.batch["targets"] + 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"callbacks": {"margin": {}}}, "must have no callbacks"),
        ({"checkpoint": {"monitor": "val/loss"}}, "must have no checkpoint.monitor"),
        ({"nonfinite": "skip"}, "must have nonfinite: stop"),
        ({"trainer": {"accelerator": "cpu", "devices": 2}}, "must have trainer.devices 1, got 2"),
        ({"trainer": {}}, "must have trainer.accelerator cpu, got auto"),
    ],
)
def test_what_a_program_does_not_do_is_said(change: dict[str, Any], message: str) -> None:
    resolved = {"trainer": {"accelerator": "cpu"}, **change}
    assert any(message in told for told in TwoLayerCNN.check_recipe(resolved, {}))
    assert not TwoLayerCNN.check_recipe({"trainer": {"accelerator": "cpu"}}, {})
