"""What cells mean."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.states import UNKNOWN, Cell, StateCells
from junctor.model.network import Variable


@pytest.mark.parametrize(
    ("states", "cell", "expected"),
    [
        (("yes", "no"), "no", 1),
        (("yes", "no"), " no\t", 1),
        (("yes", "no"), "No", UNKNOWN),  # names are as they are written
        (("yes", "no"), None, UNOBSERVED),
        (("yes", "no"), float("nan"), UNOBSERVED),
        (("yes", "no"), Decimal("NaN"), UNOBSERVED),
        *[(("yes", "no"), text, UNOBSERVED) for text in ("", "  ", "NA", "?", " ? ", "null", "NaN", "nan")],
        *[(("yes", "no"), text, UNOBSERVED) for text in ("-", "na", "n/a", "N/A", "#N/A", "<NA>", "NULL", "None")],
        *[(("yes", "no"), text, UNOBSERVED) for text in ("*", " * ", ".", "\\N", "(null)", "NaT", "-nan", "#NULL!")],
        *[(("yes", "no"), text, UNOBSERVED) for text in ("#NA", "#N/A N/A", "1.#IND", "-1.#QNAN")],
        *[(("yes", "no"), text, UNKNOWN) for text in ("--", "**", "..", "missing", "n.a.")],
        (("none", "mild"), "none", 0),
        (("none", "mild"), "None", UNKNOWN),  # the state, or a missing cell?
        (("none", "mild"), "NA", UNOBSERVED),
        (("NA", "?"), "NA", 0),  # a name wins over the mark of a missing cell
        (("NA", "?"), " ? ", 1),
        *[((".", "*", "\\N"), text, code) for code, text in enumerate((".", " * ", "\\N"))],
        ((".", "\\N"), "*", UNOBSERVED),
        (("off", "on"), 1, 1),
        (("off", "on"), 1.0, 1),
        (("off", "on"), Decimal("1.00"), 1),
        (("off", "on"), "1", 1),
        (("off", "on"), "1.0", 1),
        (("yes", "no"), "01", UNKNOWN),
        (("yes", "no"), "+1", UNKNOWN),
        (("yes", "no"), 2, UNKNOWN),
        (("yes", "no"), -1, UNKNOWN),
        (("yes", "no"), 0.5, UNKNOWN),
        (("yes", "no"), float("inf"), UNKNOWN),
        (("yes", "no"), "1" * 10_000, UNKNOWN),
        (("yes", "no"), "\u0661", UNKNOWN),  # a digit in Unicode, not to us
        (("1", "2", "3"), 1, 0),  # numbers are names where names look like numbers
        (("1", "2", "3"), 1.0, 0),
        (("1", "2", "3"), "1.0", 0),
        (("1", "2", "3"), "01", UNKNOWN),
        (("1", "2", "3"), 0, UNKNOWN),
        (("none", "2"), 0, UNKNOWN),
        (("-1", "0", "1"), -1, 0),
        (("-1", "0", "1"), -1.0, 0),
        (("0.5", "1.5"), 0.5, 0),
        (("0.5", "1.5"), 1, UNKNOWN),
        (("0.0", "1.0"), 1.0, 1),
        (("0.0", "1.0"), 1, 1),  # one number in two spellings
        *[(("0.1", "0.5"), cell, 0) for cell in (Decimal("0.10000"), "0.10", "+0.1", ".1", "1e-1", 0.1)],
        *[(("0.1", "0.5"), cell, UNKNOWN) for cell in ("00.1", "0.1.0", 0.1 + 2**-50, "0,1", "1e99999999999999999999")],
        (("1", "+2"), "2", 1),
        (("1", "1.0"), "1.0", 1),  # both are one number
        (("1", "1.0"), 1, 0),
        (("1", "1.0"), 1.0, 1),
        (("1", "1.0"), "+1", UNKNOWN),
        (("01", "02"), "01", 0),
        (("01", "02"), 1, UNKNOWN),
        (("0-5", "5-9"), 1, 1),  # not numbers
        *[(("no", "yes"), cell, 1) for cell in (True, "True", 1, 1.0, "1", Decimal(1))],
        *[(("Yes", "NO"), cell, 0) for cell in (True, "TRUE")],
        *[(("Yes", "NO"), cell, 1) for cell in (False, "false")],
        # Index 0 is what is true: neither reading is safe.
        *[(states, cell, UNKNOWN) for states in (("yes", "no"), ("True", "False")) for cell in (0, 1, 1.0, "1", "0.0")],
        *[(("false", "true"), cell, 0) for cell in (False, 0, "0")],
        (("yes", "no", "unknown"), True, UNKNOWN),
        (("yes", "no", "unknown"), 1, 1),
        (("false", "true"), True, 1),
        (("FALSE", "TRUE"), False, 0),
        (("FALSE", "TRUE"), "True", 1),
        (("true", "True"), "true", 0),
        (("true", "True"), True, UNKNOWN),  # which of them?
        # Of two states the one that is true.
        *[(states, True, 1) for states in (("0", "1"), ("0.0", "1.0"), ("F", "t"), ("N", "Y"))],
        *[(("1", "0"), cell, 0) for cell in (True, "TRUE", "True", "true", "T", " t ", 1, 1.0, "1.0")],
        *[(("1", "0"), cell, 1) for cell in (False, "FALSE", "False", "f", 0, "0")],
        *[(("no", "yes"), cell, code) for code, cell in enumerate(("F", "T"))],
        *[(states, "T", 1) for states in (("FALSE", "TRUE"), ("false", "True", "?"), ("F", "T"))],
        *[(("A", "C", "G", "T"), cell, code) for cell, code in (("T", 3), ("t", UNKNOWN), (True, UNKNOWN))],
        # Neither reading of the index is safe.
        *[(states, cell, UNKNOWN) for states in (("T", "F"), ("y", "n")) for cell in (0, "1")],
        *[(states, True, UNKNOWN) for states in (("0", "1", "2"), ("1", "2"), ("00", "01"), ("off", "on"))],
        *[(("0", "1"), cell, UNKNOWN) for cell in ("yes", "no", "tr", "on")],
    ],
)
def test_code(states: tuple[str, ...], cell: Cell, expected: int) -> None:
    assert StateCells(Variable("x", states)).code(cell) == expected


def test_reason_names_what_was_found_the_nearest_states_and_all_of_them() -> None:
    reason = StateCells(Variable("smoke", ("yes", "no"))).reason("yess")
    assert reason == "unknown state 'yess', did you mean 'yes'?; states are yes, no"
    assert StateCells(Variable("smoke", ("yes", "no"))).reason(7) == "unknown state 7; states are yes, no"


def test_a_number_of_two_meanings_is_explained() -> None:
    reason = StateCells(Variable("smoke", ("yes", "no"))).reason(1)
    assert reason == "1 may mean 'yes', or 'no' by its index: give the state by name"
    reason = StateCells(Variable("smoke", ("True", "False"))).reason("0")
    assert reason == "'0' may mean 'False', or 'True' by its index: give the state by name"


def test_a_number_that_two_states_are_is_explained() -> None:
    reason = StateCells(Variable("dose", ("1", "1.0", "2"))).reason("+1")
    assert reason == "'+1' may mean '1' or '1.0', which are one number: give the state by name"


@given(st.decimals(-1000, 1000, places=3), st.sampled_from(["state", "missing"]))
def test_a_number_is_the_same_in_every_spelling(number: Decimal, meaning: str) -> None:
    texts = [f"{number:.5f}", f"{number:e}", f"{number:+.3f}", str(number.normalize()), f" {float(number)!r} "]
    cells: list[Cell] = [*texts, number, float(number), number * Decimal("1.00")]
    if meaning == "state":
        reader = StateCells(Variable("x", ("other", str(number))))
        assert {reader.code(cell) for cell in cells} == {1}
    else:
        reader = StateCells(Variable("x", ("other", "another")), missing=[str(number)])
        assert {reader.code(cell) for cell in cells} == {UNOBSERVED}


def test_further_missing_texts() -> None:
    cells = StateCells(Variable("x", ("off", "on", "Refused")), missing=(" Not asked ", "-9", "1", "refused"))
    given = ["NOT ASKED", "-9", -9, -9.0, "-9.0", "-9e0", Decimal("-9"), 1, "null", "Refused", "refused", 0, "nope"]
    u = UNOBSERVED
    assert [cells.code(cell) for cell in given] == [u, u, u, u, u, u, u, u, u, 2, UNKNOWN, 0, UNKNOWN]


def test_reasons_stay_short() -> None:
    cells = StateCells(Variable("x", tuple(f"state {'long ' * 100}{i}" for i in range(500))))
    assert len(cells.reason("y" * 1_000_000)) < 600
    assert "(500 in all)" in cells.reason("y")


def test_a_table_of_garbage_does_not_crawl() -> None:
    cells = StateCells(Variable("x", tuple(f"state {i}" for i in range(1000))))
    started = time.perf_counter()
    for i in range(20_000):
        assert cells.code(f"stat {i}") == UNKNOWN
        assert cells.reason(f"stat {i}")
    assert time.perf_counter() - started < 10
