"""Which word a slip stands for."""

import pytest

from toolkit.suggest import listed, nearest, spelling_distance


@pytest.mark.parametrize(
    ("typed", "meant", "cost"),
    [
        ("momentum", "momentum", 0.0),
        ("momentm", "momentum", 0.9),
        ("mommentum", "momentum", 0.8),
        ("moxmentum", "momentum", 1.0),
        ("momnetum", "momentum", 0.9),
        ("momentun", "momentum", 1.2),
        ("sgd", "SGD", 0.9),
        ("weight-decay", "weight_decay", 0.3),
        ("", "ab", 1.8),
    ],
)
def test_each_slip_has_its_cost(typed: str, meant: str, cost: float) -> None:
    assert spelling_distance(typed, meant) == pytest.approx(cost)


def test_the_nearest_word_wins_and_far_ones_are_not_suggested() -> None:
    words = ["lr", "momentum", "dampening", "nesterov", "weight_decay"]
    assert nearest("lrr", words) == "lr"
    assert nearest("nestrov", words) == "nesterov"
    assert nearest("colour", words) is None
    assert nearest("x", words) is None
    assert nearest("anything", []) is None


def test_a_tie_goes_to_the_first_candidate() -> None:
    assert nearest("val", ["vale", "vala"]) == "vale"


def test_long_lists_are_cut_with_the_number_left_out() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed("abcdef", 3) == "a, b, c, and 3 more"
    assert listed([]) == "none"
