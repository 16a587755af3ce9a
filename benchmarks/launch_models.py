"""Models of how long a message takes with given launch parameters, and how good they are: for `launch.py`.

What Zheng and Mengshoel (KDD 2013) tried, support vector regression and a polynomial Lasso, as they print them; the
same methods, and two of our own time, on logarithms: of entries of the separator, of terms an entry, of K, of p_a, and
of seconds. Ours also know how far apart neighbouring terms and entries lie in the clique table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor.cost.fit import fit as fit_prices
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Lasso as Penalised
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

Floats = npt.NDArray[np.float64]

# Rows that a support vector machine, whose time grows with their square, learns from.
SVR_ROWS = 6000
DEGREE = 3
FOLDS = 10
# Microseconds that no message takes less than, where a model says so, or less than none.
LEAST = 1e-3
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


def printed_features(x: Floats) -> Floats:
    """Return the features of their Table 1, [rows, 4]: entries of separator and clique, K, p_a."""
    separator, terms, threads, together = 2.0 ** x[:, :4].T
    return np.column_stack([separator, separator * terms, threads, together])


def printed_terms(x: Floats) -> Floats:
    """Return the terms of their polynomial, [rows, 21]: |S|, |X|, K, K^2, p_e, p_e^2 and all products of two."""
    separator, clique, threads, together = printed_features(x).T
    entries = threads / together
    single = [separator, clique, threads, threads**2, entries, entries**2]
    return np.column_stack([*single, *(one * other for one, other in combinations(single, 2))])


def logarithms(x: Floats) -> Floats:
    """Return logarithms of entries of the separator, terms an entry, K and p_a, [rows, 4]."""
    return x[:, :4]


def bandwidth(x: Floats) -> float:
    """Return gamma of equation 16: twice the number of rows over the sum of their squared distances from the mean."""
    return 2 * len(x) / float(((x - x.mean(axis=0)) ** 2).sum())


class Svr:
    """Their support vector regression (equations 10 and 11): radial basis functions, C = 10, epsilon = 0.001.

    features: what it learns from, of `features`; it is standardised.
    gamma: that of equation 16 unless it is given.
    """

    def __init__(self, features: Callable[[Floats], Floats], gamma: float | None = None) -> None:
        self._features, self._gamma = features, gamma

    def fit(self, x: Floats, y: Floats) -> Svr:
        chosen = np.random.default_rng(0).permutation(len(x))[:SVR_ROWS]
        self._scaler = StandardScaler().fit(self._features(x[chosen]))
        scaled = self._scaler.transform(self._features(x[chosen]))
        gamma = self._gamma or bandwidth(scaled)
        self._model = SVR(kernel="rbf", C=10, epsilon=0.001, gamma=gamma).fit(scaled, y[chosen])
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = self._model.predict(self._scaler.transform(self._features(x)))
        return found


Penalty = Literal["0", "min", "1se"]


class Lasso:
    """A polynomial with a penalty on its coefficients (equation 9).

    terms: a transformer that makes the terms of a polynomial, which are standardised.
    penalty: none (their tables say lambda = 0), that of the lowest error in cross-validation over ten folds (as their
        text says), or the largest within a standard error of that.
    """

    def __init__(self, terms: Any, penalty: Penalty) -> None:
        self._terms, self._penalty = terms, penalty

    def fit(self, x: Floats, y: Floats) -> Lasso:
        terms = (self._terms, StandardScaler())
        if self._penalty == "0":
            self._model = make_pipeline(*terms, LinearRegression()).fit(x, y)
            return self
        search = make_pipeline(*terms, LassoCV(alphas=40, cv=FOLDS, max_iter=5000, tol=1e-3, n_jobs=-1)).fit(x, y)[-1]
        penalised = Penalised(alpha=chosen_lambda(search, self._penalty == "1se"), max_iter=5000, tol=1e-3)
        self._model = make_pipeline(*terms, penalised).fit(x, y)
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = self._model.predict(x)
        return found


def chosen_lambda(search: Any, one_se: bool) -> float:
    """Return the lambda of the lowest error in a cross-validation, or the largest within a standard error of it.

    search: a fitted LassoCV, whose lambdas come in descending order.
    """
    mean = search.mse_path_.mean(axis=1)
    best = int(mean.argmin())
    error = search.mse_path_[best].std(ddof=1) / np.sqrt(search.mse_path_.shape[1])
    return float(search.alphas_[int(np.argmax(mean <= mean[best] + error)) if one_se else best])


class OfLogarithms:
    """A model of the logarithms of seconds, asked for microseconds."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def fit(self, x: Floats, microseconds: Floats) -> OfLogarithms:
        self._model.fit(x, np.log2(microseconds / 1e6))
        return self

    def predict(self, x: Floats) -> Floats:
        found: Floats = 1e6 * 2.0 ** self._model.predict(x)
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


