"""Models of how long a message takes with given launch parameters, and how good they are: for `launch.py`.

What Zheng and Mengshoel (KDD 2013) tried, support vector regression and a polynomial Lasso, and two of our own time.
Everything is learned from logarithms: of entries of the separator, of terms an entry, of K, of p_a, and of seconds.
Ours also know how far apart neighbouring terms and entries lie in the clique table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor.cost.fit import fit as fit_prices
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

Floats = npt.NDArray[np.float64]

# Rows that a support vector machine, whose time grows with their square, learns from.
SVR_ROWS = 6000
DEGREE = 3
FOLDS = 10
# Of the device: multiprocessors, blocks and threads that each takes, threads of a warp, numbers of a part of a line.
MULTIPROCESSORS, MOST_BLOCKS, MOST_THREADS, WARP, SECTOR = 132, 32, 2048, 32, 8


def features(messages: Any, settings: Any, layouts: Any) -> Floats:
    """Return [rows, 7]: their four, then `layout_of` a message.

    messages: [rows, 2] entries of separator and clique. settings: [rows, 2] K and p_a. layouts: [rows, 3].
    """
    separator, clique = np.asarray(messages, dtype=np.float64).T
    threads, together = np.asarray(settings, dtype=np.float64).T
    return np.concatenate([np.log2([separator, clique / separator, threads, together]), np.asarray(layouts).T]).T


def layout_of(scope: Sequence[int], separator: Sequence[int], sizes: Sequence[int]) -> tuple[float, float, float]:
    """Return logarithms: how far apart neighbouring terms and neighbouring entries lie, and how many terms in a row."""
    strides = {v: math.prod(sizes[u] for u in scope[at + 1 :]) for at, v in enumerate(scope)}
    terms = [v for v in scope if v not in separator]
    inner = list(takewhile(lambda v: v not in separator, reversed(scope)))
    apart = strides[terms[-1]] if terms else 1, strides[separator[-1]] if separator else 1
    return math.log2(apart[0]), math.log2(apart[1]), math.log2(math.prod(sizes[v] for v in inner))


class Svr:
    """Their support vector regression: radial basis functions, C = 10, epsilon = 0.001.

    gamma: one over the mean squared distance of two rows (features standardised: 1 / 8), unless it is given.
    """

    def __init__(self, gamma: float | None = None) -> None:
        self._gamma = gamma

    def fit(self, x: Floats, y: Floats) -> Svr:
        chosen = np.random.default_rng(0).permutation(len(x))[:SVR_ROWS]
        gamma = self._gamma or 1 / 8
        self._model = make_pipeline(StandardScaler(), SVR(kernel="rbf", C=10, epsilon=0.001, gamma=gamma))
        self._model.fit(x[chosen, :4], y[chosen])
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = self._model.predict(x[:, :4])
        return found


class Lasso:
    """Polynomials of third degree: by least squares (lambda = 0), or with the largest lambda within a standard error.

    That of the lowest error in cross-validation over ten folds.
    """

    def __init__(self, one_se: bool) -> None:
        self._one_se = one_se

    def fit(self, x: Floats, y: Floats) -> Lasso:
        x = x[:, :4]
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
        found: Floats = self._model.predict(x[:, :4])
        return found


class PricesAndTrees:
    """Prices of counts of work (as for our own kernels), and extremely randomised trees for the error of what they say.

    Prices go on beyond what was measured, trees do not.
    """

    def fit(self, x: Floats, y: Floats) -> PricesAndTrees:
        self._prices = fit_prices(work(x), 2.0**y, np.zeros(len(y)))
        self._trees = ExtraTreesRegressor(100, n_jobs=-1, random_state=0)
        self._trees.fit(self._wide(x), y - np.log2(work(x) @ self._prices))
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = np.log2(work(x) @ self._prices) + self._trees.predict(self._wide(x))
        return found

    def _wide(self, x: Floats) -> Floats:
        separator, terms, threads, together = x[:, :4].T
        return np.column_stack([x, x[:, 4] == 0, separator + terms, threads - together, terms - together])


def work(x: Floats) -> Floats:
    """Return counts of work: rounds and steps of blocks, one after the other and in all, and parts of lines touched."""
    separator, terms, threads, together = (2.0 ** x[:, :4]).T
    blocks, each = np.ceil(separator * together / threads), np.ceil(terms / together)
    halvings = np.log2(together)
    at_once = MULTIPROCESSORS * np.minimum(MOST_BLOCKS, MOST_THREADS / threads)
    rounds = np.ceil(blocks / at_once)
    steps = each + 2 * halvings + 4
    spread = blocks * steps * threads / (MULTIPROCESSORS * MOST_THREADS)
    # A warp: its threads that share an entry, and the entries that it has.
    sharing, shares = together > 1, np.minimum(together, WARP)
    apart, next_apart = (np.minimum(SECTOR, 2.0**each) for each in (x[:, 4], x[:, 5]))
    clique = np.maximum(1, np.where(sharing, shares * apart, WARP * next_apart) / SECTOR) * WARP / shares
    clique = np.where(sharing, clique, clique / WARP)
    listed = np.where(sharing, np.maximum(1, shares / SECTOR) * WARP / shares, np.minimum(WARP, WARP * terms / SECTOR))
    loads = separator * terms / WARP
    few = separator * terms * np.clip(each, 1, SECTOR) * (together < SECTOR)
    columns = [np.ones_like(each), rounds * each, rounds * halvings, rounds, blocks, separator * terms, separator]
    columns += [spread, np.maximum(steps, spread), each, halvings, threads / WARP, few, loads * clique, loads * listed]
    return np.column_stack(columns)


MODELS: dict[str, Callable[[], Any]] = {
    "SVR": Svr,
    "Lasso, lambda 0": lambda: Lasso(one_se=False),
    "Lasso, lambda 1se": lambda: Lasso(one_se=True),
    "extra trees": lambda: ExtraTreesRegressor(100, n_jobs=-1, random_state=0),
    "prices and trees": PricesAndTrees,
}


@dataclass(frozen=True)
class Grid:
    """Seconds [messages, settings] of every message (entries of separator and clique) with every setting; NaN where
    it was not measured."""

    messages: npt.NDArray[np.int64]
    settings: npt.NDArray[np.int64]
    seconds: Floats
    layouts: Floats

    def rows(self) -> tuple[Floats, Floats]:
        """Return features and the logarithm of seconds of all that was measured."""
        at, setting = np.nonzero(np.isfinite(self.seconds))
        return features(self.messages[at], self.settings[setting], self.layouts[at]), np.log2(self.seconds[at, setting])

    def predicted(self, model: Any) -> Floats:
        """Return what a model says of every message with every setting, as a logarithm; infinite if not measured."""
        count = len(self.settings)
        messages, layouts = (np.repeat(each, count, axis=0) for each in (self.messages, self.layouts))
        x = features(messages, np.tile(self.settings, (len(self.messages), 1)), layouts)
        return np.where(np.isfinite(self.seconds), model.predict(x).reshape(self.seconds.shape), np.inf)

    def part(self, chosen: npt.NDArray[np.bool_]) -> Grid:
        return Grid(self.messages[chosen], self.settings, self.seconds[chosen], self.layouts[chosen])


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
