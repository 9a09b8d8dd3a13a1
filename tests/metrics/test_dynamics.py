"""Scores of how examples are learnt, on sequences written by hand and against slow references."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from toolkit.metrics import (
    NOT_VISITED,
    SCORES,
    ExampleHistory,
    first_learned_epoch,
    forgetting_score,
    learned_for_good_epoch,
    score_means,
)

NEVER = None  # an epoch without a visit

BY_HAND = [  # correctness by epoch: forgetting score, first learned, learned for good
    ([0, 0, 0, 0], 0, 5, 5),
    ([1, 1, 1, 1], 0, 1, 1),
    ([0, 0, 1, 1], 0, 3, 3),
    ([1, 0, 1, 0], 2, 1, 5),
    ([0, 1, 0, 1], 1, 2, 4),
    ([1, 0, 0, 0], 1, 1, 5),
    ([0, 0, 0, 1], 0, 4, 4),
    ([1, NEVER, 0, 1], 1, 1, 4),
    ([1, NEVER, 1, NEVER], 0, 1, 1),
    ([NEVER, 0, NEVER, 1], 0, 4, 4),
    ([NEVER, 1, 0, NEVER], 1, 2, 5),
    ([NEVER, NEVER, NEVER, NEVER], math.nan, math.nan, math.nan),
]


def tensor_of(sequences):
    rows = [[NOT_VISITED if right is NEVER else right for right in seq] for seq in sequences]
    return torch.tensor(rows, dtype=torch.uint8).T


def references(sequence):
    """The three scores of one example by their definitions, from its visits alone."""
    visits = [(epoch, right) for epoch, right in enumerate(sequence, start=1) if right is not NEVER]
    if not visits:
        return (math.nan,) * 3
    flips = sum(a == 1 and b == 0 for (_, a), (_, b) in itertools.pairwise(visits))
    first = min((epoch for epoch, right in visits if right), default=len(sequence) + 1)
    for_good = [e for e, right in visits if right and all(r for k, r in visits if k >= e)]
    return flips, first, min(for_good, default=len(sequence) + 1)


def scores_of(correct):
    return [f(correct) for f in (forgetting_score, first_learned_epoch, learned_for_good_epoch)]


def test_scores_of_sequences_written_by_hand():
    sequences, *expected = zip(*BY_HAND, strict=True)
    for score, values in zip(scores_of(tensor_of(sequences)), expected, strict=True):
        np.testing.assert_array_equal(score, values)


@pytest.mark.parametrize("epochs", [1, 2, 7, 30])
def test_scores_agree_with_their_definitions_on_random_sequences(epochs):
    rng = np.random.default_rng(epochs)
    sequences = rng.choice([0, 1, NEVER], size=(200, epochs), p=[0.4, 0.45, 0.15]).tolist()
    expected = np.array([references(sequence) for sequence in sequences]).T
    for score, values in zip(scores_of(tensor_of(sequences)), expected, strict=True):
        np.testing.assert_array_equal(score, values)


def test_learned_for_good_is_first_learned_just_where_nothing_was_forgotten():
    correct = torch.from_numpy(np.random.default_rng(0).integers(2, size=(5, 400)))
    forgotten, first, good = scores_of(correct)
    assert bool((good >= first).all())
    assert torch.equal(good == first, forgotten == 0)


def test_booleans_are_taken_and_other_numbers_refused():
    correct = torch.tensor([[True], [False], [True]])
    assert [float(score) for score in scores_of(correct)] == [1, 1, 3]
    message = "correct must hold 0, 1 and 255 (not visited), got 2. Compare predictions"
    with pytest.raises(ValueError, match=re.escape(message)):
        forgetting_score(torch.tensor([[1], [2]]))


def test_means_leave_out_what_was_never_visited_and_an_empty_cluster_is_nan():
    scores = {"forgetting_score": torch.tensor([1.0, 2.0, math.nan, 6.0])}
    means = score_means(scores, torch.tensor([0, 0, 0, -1]))
    assert means["forgetting_score"] == 3
    assert means["forgetting_score/fast"] == 1.5
    assert means["forgetting_score/slow"].isnan()
    assert list(score_means(scores)) == ["forgetting_score"]


def put(history, epoch, indices, losses, correct):
    numbers = torch.tensor(losses)
    history.put(
        epoch,
        torch.tensor(indices),
        torch.tensor(indices) % 2,
        loss=numbers,
        correct=torch.tensor(correct),
        margin=-numbers,
    )


def test_history_holds_what_was_put_and_says_what_was_not_visited():
    history = ExampleHistory()
    history.reserve(num_epochs=3, num_examples=4)
    put(history, 0, [3, 1], [0.5, 0.25], [1, 0])
    put(history, 1, [1], [2.0], [1])
    nan = math.nan
    np.testing.assert_array_equal(
        history.loss, np.array([[nan, 0.25, nan, 0.5], [nan, 2, nan, nan], [nan] * 4])
    )
    np.testing.assert_array_equal(history.margin, -history.loss)
    assert history.correct.tolist() == [[255, 0, 255, 1], [255, 1, 255, 255], [255] * 4]
    assert history.targets.tolist() == [-1, 1, -1, 1]
    assert history.num_epochs == 2
    # The epoch without a visit that is still to come plays no part: never is 2 + 1.
    np.testing.assert_array_equal(history.scores()["first_learned"], [nan, 2, nan, 1])


def test_an_epoch_put_again_replaces_the_first():
    history = ExampleHistory()
    put(history, 0, [0, 1], [0.5, 0.5], [1, 1])
    put(history, 0, [1], [0.25], [0])
    assert history.correct[0].tolist() == [255, 0]


def test_history_grows_where_more_comes_than_was_announced():
    announced, surprised = ExampleHistory(), ExampleHistory()
    announced.reserve(6, 8)
    for epoch in range(6):
        for history in (announced, surprised):
            put(history, epoch, [epoch, epoch + 2], [float(epoch), 1.0], [1, epoch % 2])
    for name, value in announced.state_dict().items():
        assert torch.equal(value.nan_to_num(-9), surprised.state_dict()[name].nan_to_num(-9))


def test_a_restored_history_goes_on_as_the_first(tmp_path):
    whole, first, second = ExampleHistory(), ExampleHistory(), ExampleHistory()
    for history in (whole, first):
        history.reserve(4, 5)
        put(history, 0, [0, 4], [0.5, 0.25], [1, 0])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    assert len(first.state_dict()["loss"].untyped_storage()) == 4 * 5  # no room for what may come
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.reserve(4, 5)
    for history in (whole, second):
        put(history, 1, [4, 2], [0.125, 1.0], [1, 1])
        history.save(tmp_path / f"{history is whole}.npz", torch.tensor([0, 1, 1]))
    assert (tmp_path / "True.npz").read_bytes() == (tmp_path / "False.npz").read_bytes()


def test_the_archive_holds_epochs_done_scores_and_clusters(tmp_path):
    history = ExampleHistory()
    history.reserve(9, 4)
    put(history, 0, [0, 1], [0.5, 0.25], [1, 0])
    put(history, 1, [0, 1], [0.5, 0.25], [0, 0])
    history.save(tmp_path / "examples.npz", torch.tensor([1, 0]))
    with np.load(tmp_path / "examples.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    assert set(arrays) == {"loss", "correct", "margin", "targets", "cluster", *SCORES}
    assert arrays["loss"].shape == arrays["margin"].shape == arrays["correct"].shape == (2, 4)
    assert (arrays["loss"].dtype, arrays["correct"].dtype) == (np.float32, np.uint8)
    assert arrays["cluster"].tolist() == [1, 0, -1, -1]
    np.testing.assert_array_equal(arrays["forgetting_score"], [1, 0, math.nan, math.nan])
    np.testing.assert_array_equal(arrays["learned_for_good"], [3, 3, math.nan, math.nan])


def test_negative_indices_are_refused():
    with pytest.raises(ValueError, match=r"indices must be positions in the data set, got -1\."):
        put(ExampleHistory(), 0, [-1], [0.0], [1])
