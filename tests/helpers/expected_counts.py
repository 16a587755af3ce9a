"""Expected counts and EM by summing over all joint states: slow, obvious, and sharing no code with what it checks.

Also rows to count, `sampled`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.model.network import Factor, Network

from helpers.oracle import ZERO_POWER, joint_table
from helpers.strategies import row_evidence

Array = npt.NDArray[np.float64]


def enumerate_counts(
    network: Network, batch: EvidenceBatch, weights: Sequence[float] | None = None
) -> tuple[list[Array], float, list[int]]:
    """Return expected counts of all families, the log-likelihood, and the rows with P(e) = 0, which are left out."""
    counts = [np.zeros(factor.table.shape) for factor in network.factors]
    terms, impossible = [0.0], []
    for row in range(batch.rows):
        weight = 1.0 if weights is None else float(weights[row])
        if row in batch.invalid or weight == 0.0:
            continue
        hard, soft = row_evidence(batch, row)
        joint = joint_table(network, hard, soft)
        top = int(joint.power.max())
        if top <= ZERO_POWER // 2:
            impossible.append(row)
            continue
        masses = np.ldexp(joint.mantissa, np.maximum(joint.power - top, -5000).astype(np.int32))
        total = math.fsum(masses.ravel().tolist())
        terms.append(weight * (math.log(total) + top * math.log(2.0)))
        for count, factor in zip(counts, network.factors, strict=True):
            count += weight * _marginal(masses, factor.scope) / total
    return counts, math.fsum(terms), impossible


def _marginal(masses: Array, scope: Sequence[int]) -> Array:
    others = tuple(axis for axis in range(masses.ndim) if axis not in scope)
    kept = sorted(scope)
    marginal: Array = masses.sum(axis=others).transpose([kept.index(axis) for axis in scope])
    return marginal


def em_step(network: Network, counts: Sequence[Array], pseudo: Mapping[int, Array] | None = None) -> Network:
    """Return the network after the M-step; rows of tables without weight stay."""
    factors = []
    for v, (factor, count) in enumerate(zip(network.factors, counts, strict=True)):
        total = count + (pseudo or {}).get(v, np.zeros(count.shape))
        sums = total.sum(axis=-1, keepdims=True)
        table = np.where(sums > 0, total / np.where(sums > 0, sums, 1.0), factor.table)
        factors.append(Factor(factor.scope, table))
    return Network(network.name, network.variables, tuple(factors), network.kind)


def sampled(network: Network, rows: int, missing: float, seed: int) -> EvidenceBatch:
    """Return samples of a network without some of their cells."""
    cells = generate.sample(network, rows, seed)
    random = np.random.default_rng(seed)
    return EvidenceBatch(
        rows,
        {
            v: np.where(random.random(rows) < missing, -1, cells[:, v]).astype(np.int32)
            for v in range(len(network.variables))
        },
    )
