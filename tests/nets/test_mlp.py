"""The fully connected net against products of matrices, its size, and refusals."""

import pytest
import torch

from toolkit.nets import MLP


def test_three_layers_are_products_of_matrices_with_the_negative_set_to_zero():
    net = MLP(12, 4, [8, 6])
    inputs = torch.randn(5, 3, 2, 2)
    hidden = inputs.reshape(5, 12)
    weights = [p.detach() for p in net.parameters()]
    for k in range(3):
        hidden = hidden @ weights[2 * k].T + weights[2 * k + 1]
        hidden = hidden.clamp_min(0) if k < 2 else hidden
    torch.testing.assert_close(net(inputs), hidden)


def test_number_of_parameters_is_that_of_the_sizes():
    count = sum(p.numel() for p in MLP(3072, 10, [512, 256]).parameters())
    assert count == 3072 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10
    assert [tuple(p.shape) for p in MLP(7, 2).parameters()] == [(2, 7), (2,)]


@pytest.mark.parametrize("sizes", [(0, 10, [3]), (4, 0, [3]), (4, 10, [3, 0])])
def test_a_size_below_one_is_refused(sizes):
    with pytest.raises(ValueError, match="must be at least 1, got"):
        MLP(*sizes)


def test_inputs_of_another_size_are_refused_with_theirs():
    with pytest.raises(ValueError, match=r"12 values each, got 16 of shape \(1, 4, 4\)\. Set in"):
        MLP(12, 4)(torch.zeros(2, 1, 4, 4))
