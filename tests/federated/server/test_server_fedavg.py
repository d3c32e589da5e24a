import numpy as np
import pytest
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAvg

DELTAS = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])


def moved(rule, clients=(0, 2, 3), n_clients=5):
    one = plain(DELTAS, sizes=[1, 3, 6], clients=clients, n_clients=n_clients)
    state = rule.step(rule.init({"w": np.array([10.0, 20.0])}, n_clients), one)
    return state["params"]["w"] - [10.0, 20.0], state["weights"]


@pytest.mark.parametrize(
    ("weighting", "counted"), [("size", [0.1, 0.3, 0.6]), ("uniform", [1 / 3] * 3), ("all", [0.2] * 3)]
)
def test_the_three_averages(weighting, counted):
    change, weights = moved(FedAvg(server_lr=0.5, weighting=weighting))
    np.testing.assert_allclose(change, 0.5 * np.array(counted) @ DELTAS, rtol=1e-13)
    np.testing.assert_allclose(weights, [counted[0], np.nan, counted[1], counted[2], np.nan], rtol=1e-13)


def test_bad_options():
    with pytest.raises(RuleError, match="server_lr must be a positive number, not -1"):
        FedAvg(server_lr=-1)
    with pytest.raises(RuleError, match="weighting must be one of 'size', 'uniform', 'all', not 'sizes'"):
        FedAvg(weighting="sizes")
