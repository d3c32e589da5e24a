"""scikit-learn's linear classifiers against scikit-learn alone, and in a federation."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, SGDClassifier
from sklearn.svm import LinearSVC

from pluribus.federated.data import Dataset, digits, split
from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.models import Batch, LocallyTrained, Softmax
from pluribus.federated.sklearn_model import SklearnLinear
from pluribus.federated.training import Hooks, LocalTraining, batches

HOW = LocalTraining(epochs=3, batch_size=7, lr=0.05)


def _data(classes=3, n=40, features=5):
    rng = np.random.default_rng(classes)
    y = rng.permutation(np.arange(n) % classes)
    return Dataset(rng.normal(size=(n, features)) + y[:, None], y, classes)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "estimator",
    [SGDClassifier(loss="log_loss", learning_rate="constant", eta0=9.0, alpha=0.01), SGDClassifier(), Perceptron()],
    ids=["log", "hinge", "perceptron"],
)
def test_online_training_is_sklearns_pass_over_the_same_order(estimator, classes):
    data = _data(classes)
    model = SklearnLinear(estimator, 5, classes)
    params = model.init(0)
    found = model.fit(params, data, HOW, 3)
    assert not params["coef_"].any()
    assert not hasattr(estimator, "coef_")
    own = estimator.__class__(**estimator.get_params()).set_params(shuffle=False, eta0=0.05)
    for batch in batches(data, HOW, 3):
        own.partial_fit(batch.x, batch.y, classes=np.arange(classes))
    np.testing.assert_allclose(found.params["coef_"], own.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.params["intercept_"], own.intercept_, rtol=1e-9)
    assert found.steps == 18
    np.testing.assert_array_equal(model.predict(found.params, data.x), own.predict(data.x))
    if hasattr(own, "predict_proba"):
        np.testing.assert_allclose(model.probabilities(found.params, data.x), own.predict_proba(data.x), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_goes_on_from_the_servers_coefficients(classes):
    data = _data(classes)
    model = SklearnLinear(LogisticRegression(C=0.7, tol=1e-7), 5, classes)
    whole = LogisticRegression(C=0.7, tol=1e-8, max_iter=500).fit(data.x, data.y)
    params = model.init(0)
    for _ in range(60):
        params = model.fit(params, data, LocalTraining(epochs=2), 0).params
    np.testing.assert_allclose(params["coef_"], whole.coef_, atol=1e-3)
    np.testing.assert_allclose(model.probabilities(params, data.x), whole.predict_proba(data.x), atol=1e-3)
    np.testing.assert_array_equal(model.predict(params, data.x), whole.predict(data.x))
    # From the optimum there is nothing to do: a start that were ignored would be seen.
    there = model.fit({"coef_": whole.coef_, "intercept_": whole.intercept_}, data, LocalTraining(epochs=1), 0)
    np.testing.assert_allclose(there.params["coef_"], whole.coef_, atol=1e-4)


@pytest.mark.parametrize("estimator", [LogisticRegression(), SGDClassifier(loss="log_loss")], ids=["warm", "online"])
def test_clients_that_lack_classes_train(estimator):
    data = _data(3)
    model = SklearnLinear(estimator, 5, 3)
    two = data.take(np.flatnonzero(data.y != 1))
    result = model.fit(model.init(0), two, HOW, 0)
    assert result.params["coef_"].shape == (3, 5)
    assert np.isfinite(result.loss)
    assert (model.predict(result.params, two.x) == two.y).mean() > 0.8
    one = model.fit(model.init(0), data.take(np.flatnonzero(data.y == 2)), HOW, 0)
    assert np.isfinite(one.params["coef_"]).all()


def test_weight_zero_is_as_absent():
    """The samples that tell the solver of classes move nothing."""
    data = _data(3)
    model = SklearnLinear(LogisticRegression(), 5, 3)
    found = model.fit(model.init(0), data, LocalTraining(epochs=100), 0).params
    own = LogisticRegression(max_iter=100).fit(data.x, data.y)
    np.testing.assert_allclose(found["coef_"], own.coef_, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_gradient_is_that_of_softmax(classes):
    data = _data(classes)
    model, plain = SklearnLinear(LogisticRegression(), 5, classes), Softmax(5, classes)
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    weight, bias = params["coef_"], params["intercept_"]
    if classes == 2:
        weight, bias = np.vstack([np.zeros((1, 5)), weight]), np.append(0.0, bias)
    batch = Batch(data.x, data.y, np.linspace(0, 1, 40))
    loss, grads = model.loss_and_grad(params, batch)
    wanted, slopes = plain.loss_and_grad({"output.weight": weight, "output.bias": bias}, batch)
    assert loss == pytest.approx(wanted)
    np.testing.assert_allclose(grads["coef_"], slopes["output.weight"][-len(grads["coef_"]) :], atol=1e-12)
    np.testing.assert_allclose(grads["intercept_"], slopes["output.bias"][-len(grads["coef_"]) :], atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "least"), [(LogisticRegression(), 0.93), (SGDClassifier(loss="log_loss", alpha=1e-3), 0.88)]
)
def test_a_federation_of_them_learns_digits(estimator, least):
    parts = split(digits(), seed=0)
    model = SklearnLinear(estimator, 64, 10)
    assert isinstance(model, LocallyTrained)
    params = model.init(0)
    shards = [parts.train.take(np.arange(k, len(parts.train), 5)) for k in range(5)]
    for number in range(5):
        results = [model.fit(params, shard, LocalTraining(epochs=5, lr=0.1), number).params for shard in shards]
        params = {name: np.mean([result[name] for result in results], axis=0) for name in params}
    assert (model.predict(params, parts.test.x) == parts.test.y).mean() > least


def test_what_it_cannot_do_is_told():
    data, model = _data(3), SklearnLinear(SGDClassifier(), 5, 3)
    params = model.init(0)
    with pytest.raises(SettingError, match=r"cannot go on from given coefficients"):
        SklearnLinear(LinearRegression(), 5, 3)
    with pytest.raises(SettingError, match=r"liblinear"):
        SklearnLinear(LogisticRegression(solver="liblinear"), 5, 3)
    with pytest.raises(SettingError, match=r"cannot go on"):
        SklearnLinear(LinearSVC(), 5, 3)
    with pytest.raises(SettingError, match=r"average=False"):
        SklearnLinear(SGDClassifier(average=True), 5, 3)
    with pytest.raises(SettingError, match=r"one of scikit-learn's"):
        SklearnLinear(SGDClassifier, 5, 3)
    with pytest.raises(SettingError, match=r"n_classes is 1"):
        SklearnLinear(SGDClassifier(), 5, 1)
    for how in (LocalTraining(momentum=0.5), LocalTraining(proximal_mu=1.0), LocalTraining(max_grad_norm=1.0)):
        with pytest.raises(SettingError, match="needs gradients"):
            model.fit(params, data, how, 0)
    with pytest.raises(SettingError, match=r"federated.Softmax"):
        model.fit(params, data, HOW, 0, hooks=Hooks(rate=lambda k, n: 1.0))
    with pytest.raises(SettingError, match=r"SGDClassifier gives no gradient"):
        model.loss_and_grad(params, Batch(data.x, data.y))
    with pytest.raises(DataError, match="no samples"):
        model.fit(params, data.take([]), HOW, 0)
    with pytest.raises(DataError, match=r"\(n, 5\)"):
        model.predict(params, np.zeros((2, 4)))
