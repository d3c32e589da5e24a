"""Rounds and trees that the tests of the server rules share."""

from __future__ import annotations

import numpy as np

from pluribus.federated.server import Round

# Each as the command line says it; together every server rule and kind of rule.
TEXTS = [
    "fedavg",
    "fedavg:weighting=uniform",
    "fedavg:weighting=all",
    "fedavg:server_lr=0.5",
    "fedavgm",
    "fedadam",
    "fedadam:bias_correction=true",
    "fedyogi",
    "fedadagrad",
    "feddisco",
    "feddisco:a=0.3:distance=l2:target=global",
    "fedau",
    "fedau:cutoff=3",
    "fedlaw:steps=3",
    "fedlaw:steps=3:gamma=1",
    "finetune:steps=3",
    "mean",
    "median",
    "median:weighting=size:server_lr=0.5",
    "trimmed_mean:f=1",
    "krum",
    "multi_krum",
    "geometric_median",
    "centered_clipping:radius=1",
    "clip:max_norm=1+median",
    "nnm+median",
    "nnm+multi_krum",
]


def model(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return {
        "layer.weight": rng.normal(size=(3, 2)).astype(dtype),
        "layer.bias": rng.normal(size=3).astype(dtype),
        "norm.running_var": rng.uniform(0.5, 2.0, size=3).astype(dtype),
        "norm.num_batches_tracked": np.array(400_000),
        "mask": np.array([True, False]),
    }


def update(params, rng, scale=0.1):
    """What a client that ends at another model of the same kind sends."""
    var = params["norm.running_var"]
    dtype = params["layer.weight"].dtype
    return {
        "layer.weight": (scale * rng.normal(size=(3, 2))).astype(dtype),
        "layer.bias": (scale * rng.normal(size=3)).astype(dtype),
        "norm.running_var": (rng.uniform(0.0, 2.0, size=3) - var).astype(dtype),
        "norm.num_batches_tracked": np.array(int(rng.integers(1, 9))),
    }


def quadratic(params, seed=9):
    """A proxy objective ``0.5 |w - t|^2`` over the trained tensors, with its gradient."""
    rng = np.random.default_rng(seed)
    target = {name: rng.normal(size=params[name].shape) for name in ("layer.weight", "layer.bias")}

    def loss(w):
        gaps = {name: np.asarray(w[name], dtype=np.float64) - goal for name, goal in target.items()}
        return 0.5 * sum(float((gap**2).sum()) for gap in gaps.values()), gaps

    return loss


def a_round(params, clients=(0, 1, 2, 3, 4, 5, 6), *, n_clients=8, number=0, seed=1, scale=0.1):
    """A round of the given clients; what client i sends depends on i, the number and the seed alone."""
    rngs = {i: np.random.default_rng([seed, number, i]) for i in clients}
    return Round(
        number=number,
        clients=tuple(clients),
        updates=[update(params, rngs[i], scale) for i in clients],
        sizes=np.array([10.0 + 3 * i for i in clients]),
        n_clients=n_clients,
        total_size=float(sum(10 + 3 * i for i in range(n_clients))),
        label_counts=np.array([rngs[i].integers(1, 30, size=4) for i in clients]).reshape(-1, 4),
        proxy=quadratic(params),
    )


def plain(deltas, sizes=None, clients=None, n_clients=None, **known):
    """A round of bare vectors under the name ``w``."""
    k = len(deltas)
    return Round(
        number=0,
        clients=tuple(range(k)) if clients is None else tuple(clients),
        updates=[{"w": np.asarray(delta, dtype=float)} for delta in deltas],
        sizes=np.ones(k) if sizes is None else np.asarray(sizes, dtype=float),
        n_clients=k if n_clients is None else n_clients,
        total_size=float(k),
        **known,
    )


def leaves(tree, prefix=""):
    """A state as a flat mapping from names to arrays."""
    found = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{name}/")
        else:
            found[prefix + name] = value
    return found


def nested(flat):
    tree = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return tree


def same_bits(one, other):
    one, other = leaves(one), leaves(other)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert one[name].shape == other[name].shape, name
        assert one[name].tobytes() == other[name].tobytes(), name