def _cubic() -> Any:
    return make_pipeline(FunctionTransformer(logarithms), PolynomialFeatures(DEGREE, include_bias=False))


def _printed(penalty: Penalty) -> Callable[[], Any]:
    return lambda: Lasso(FunctionTransformer(printed_terms), penalty)


# As printed: of entries, K, p_a or p_e as they are, and of microseconds. Then the same methods on logarithms, and ours.
MODELS: dict[str, Callable[[], Any]] = {
    "SVR": lambda: Svr(printed_features),
    "Lasso, lambda 0": _printed("0"),
    "Lasso, lambda min": _printed("min"),
    "Lasso, lambda 1se": _printed("1se"),
    "SVR, logarithms": lambda: OfLogarithms(Svr(logarithms, 1 / 8)),
    "Lasso, logarithms, lambda 0": lambda: OfLogarithms(Lasso(_cubic(), "0")),
    "Lasso, logarithms, lambda 1se": lambda: OfLogarithms(Lasso(_cubic(), "1se")),
    "extra trees": lambda: OfLogarithms(ExtraTreesRegressor(100, n_jobs=-1, random_state=0)),
    "prices and trees": lambda: OfLogarithms(PricesAndTrees()),
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
        """Return features and microseconds of all that was measured."""
        at, setting = np.nonzero(np.isfinite(self.seconds))
        return features(self.messages[at], self.settings[setting], self.layouts[at]), 1e6 * self.seconds[at, setting]

    def predicted(self, model: Any) -> Floats:
        """Return the microseconds that a model says of every message with every setting; infinite if not measured."""
        count = len(self.settings)
        messages, layouts = (np.repeat(each, count, axis=0) for each in (self.messages, self.layouts))
        x = features(messages, np.tile(self.settings, (len(self.messages), 1)), layouts)
        return np.where(np.isfinite(self.seconds), model.predict(x).reshape(self.seconds.shape), np.inf)

    def part(self, chosen: npt.NDArray[np.bool_]) -> Grid:
        return Grid(self.messages[chosen], self.settings, self.seconds[chosen], self.layouts[chosen])


def residual_sum(measured: Floats, predicted: Floats) -> float:
    """Return their RSS: the sum of squared residuals of all measurements."""
    return float(((predicted - measured) ** 2).sum())


def squared_deviance(times: Floats, chosen: npt.NDArray[np.int64]) -> float:
    """Return their SD (equation 13): over all messages, the squared time beyond the best that the chosen setting takes.

    times: [messages, settings], NaN where it was not measured. chosen: [messages], the setting of each.
    """
    lost = times[np.arange(len(times)), chosen] - np.nanmin(times, axis=1)
    return float((lost**2).sum())


def miss_rate(times: Floats, chosen: npt.NDArray[np.int64]) -> float:
    """Return their MR (equation 14): the share of messages whose chosen setting is not the best; as above."""
    return float((chosen != np.nanargmin(times, axis=1)).mean())


class Quality(NamedTuple):
    """Of a model on some messages: RSS (us^2), SD (us^2) and MR as printed, and the mean squared residual of log2."""

    rss: float
    deviance: float
    missed: float
    logarithmic: float


def choices(grid: Grid, model: Any) -> npt.NDArray[np.int64]:
    """Return the setting of each message that a model takes to be the fastest."""
    found: npt.NDArray[np.int64] = grid.predicted(model).argmin(axis=1)
    return found


def quality(grid: Grid, model: Any) -> Quality:
    x, y = grid.rows()
    predicted, chosen, times = model.predict(x), choices(grid, model), 1e6 * grid.seconds
    logarithmic = np.log2(np.maximum(predicted, LEAST)) - np.log2(y)
    sums = residual_sum(y, predicted), squared_deviance(times, chosen), miss_rate(times, chosen)
    return Quality(*sums, float((logarithmic**2).mean()))
