"""What changed between a listing and the inputs that are answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.evidence.files import partition_of
from junctor.model.errors import EvidenceError
from junctor.runs.inputs import Backfill, Changes, Input, Listed, compare, selects

NOTHING = Changes((), {}, (), (), {})
PATHS = [f"{day}{name}" for day in ("", "date=2026-11-09/", "date=2026-11-10/") for name in ("a", "b", "x/c")]
# Path -> content and time.
folders = st.dictionaries(st.sampled_from(PATHS), st.tuples(st.sampled_from(["", "1", "2", "3"]), st.integers(1, 3)))


def known_of(folder: dict[str, tuple[str, int]], removed: frozenset[str] = frozenset()) -> list[Input]:
    return [
        Input(path, partition_of(path), text, len(text), time, f"key of {text}", 1, 1, {}, (), path in removed)
        for path, (text, time) in sorted(folder.items())
    ]


def listed_of(folder: dict[str, tuple[str, int]]) -> list[Listed]:
    return [Listed(path, len(text), time) for path, (text, time) in sorted(folder.items())]


@given(folders, folders, *[st.sets(st.sampled_from(PATHS))] * 3)
@example({"a": ("1", 1)}, {"a": ("1", 1), "b": ("1", 1)}, set(), set(), {"a"})
@example({"a": ("1", 1)}, {"b": ("1", 1)}, {"a"}, set(), set())
@example({"a": ("1", 1)}, {"b": ("1", 1)}, set(), set(), {"a"})
def test_after_an_increment_all_files_are_answered_once(
    before: dict[str, tuple[str, int]],
    now: dict[str, tuple[str, int]],
    removed: set[str],
    again: set[str],
    elsewhere: set[str],
) -> None:
    """`elsewhere` is what the folder or glob does not cover."""
    known = known_of(before, frozenset(removed & before.keys() - now.keys()))
    # Contents that change are of another size or time.
    now = {
        path: (text, time if before.get(path, (text,))[0] == text or len(text) != len(before[path][0]) else time + 10)
        for path, (text, time) in now.items()
    }
    read: list[str] = []

    def digest(listed: Listed) -> str:
        read.append(listed.path)
        return now[listed.path][0]

    removed = {each.path for each in known if each.removed}
    there, now = now, {path: content for path, content in now.items() if path not in elsewhere}
    changes = compare(
        listed_of(now),
        known,
        digest,
        lambda path: path in again,
        lambda path: path not in elsewhere,
        lambda path: path in there,
    )
    answered = {change.listed.path: change for change in changes.answer}
    contents = {each.path: each.digest for each in known}
    for new, old in changes.renamed.items():
        assert partition_of(new) == partition_of(old)
        assert old not in there.keys() | removed
        contents[new] = contents.pop(old)
    contents |= {path: change.digest for path, change in answered.items()}
    # The inputs afterwards: what is listed, as it is, and what is gone or elsewhere.
    assert {path: contents[path] for path in now} == {path: text for path, (text, _) in now.items()}
    assert contents.keys() - now.keys() == before.keys() - now.keys() - set(changes.renamed.values())
    assert set(changes.removed) == contents.keys() - now.keys() - removed - elsewhere
    # Nothing twice, and nothing that is unchanged.
    assert len(answered) == len(changes.answer)
    unchanged = {path for path in now if path in before and before[path][0] == now[path][0]}
    assert unchanged & answered.keys() == unchanged & again
    assert again & now.keys() <= answered.keys()
    same = {path for path in now if before.get(path) == now[path]} - again
    assert not same & set(read)
    for path, change in answered.items():
        if path in again:
            assert change.why == "backfilled"
        else:
            assert (change.why == "changed") == (path in before)
            if change.why == "late":
                assert path.startswith("date=2026-11-09/") or not path.startswith("date")
                assert any(other > path for other in before)


def test_late_inputs_are_of_partitions_before_the_newest_one() -> None:
    def whys(known: list[str], listed: list[str]) -> list[str]:
        before = known_of(dict.fromkeys(known, ("0", 1)))
        return [change.why for change in compare([Listed(path, 1, 1) for path in listed], before, str).answer]

    assert whys([], ["date=2026-11-22/a"]) == ["new"]
    assert whys(["date=2026-11-22/a"], ["date=2026-11-22/b"]) == ["new"]
    assert whys(["date=2026-11-22/a"], ["date=2026-11-21/b", "date=2026-11-23/b"]) == ["late", "new"]
    assert whys(["month=9/a", "month=10/a"], ["month=9/b", "month=11/b"]) == ["late", "new"]
    assert whys(["site=n/month=10/a"], ["site=a/month=10/a", "site=z/month=9/a"]) == ["new", "late"]
    assert whys(["a"], ["0"]) == ["new"]


def test_files_that_cannot_be_read_keep_their_answers() -> None:
    def digest(listed: Listed) -> str:
        raise EvidenceError(f"{listed.path} is broken")

    changes = compare([Listed("a", 1, 2), Listed("b", 1, 1)], known_of({"a": ("0", 1)}), digest)
    assert changes.broken == {"a": "a is broken", "b": "b is broken"}
    assert changes == replace(NOTHING, broken=changes.broken)


def test_young_files_are_read() -> None:
    (known,) = known_of({"a": ("0", 1)})
    assert compare([Listed("a", 1, None)], [known], lambda _: "0").touched == (Listed("a", 1, None),)
    young = replace(known, modified=None)
    assert compare([Listed("a", 1, 1)], [young], lambda _: "1").answer[0].why == "changed"
    assert compare([Listed("a", 1, None)], [young], lambda _: "1").answer[0].why == "changed"


def test_only_what_the_pattern_covers_is_removed() -> None:
    known = known_of({"date=1/a": ("0", 1), "date=2/a": ("0", 1)})
    assert compare([], known, str, covers=lambda path: path.startswith("date=2")).removed == ("date=2/a",)


@pytest.mark.parametrize(
    ("texts", "path", "selected"),
    [
        ([], "date=2026-11-01/a", False),
        (["date=2026-11-01"], "date=2026-11-01/a", True),
        (["date=2026-11-01"], "date=2026-11-02/a", False),
        (["date=2026-11-01..2026-11-20"], "date=2026-11-20/x/a", True),
        (["date=2026-11-01..2026-11-20"], "date=2026-11-21/a", False),
        (["hour=9..11"], "hour=10/a", True),
        (["hour=9..11"], "hour=9/a", True),
        (["hour=9..11"], "hour=12/a", False),
        (["x=-5..3"], "x=-5/a", True),
        (["x=-5..3"], "x=-1/a", True),
        (["x=-5..3"], "x=0/a", True),
        (["x=-5..3"], "x=-6/a", False),
        (["x=-12..-5"], "x=-9/a", True),
        (["x=-12..-5"], "x=5/a", False),
        (["date=1", "date=3..4"], "date=4/a", True),
        (["date=1", "date=3..4"], "date=2/a", False),
        (["date=1", "site=north"], "date=1/site=north/a", True),
        (["date=1", "site=north"], "date=1/site=south/a", False),
        (["date=1", "site=north"], "date=1/a", False),
        (["site=a b"], "site=a%20b/a", True),
        (["site=n"], "site=__HIVE_DEFAULT_PARTITION__/a", False),
        (["site=A..z"], "site=__HIVE_DEFAULT_PARTITION__/a", False),
        (["site=__HIVE_DEFAULT_PARTITION__"], "site=__HIVE_DEFAULT_PARTITION__/a", True),
        (["site=__HIVE_DEFAULT_PARTITION__"], "site=n/a", False),
        (["name=a=b"], "name=a=b/a", True),
    ],
)
def test_backfills_select_partitions(texts: list[str], path: str, selected: bool) -> None:
    assert selects([Backfill.parse(text) for text in texts], path) == selected


@pytest.mark.parametrize(
    "text", ["", "date", "date=", "=1", "date=1..", "date=..2", "date=..", "date=2..1", "h=10..9", "x=3..-5"]
)
def test_backfills_that_are_none(text: str) -> None:
    with pytest.raises(EvidenceError, match="backfill"):
        Backfill.parse(text)
