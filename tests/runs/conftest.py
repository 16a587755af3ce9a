"""What tests of evidence that grows have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.growing import World
from junctor.engine.engine import Engine
from junctor.evidence import encoded
from junctor.generate import random_network
from junctor.model.network import Network


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(6, seed=3, zeros=0.2)


@pytest.fixture
def world(tmp_path: Path, network: Network) -> World:
    return World(tmp_path, network)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every batch that an engine answers."""
    batches: list[int] = []
    real = Engine.answer

    def answer(self: Engine, batch: encoded.EvidenceBatch, *args: object) -> object:
        batches.append(batch.rows)
        return real(self, batch, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "answer", answer)
    return batches
