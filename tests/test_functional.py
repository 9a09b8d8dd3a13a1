"""Reading fields, the log-spaced grid."""

import re

import pytest
import torch

from toolkit.functional import Fields, next_log_point

NAMES = ("logits", "targets", "indices")


def test_a_field_is_read_under_its_name_another_key_or_by_a_callable() -> None:
    batch = {"targets": torch.tensor([1]), "label": torch.tensor([2])}
    assert Fields(NAMES).read("targets", batch).item() == 1
    assert Fields(NAMES, {"targets": "label"}).read("targets", batch).item() == 2
    first = Fields(NAMES, {"targets": lambda pair: pair[1]})
    assert first.read("targets", (None, torch.tensor([3]))).item() == 3


def test_a_missing_field_is_named_with_what_is_there() -> None:
    message = "a batch must hold the tensor 'indices', got ['targets']. Name the key or give a "
    message += "callable: fields={'indices': ...}, or None if there is none."
    with pytest.raises(ValueError, match=re.escape(message)):
        Fields(NAMES).read("indices", {"targets": torch.tensor([1])})
    with pytest.raises(ValueError, match="must hold the tensor 'logits', got Tensor"):
        Fields(NAMES).read("logits", torch.tensor(1.0), "the outputs of a train step")


def test_an_unknown_field_name_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"got 'target'\. Did you mean 'targets'"):
        Fields(NAMES, {"target": "label"})


def test_an_absent_field_is_none_and_asks_nothing_of_the_batch() -> None:
    fields = Fields(NAMES, {"indices": None})
    assert fields.is_absent("indices")
    assert fields.read_unless_absent("indices", {}) is None


def test_the_grid_has_each_rounded_power_once() -> None:
    points = [0]
    while points[-1] < 1000:
        points.append(next_log_point(points[-1], 4))
    expected = sorted({round(10 ** (k / 4)) for k in range(13)})
    assert points[1:] == expected == [1, 2, 3, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000]
    assert next_log_point(40, 4) == 56
