"""torch tensors and state dicts: what goes in as torch comes out as torch."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")


def states(n=5):
    torch.manual_seed(0)
    found = []
    for i in range(n):
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        net[1].num_batches_tracked.fill_(400_000 + i)
        found.append(net.state_dict())
    return found


@pytest.mark.parametrize(
    "rule", [rules.Mean(), rules.Median(), rules.Krum(f=1), rules.NNM(f=1) >> rules.Median()], ids=str
)
def test_a_state_dict_comes_out_as_one(rule):
    xs = states()
    found = rule(xs)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    net.load_state_dict(found.value)
    assert found.value["1.num_batches_tracked"].dtype == torch.int64
    assert 400_000 <= int(found.value["1.num_batches_tracked"]) <= 400_004
    assert not found.value["0.weight"].requires_grad
    plain = rule([{k: v.numpy() for k, v in x.items()} for x in xs])
    np.testing.assert_array_equal(found.value["0.weight"].numpy(), plain.value["0.weight"])


def test_counters_do_not_enter_distances():
    xs = states()
    relation = rules.Krum(f=1)(xs).relation
    assert relation.squared_distances.max() < 100


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_dtypes(dtype):
    kind = getattr(torch, dtype)
    xs = [torch.arange(12).reshape(3, 4).to(kind) * (i + 1) for i in range(3)]
    for rule in ("mean", "median"):
        value = aggregate(xs, rule).value
        assert value.dtype == kind
        assert torch.equal(value, xs[1])


def test_bfloat16_rounds_to_nearest_even():
    g = torch.Generator().manual_seed(1)
    xs = [torch.randn(1000, generator=g).bfloat16() for _ in range(7)]
    expected = torch.stack([x.double() for x in xs]).mean(0).float().bfloat16()
    assert torch.equal(aggregate(xs).value, expected)


def test_gradients_views_and_parameters():
    base = torch.randn(6, 4, requires_grad=True)
    xs = [base.t(), torch.nn.Parameter(base.detach().t().clone()), base.t()[:, :].conj()]
    np.testing.assert_allclose(aggregate(xs).value.numpy(), base.detach().t().numpy(), rtol=1e-6)


def test_sparse_is_refused():
    with pytest.raises(ValueError, match="to_dense"):
        aggregate([torch.eye(2).to_sparse()] * 2)


def test_a_fold_gives_torch():
    found = rules.Mean().fold().add(torch.ones(2).bfloat16()).add(torch.zeros(2).bfloat16()).result().value
    assert torch.equal(found, torch.full((2,), 0.5).bfloat16())
