"""Networks with evidence for the tests of sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from junctor.evidence.batch import EvidenceBatch
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.sampling.cases import CaseLayout, layout_of
from junctor.sampling.rows import Evidence
from junctor.sampling.tables import SampledNetwork, sampled_network
from junctor_kernels.sampling.layout import SampledCase

from helpers.strategies import evidence_batches, networks, row_evidence

Hard = dict[int, int]
Soft = dict[int, npt.NDArray[np.float64]]

PLACE = Place("made")


def network_of(tables: Sequence[tuple[Sequence[int], npt.ArrayLike]], cards: Sequence[int]) -> Network:
    """Return a directed network; a scope names parents, then the child."""
    variables = [DraftVariable(f"v{i}", [f"s{s}" for s in range(card)], PLACE) for i, card in enumerate(cards)]
    drafts = [DraftTable([f"v{i}" for i in scope], values, PLACE) for scope, values in tables]
    return build_network("made", "bayes", variables, drafts)


def mixed() -> Network:
    """Tables of two to five states, a deterministic one (v4 = v0 and v2 > 0), and probabilities from 1e-3 to 1."""
    rng = np.random.default_rng(5)
    cards = (2, 3, 4, 2, 2, 5, 2, 1)
    scopes = [(0,), (0, 1), (1, 2), (1, 3), (0, 2, 4), (2, 3, 5), (5, 4, 6), (6, 7)]
    tables = []
    for scope in scopes:
        shape = [cards[v] for v in scope]
        values = rng.dirichlet(np.full(shape[-1], 0.6), size=shape[:-1]) + 1e-3
        tables.append((scope, values / values.sum(axis=-1, keepdims=True)))
    both = np.zeros((2, 4, 2))
    both[..., 0] = 1.0
    both[1, 1:] = (0.0, 1.0)
    tables[4] = (scopes[4], both)
    return network_of(tables, cards)


def case_of(network: Network, hard: Hard, soft: Soft, learns: bool) -> tuple[SampledNetwork, CaseLayout, SampledCase]:
    sampled = sampled_network(network)
    layout = layout_of(sampled, Evidence(frozenset(hard), frozenset(soft)), None)
    return sampled, layout, layout.case(hard, soft, learns)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Network, Hard, Soft]:
    network = draw(networks(kind="bayes"))
    batch: EvidenceBatch = draw(evidence_batches(network, max_rows=1, min_rows=1, invalid=False))
    hard, soft = row_evidence(batch, 0)
    return network, hard, soft
