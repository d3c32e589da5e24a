"""scikit-learn's linear classifiers as models: their coefficients are the tree, their own solvers train."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Batch, Tree, cross_entropy, features, softmax
from pluribus.federated.seeding import derived
from pluribus.federated.training import UNCHANGED, Hooks, LocalResult, LocalTraining, batches, refuse_empty


@dataclass(frozen=True, eq=False)
class SklearnLinear:
    """A linear classifier with ``coef_`` and ``intercept_``: ``SGDClassifier``, ``LogisticRegression`` and their like.

    The tree holds ``coef_`` ``(n_classes, n_features)`` and ``intercept_`` ``(n_classes,)`` in float64, with one row
    instead of two for two classes, as scikit-learn has them; ``init`` gives zeros. The estimator serves as a recipe and
    is never fitted itself. Clients that lack classes are welcome.

    *With* ``partial_fit`` (``SGDClassifier``, ``Perceptron``) a client goes through its samples one by one, in the
    batches' order. An ``eta0`` is the training's ``lr``; schedules start anew in every round.
    *With* ``warm_start`` (``LogisticRegression``, any solver but liblinear) the solver goes on from the server's
    coefficients, for as many iterations as the training has epochs (or steps).
    The reported loss is the mean ``-log p`` of the client's samples after training. Momentum, a proximal part, clipping
    and client methods that change steps need gradients, which scikit-learn does not give: they are an error that says
    so, and `Softmax` is the same model with them.
    """

    estimator: Any
    n_features: int
    n_classes: int

    def __post_init__(self) -> None:
        for name, least in (("n_features", 1), ("n_classes", 2)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "get_params"):
            raise SettingError(f"estimator is {self.estimator!r}; expected one of scikit-learn's, e.g. SGDClassifier()")
        options = self.estimator.get_params()
        if not (self._online or "warm_start" in options) or options.get("solver") == "liblinear":
            raise SettingError(
                f"{self.estimator!r} cannot go on from given coefficients; take a linear classifier with partial_fit "
                "(SGDClassifier) or warm_start (LogisticRegression, any solver but liblinear)"
            )
        if options.get("average"):
            raise SettingError("the estimator averages its coefficients over steps; set average=False")

    def init(self, seed: int) -> Tree:
        """Zeros."""
        del seed
        rows = 1 if self.n_classes == 2 else self.n_classes
        return {"coef_": np.zeros((rows, self.n_features)), "intercept_": np.zeros(rows)}

    def fit(
        self, params: Tree, dataset: Dataset, how: LocalTraining, seed: int, *, hooks: Hooks = UNCHANGED
    ) -> LocalResult:
        """Local training by the estimator's own solver; what `training.train` calls. Nothing given is modified."""
        refuse_empty(dataset)
        for name, unused in (("momentum", 0), ("proximal_mu", 0), ("max_grad_norm", None)):
            if getattr(how, name) != unused:
                raise SettingError(
                    f"{name}={getattr(how, name)} needs gradients, which scikit-learn does not give; leave it out, or "
                    "take federated.Softmax"
                )
        if hooks != UNCHANGED:
            raise SettingError(
                "a client method that changes steps cannot change scikit-learn's; take federated.Softmax"
            )
        made = self._recipe(how, seed)
        steps = (
            self._online_fit(made, params, dataset, how, seed)
            if self._online
            else self._warm_fit(made, params, dataset)
        )
        reached = {name: np.array(getattr(made, name)) for name in params}
        shares = self.probabilities(reached, dataset.x)[np.arange(len(dataset)), dataset.y]
        return LocalResult(reached, float(-np.log(np.maximum(shares, np.finfo(np.float32).tiny)).mean()), steps)

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean ``-log p`` and its gradient without the penalty, for ``LogisticRegression`` and its like.

        What servers that look at samples of their own need. Raises ``SettingError`` for estimators whose probabilities
        are no softmax of their scores.
        """
        if self._online:
            raise SettingError(f"{type(self.estimator).__name__} gives no gradient; take federated.Softmax")
        x, scores = self._features(batch.x), self.scores(params, batch.x)
        loss, slope = cross_entropy(scores, batch)
        slope = slope[:, -len(params["intercept_"]) :]
        return loss, {"coef_": slope.T @ x, "intercept_": slope.sum(axis=0)}

    def scores(self, params: Tree, x: Array) -> Array:
        """``x coef' + intercept``, shape ``(n, n_classes)``; the first of two classes scores 0."""
        with np.errstate(all="ignore"):
            scores: Array = self._features(x) @ params["coef_"].T + params["intercept_"]
        return scores if self.n_classes > 2 else np.hstack([np.zeros_like(scores), scores])

    def predict(self, params: Tree, x: Array) -> NDArray[np.int64]:
        """The class of the highest score, shape ``(n,)``; the lowest of equals."""
        classes: NDArray[np.int64] = np.argmax(self.scores(params, x), axis=1)
        return classes

    def probabilities(self, params: Tree, x: Array) -> Array:
        """The estimator's ``predict_proba``, shape ``(n, n_classes)``; without one (hinge), softmax of the scores."""
        if not self._online or not hasattr(self.estimator, "predict_proba"):
            return softmax(self.scores(params, x))
        from sklearn.base import clone

        made = self._filled(clone(self.estimator), params)
        with np.errstate(all="ignore"):
            return np.asarray(made.predict_proba(self._features(x)))

    @property
    def _online(self) -> bool:
        return hasattr(self.estimator, "partial_fit")

    def _recipe(self, how: LocalTraining, seed: int) -> Any:
        from sklearn.base import clone

        made = clone(self.estimator)
        iterations = how.epochs if how.steps is None else how.steps
        wanted: dict[str, Any] = {"random_state": derived(seed, "training.sklearn") % 2**31}
        wanted |= {"shuffle": False, "eta0": how.lr} if self._online else {"warm_start": True, "max_iter": iterations}
        return made.set_params(**{name: value for name, value in wanted.items() if name in made.get_params()})

    def _filled(self, made: Any, params: Tree) -> Any:
        made.classes_, made.n_features_in_ = np.arange(self.n_classes), self.n_features
        made.coef_, made.intercept_ = np.array(params["coef_"]), np.array(params["intercept_"])
        return made

    def _online_fit(self, made: Any, params: Tree, dataset: Dataset, how: LocalTraining, seed: int) -> int:
        """All batches in one call, which goes through them once, sample by sample, whatever their bounds."""
        seen = list(batches(dataset, how, seed))
        x, y = self._features(np.concatenate([b.x for b in seen])), np.concatenate([b.y for b in seen])
        made.partial_fit(x[:1], y[:1], classes=np.arange(self.n_classes))  # makes what it keeps between two calls
        made.coef_[...], made.intercept_[...], made.t_ = params["coef_"], params["intercept_"], 1.0
        made.partial_fit(x, y)
        return len(seen)

    def _warm_fit(self, made: Any, params: Tree, dataset: Dataset) -> int:
        """One sample more of each class, of weight zero, lets the solver know of classes that the client lacks."""
        from sklearn.exceptions import ConvergenceWarning

        x = np.concatenate([self._features(dataset.x), np.zeros((self.n_classes, self.n_features))])
        y = np.concatenate([dataset.y, np.arange(self.n_classes)])
        weight = np.concatenate([np.ones(len(dataset)), np.zeros(self.n_classes)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a client need not come to the end in one round
            self._filled(made, params).fit(x, y, sample_weight=weight)
        return max(1, int(np.max(made.n_iter_)))

    def _features(self, x: Array) -> Array:
        return features(x, self.n_features, "float64")
