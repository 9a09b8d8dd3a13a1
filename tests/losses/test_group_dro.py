"""GroupDRO against its definition, on one process and on two."""

import math
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from toolkit.data import Digits, Spurious
from toolkit.losses import GroupDRO
from toolkit.models import ImageClassifier


def test_step_size_zero_is_the_mean_of_the_groups_means() -> None:
    losses, groups = torch.rand(9), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2])
    means = torch.stack([losses[groups == g].mean() for g in range(3)])
    torch.testing.assert_close(GroupDRO(3, 0.0)(losses, groups), means.mean())


def test_weights_follow_exponentiated_losses() -> None:
    dro = GroupDRO(2, step_size=0.5)
    losses, groups = torch.tensor([1.0, 3.0]), torch.tensor([0, 1])
    loss = dro(losses, groups)
    expected = torch.softmax(0.5 * losses, 0)
    torch.testing.assert_close(dro.weights, expected)
    torch.testing.assert_close(loss, expected @ losses)
    dro(losses, groups)
    torch.testing.assert_close(dro.weights, torch.softmax(2 * 0.5 * losses, 0))


def test_an_absent_group_keeps_its_weight() -> None:
    dro = GroupDRO(3, step_size=1.0)
    dro(torch.tensor([0.0, 2.0]), torch.tensor([0, 2]))
    assert float(dro.weights[1]) == pytest.approx(1 / 3)
    assert float(dro.weights.sum()) == pytest.approx(1)
    assert float(dro.weights[2]) > float(dro.weights[0])


def test_a_group_that_never_comes_takes_no_part() -> None:
    losses, groups = torch.tensor([1.0, 3.0]), torch.tensor([0, 1])
    two, four = GroupDRO(2, step_size=0.5), GroupDRO(4, step_size=0.5)
    torch.testing.assert_close(four(losses, groups), two(losses, groups))
    torch.testing.assert_close(four(losses, groups), two(losses, groups))
    assert four.seen.tolist() == [True, True, False, False]


def test_huge_losses_move_all_weight_and_stay_finite() -> None:
    dro = GroupDRO(2, step_size=1.0)
    loss = dro(torch.tensor([1e4, 1.0]), torch.tensor([0, 1]))
    assert dro.weights.tolist() == [1.0, 0.0]
    assert float(loss) == 1e4


def test_a_second_call_of_the_same_update_and_evaluation_leave_the_weights() -> None:
    dro = GroupDRO(2, step_size=0.5)
    losses, groups = torch.tensor([1.0, 3.0]), torch.tensor([0, 1])
    dro(losses, groups, update=0)
    once = dro.weights.clone()
    dro(losses, groups, update=0)
    dro.eval()
    dro(losses, groups, update=1)
    assert torch.equal(dro.weights, once)
    dro.train()
    dro(losses, groups, update=1)
    assert not torch.equal(dro.weights, once)


def test_the_gradient_is_that_of_the_weighted_sum_at_fixed_weights() -> None:
    dro = GroupDRO(2, step_size=0.5)
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    dro(losses, torch.tensor([0, 0, 1])).backward()
    torch.testing.assert_close(losses.grad, dro.weights[[0, 0, 1]] / torch.tensor([2.0, 2.0, 1.0]))


def test_two_ranks_have_the_weights_and_the_mean_loss_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two calls stand for the ranks, over which the sum is given. Rank 1 lacks group 1."""
    losses, groups = torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([0, 1, 0, 0])
    whole = GroupDRO(2, step_size=0.5)
    expected = whole(losses, groups)
    total = torch.tensor([[8.0, 3.0], [3.0, 1.0]])
    monkeypatch.setattr("toolkit.losses.group_dro.sum_across_ranks", lambda sums: total)
    monkeypatch.setattr("toolkit.losses.group_dro.world_size", lambda: 2)
    shares = []
    for rows in (slice(0, 2), slice(2, 4)):
        rank = GroupDRO(2, step_size=0.5)
        shares.append(rank(losses[rows], groups[rows]))
        torch.testing.assert_close(rank.weights, whole.weights)
    torch.testing.assert_close(torch.stack(shares).mean(), expected)


class Constant(nn.Module):
    """The same logits for every input."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(10))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)


def trained(group_dro: GroupDRO | None, **data: Any) -> tuple[ImageClassifier, L.Trainer]:
    model = ImageClassifier(
        Constant(), lambda parameters: torch.optim.SGD(parameters, lr=0.1), group_dro=group_dro
    )
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=Digits(train_size=100, batch_size=25, **data))
    return model, trainer


def test_a_classifier_trains_on_it_logs_its_weights_and_saves_them() -> None:
    spurious = Spurious(kind="patch", agreement=0.9, patch_size=2)
    model, trainer = trained(GroupDRO(20, step_size=0.5), spurious=spurious)
    weights = model.state_dict()["group_dro.weights"]
    assert len(weights.unique()) > 1
    logged = [float(trainer.callback_metrics[f"train/group_weight/{g}"]) for g in range(20)]
    assert logged == weights.tolist()
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(math.log(10), abs=0.2)


def test_data_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch must hold groups where group_dro is set"):
        trained(GroupDRO(2))


@pytest.mark.parametrize(
    ("losses", "groups", "message"),
    [
        (torch.ones(2), torch.tensor([0, 2]), "group ids must lie in 0..1, got 0..2"),
    ],
)
def test_ids_out_of_range_are_refused(losses: Tensor, groups: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupDRO(2)(losses, groups)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="num_groups must be at least 1 and step_size at least 0"):
        GroupDRO(2, step_size=-1.0)
