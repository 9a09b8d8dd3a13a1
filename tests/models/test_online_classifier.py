"""The online classifier: its updates, its stream of examples, and the equations beside it."""

import math
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from toolkit.data import GaussianGroups
from toolkit.models import OnlineClassifier
from toolkit.models.joint import join_models
from toolkit.optim.online_sgd import draw_examples, online_sgd

MIXTURE: dict[str, Any] = {
    "share": 0.8,
    "variances": (0.5, 2.0),
    "shift": 1.0,
    "alignments": (0.3, -0.2),
    "overlap": 0.6,
}


def model(data: GaussianGroups, **arguments: Any) -> OnlineClassifier:
    made = OnlineClassifier(**({"lr": 0.3, "dimension": data.dimension} | arguments))
    made.prepare(data.batch)
    return made


def test_updates_are_those_of_sgd_on_half_the_squared_error() -> None:
    data = GaussianGroups(dimension=40, **MIXTURE)
    made = model(data, seed=7)
    made.advance(50)
    part = {name: value[0] for name, value in data.batch.items()}
    clusters, noise = draw_examples(7, 0, 256, 40, part["shares"].numpy())
    weights = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    for c, z in zip(clusters[:50], torch.from_numpy(noise), strict=False):
        x = part["centers"][c] / math.sqrt(40) + part["variances"][c].sqrt() * z
        label = torch.sign(part["teachers"][c] @ x / math.sqrt(40))
        loss = (label - weights @ x / math.sqrt(40)) ** 2 / 2
        (gradient,) = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            weights -= 0.3 * gradient
    torch.testing.assert_close(made.student[0], weights.detach(), rtol=1e-10, atol=1e-12)


def test_where_training_pauses_changes_nothing() -> None:
    data = GaussianGroups(dimension=20, **MIXTURE)
    whole, parts = model(data), model(data)
    whole.advance(700)
    for count in (1, 2, 97, 300, 300):
        parts.advance(count)
        parts.updates_done += count
    assert torch.equal(whole.student, parts.student)


def test_a_member_does_not_depend_on_the_others() -> None:
    data = [GaussianGroups(dimension=20, seed=seed, **MIXTURE) for seed in range(3)]
    alone = [model(d, seed=s) for s, d in enumerate(data)]
    joint = join_models(alone)
    joint.prepare({key: torch.cat([d.batch[key] for d in data]) for key in data[0].batch})
    joint.advance(300)
    for member in alone:
        member.advance(300)
    assert torch.equal(joint.student, torch.cat([member.student for member in alone]))


def test_a_diverging_student_stops_before_it_is_not_finite() -> None:
    data = GaussianGroups(dimension=20, **MIXTURE)
    made = model(data, lr=1e3)
    done = int(made.advance(2000)[0])
    assert done < 2000
    assert made.student.isfinite().all()


def test_the_record_holds_order_parameters_and_what_the_equations_say() -> None:
    data = GaussianGroups(dimension=400, **MIXTURE)
    made = model(data, updates=1200)
    values = made.observe()
    assert float(values["val/group_loss/plus"]) == 0.5  # a student of zeros
    made.advance(1200)
    made.updates_done += 1200
    values = made.observe()
    part = {name: value[0] for name, value in data.batch.items()}
    teacher = float(part["teachers"][0] @ made.student[0] / 400)
    assert float(values["order/teacher/plus"]) == pytest.approx(teacher)
    assert float(values["order/norm"]) == pytest.approx(float((made.student**2).sum() / 400))
    for key in ("shift", "teacher/plus", "teacher/minus", "norm"):
        assert float(values[f"order/{key}"]) == pytest.approx(
            float(values[f"theory/{key}"]), abs=0.1
        )
    summary = made.summarize()
    assert float(summary["deviation/largest"]) >= abs(float(summary["deviation/norm"]))


def test_losses_and_errors_are_those_of_fresh_examples() -> None:
    data = GaussianGroups(dimension=60, **MIXTURE)
    made = model(data)
    made.advance(300)
    made.updates_done += 300
    values = made.observe()
    part = {name: value[0].numpy() for name, value in data.batch.items()}
    generator = np.random.default_rng(5)
    for k, name in enumerate(("plus", "minus")):
        noise = generator.standard_normal((200_000, 60))
        x = part["centers"][k] / math.sqrt(60) + math.sqrt(part["variances"][k]) * noise
        labels = np.sign(x @ part["teachers"][k])
        outputs = x @ made.student[0].numpy() / math.sqrt(60)
        loss, error = ((labels - outputs) ** 2 / 2).mean(), (labels != np.sign(outputs)).mean()
        assert float(values[f"val/group_loss/{name}"]) == pytest.approx(loss, rel=0.02)
        assert float(values[f"val/group_error/{name}"]) == pytest.approx(error, abs=0.006)


def test_one_run_trains_in_a_plain_trainer() -> None:
    data = GaussianGroups(dimension=50, **MIXTURE)
    made = OnlineClassifier(lr=0.3, dimension=50, updates=500)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(made, datamodule=data)
    assert int(made.updates_done) == 500
    (results,) = trainer.test(made, datamodule=data, verbose=False)
    assert results["deviation/largest"] > 0


def test_sgd_ends_before_an_update_that_is_not_finite() -> None:
    noise = np.array([[1.0], [math.inf], [1.0]])
    student = np.zeros(1)
    done = online_sgd(
        student, np.zeros(3, np.int64), noise, np.zeros((1, 1)), np.ones((1, 1)), np.ones(1),
        np.zeros(1), 0.1,
    )  # fmt: skip
    assert done == 1


def test_bad_arguments_and_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="lr must be above 0"):
        OnlineClassifier(lr=0.0)
    with pytest.raises(ValueError, match="must be that of the data, 20, got 30"):
        model(GaussianGroups(dimension=20, **MIXTURE), dimension=30)
    with pytest.raises(ValueError, match="must be products of some vectors"):
        GaussianGroups(dimension=20, shift=0.1, alignments=(0.9, 0.0), overlap=0.0).check()
