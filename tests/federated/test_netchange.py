"""Wider and deeper networks compute what they did, and the ways back are exact."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pluribus.core.errors import RuleError
from pluribus.federated.netchange import Layer, deepen, narrow, outputs, shallower, widen


def network(sizes=(5, 4, 3, 2), seed=0):
    rng = np.random.default_rng(seed)
    return [Layer(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in pairwise(sizes)]


X = np.random.default_rng(9).normal(size=(20, 5))


@pytest.mark.parametrize("widths", [(4, 3), (8, 3), (9, 7), (4, 11)])
def test_wider_is_the_same_function_and_comes_back(widths):
    net = network()
    wide = widen(net, widths)
    assert [len(layer.bias) for layer in wide] == [*widths, 2]
    assert_allclose(outputs(wide, X), outputs(net, X), atol=1e-6)
    for layer, before in zip(narrow(wide, (4, 3)), net, strict=True):
        assert_allclose(layer.weight, before.weight, atol=1e-12)
        assert_allclose(layer.bias, before.bias, atol=1e-12)


def test_deeper_is_the_same_function_and_comes_back():
    net = network()
    deep = deepen(net, 5)
    assert len(deep) == 6
    assert_allclose(outputs(deep, X), outputs(net, X), atol=1e-12)
    both = widen(deep, (6, 5, 5, 7, 3))
    assert_allclose(outputs(both, X), outputs(net, X), atol=1e-12)
    for layer, before in zip(shallower(deep, 2), net, strict=True):
        np.testing.assert_array_equal(layer.weight, before.weight)


def test_narrowing_written_out():
    net = network((3, 5, 2))
    small = narrow(net, (2,))
    assert_allclose(small[0].weight[0], net[0].weight[[0, 2, 4]].mean(axis=0))
    assert_allclose(small[0].bias[1], net[0].bias[[1, 3]].mean())
    assert_allclose(small[1].weight[:, 0], net[1].weight[:, [0, 2, 4]].sum(axis=1))
    np.testing.assert_array_equal(small[1].bias, net[1].bias)


def test_what_does_not_fit_is_told():
    net = network()
    with pytest.raises(RuleError, match="layer 0 has 4 neurons; widen makes no 3"):
        widen(net, (3, 3))
    with pytest.raises(RuleError, match="layer 1 has 3 neurons; narrow makes no 4"):
        narrow(net, (4, 4))
    with pytest.raises(RuleError, match="needs as many widths, not 1"):
        widen(net, (4,))
    with pytest.raises(RuleError, match="takes one, and grows"):
        deepen(net[-1:], 1)
    with pytest.raises(RuleError, match="narrow the layers to one width first"):
        shallower(net, 1)
