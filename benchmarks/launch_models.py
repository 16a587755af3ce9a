"""Models of how long a message takes with given launch parameters, and how good they are: for `launch.py`.

What Zheng and Mengshoel (KDD 2013) tried, support vector regression and a polynomial Lasso, and gradient boosting.
Everything is learned from logarithms: of entries of the separator, of terms an entry, of K, of p_a, and of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

Floats = npt.NDArray[np.float64]

# Rows that a support vector machine, whose time grows with their square, learns from.
SVR_ROWS = 6000
DEGREE = 3
FOLDS = 10


def features(messages: Any, settings: Any) -> Floats:
    """Return [rows, 4]; messages: [rows, 2] entries of separator and clique. settings: [rows, 2] K and p_a."""
    separator, clique = np.asarray(messages, dtype=np.float64).T
    threads, together = np.asarray(settings, dtype=np.float64).T
    return np.log2(np.stack([separator, clique / separator, threads, together], axis=1))


class Svr:
    """Their support vector regression: radial basis functions, C = 10, epsilon = 0.001.

    gamma: one over the mean squared distance of two rows (features standardised: 1 / 8), unless it is given.
    """

    def __init__(self, gamma: float | None = None) -> None:
        self._gamma = gamma

    def fit(self, x: Floats, y: Floats) -> Svr:
        chosen = np.random.default_rng(0).permutation(len(x))[:SVR_ROWS]
        gamma = self._gamma or 1 / (2 * x.shape[1])
        self._model = make_pipeline(StandardScaler(), SVR(kernel="rbf", C=10, epsilon=0.001, gamma=gamma))
        self._model.fit(x[chosen], y[chosen])
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = self._model.predict(x)
        return found


class Lasso:
    """Polynomials of third degree: by least squares (lambda = 0), or with the largest lambda within a standard error.

    That of the lowest error in cross-validation over ten folds.
    """

    def __init__(self, one_se: bool) -> None:
        self._one_se = one_se

    def fit(self, x: Floats, y: Floats) -> Lasso:
        terms = (PolynomialFeatures(DEGREE, include_bias=False), StandardScaler())
        if not self._one_se:
            self._model = make_pipeline(*terms, LinearRegression()).fit(x, y)
            return self
        search = make_pipeline(*terms, LassoCV(alphas=40, cv=FOLDS, max_iter=5000, tol=1e-3, n_jobs=-1)).fit(x, y)[-1]
        mean = search.mse_path_.mean(axis=1)
        error = search.mse_path_.std(axis=1, ddof=1) / np.sqrt(FOLDS)
        best = int(mean.argmin())
        # Lambdas come in descending order.
        within = int(np.argmax(mean <= mean[best] + error[best]))
        from sklearn.linear_model import Lasso as Penalised

        penalised = Penalised(alpha=search.alphas_[within], max_iter=5000, tol=1e-3)
        self._model = make_pipeline(*terms, penalised).fit(x, y)
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = self._model.predict(x)
        return found


MODELS: dict[str, Callable[[], Any]] = {
    "SVR": Svr,
    "Lasso, lambda 0": lambda: Lasso(one_se=False),
    "Lasso, lambda 1se": lambda: Lasso(one_se=True),
    "gradient boosting": lambda: HistGradientBoostingRegressor(
        max_iter=400, learning_rate=0.1, max_leaf_nodes=31, min_samples_leaf=10, random_state=0
    ),
    "extra trees": lambda: ExtraTreesRegressor(200, min_samples_leaf=2, n_jobs=-1, random_state=0),
}


@dataclass(frozen=True)
class Grid:
    """Seconds [messages, settings] of every message (entries of separator and clique) with every setting; NaN where
    it was not measured."""

    messages: npt.NDArray[np.int64]
    settings: npt.NDArray[np.int64]
    seconds: Floats

    def rows(self) -> tuple[Floats, Floats]:
        """Return features and the logarithm of seconds of all that was measured."""
        at, setting = np.nonzero(np.isfinite(self.seconds))
        return features(self.messages[at], self.settings[setting]), np.log2(self.seconds[at, setting])

    def predicted(self, model: Any) -> Floats:
        """Return what a model says of every message with every setting, as a logarithm; infinite if not measured."""
        count = len(self.settings)
        x = features(np.repeat(self.messages, count, axis=0), np.tile(self.settings, (len(self.messages), 1)))
        return np.where(np.isfinite(self.seconds), model.predict(x).reshape(self.seconds.shape), np.inf)

    def part(self, chosen: npt.NDArray[np.bool_]) -> Grid:
        return Grid(self.messages[chosen], self.settings, self.seconds[chosen])


@dataclass(frozen=True)
class Quality:
    """Of a model on messages that it has not seen: residual sum of squares (of log2 seconds) a measurement, squared
    deviance from the best time (equation 13) a message in square microseconds, and share of messages that miss the best
    setting (equation 14)."""

    rss: float
    deviance: float
    missed: float


def choices(grid: Grid, model: Any) -> npt.NDArray[np.int64]:
    """Return the setting of each message that a model takes to be the fastest."""
    found: npt.NDArray[np.int64] = grid.predicted(model).argmin(axis=1)
    return found


def quality(grid: Grid, model: Any) -> Quality:
    x, y = grid.rows()
    residual = model.predict(x) - y
    chosen = choices(grid, model)
    best = np.nanargmin(grid.seconds, axis=1)
    lost = 1e6 * (grid.seconds[np.arange(len(chosen)), chosen] - np.nanmin(grid.seconds, axis=1))
    return Quality(float((residual**2).mean()), float((lost**2).mean()), float((chosen != best).mean()))


def mean_quality(found: Sequence[Quality]) -> Quality:
    return Quality(*(float(np.mean([getattr(each, name) for each in found])) for name in ("rss", "deviance", "missed")))
