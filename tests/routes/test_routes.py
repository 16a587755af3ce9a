"""Rows are answered in the ways of the record."""

from __future__ import annotations

from pathlib import Path

import pytest
from junctor.model.strategies import EXACT

from routes import record

REMEDY = "where that is meant: python tests/routes record FILE before the change, compare FILE after it, then record"
# The others take a minute together.
QUICK = ("asia", "zeros")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in record.networks()]
)
def test_choices_are_those_of_the_record(name: str) -> None:
    found = record.routes(name)
    assert found
    assert not record.differences(found, only=name), REMEDY


def test_each_way_is_in_the_record() -> None:
    ways = {way for said in record.read().values() for way in said.split(" ")[0].split("+")}
    assert ways == {strategy.value for strategy in EXACT}


def test_a_difference_is_told(tmp_path: Path) -> None:
    found = {"a": ["row trees: 1"], "b": ["numpy: 2"]}
    record.write(found, tmp_path / "record.json")
    assert not record.differences(found, tmp_path / "record.json")
    (told,) = record.differences({"a": ["row trees: 1"], "b": ["numpy: 3"]}, tmp_path / "record.json")
    assert "numpy: 2" in told
    assert "numpy: 3" in told
