"""Searches for minimal contradictions in sets of findings, side by side, between questions whether sets are possible.

Main functions: `ask` and `advance`, called by `junctor.backends.contradictions`. Sets of findings are told apart by
sums of random numbers, 128 bits for each finding: among a million of them two are equal by chance with probability
1e-27.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.columns import STATE, state_at
from junctor_kernels.cpu.jit import gradual, loops, part
from junctor_kernels.cpu.mixing import STEP, mixed
from junctor_kernels.row_trees.case_words import BIT, IMPOSSIBLE, NOTHING, POSSIBLE, TOO_LARGE

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Answer of a place without a set.
EMPTY = 3
# What a search is at: its set is not all asked about yet, its contradiction is found, it is given up, since it takes
# too much, or it has become equal to an earlier one.
WAITING, FOUND, GIVEN_UP, EQUAL = 0, 1, 2, 3


class FindingSets(NamedTuple):
    """Sets of findings, one after the other, each in the order of its columns.

    columns: int64 [findings].
    codes: int32 [findings].
    starts: int64 [sets + 1].
    """

    columns: Ints
    codes: npt.NDArray[np.int32]
    starts: Ints

    def some(self, numbers: Ints) -> FindingSets:
        """Return some of the sets."""
        sizes = np.diff(self.starts)[numbers]
        starts = np.append(0, np.cumsum(sizes))
        at = np.arange(starts[-1]) + np.repeat(self.starts[numbers] - starts[:-1], sizes)
        return FindingSets(self.columns[at], self.codes[at], starts)

    def names(self) -> list[bytes]:
        """Return a name of each set, equal for equal ones."""
        findings, starts = ((self.columns << 32) | self.codes).tobytes(), (8 * self.starts).tolist()
        return [findings[begin:end] for begin, end in pairwise(starts)]

    def lists(self) -> list[tuple[tuple[int, int], ...]]:
        """Return each set as columns and codes."""
        pairs, starts = list(zip(self.columns.tolist(), self.codes.tolist(), strict=True)), self.starts.tolist()
        return [tuple(pairs[begin:end]) for begin, end in pairwise(starts)]


class Searches(NamedTuple):
    """A search in each of some impossible sets.

    sets: of findings.
    ends: int64 [sets], how many of the first findings of each are its rest: some of them are needed.
    needed: bool [findings], those behind the rest that are: with the rest possible as long as any one is missing.
    stage: uint8 [sets], WAITING, FOUND, GIVEN_UP or EQUAL.
    same: int64 [sets], of an EQUAL one the search that it is equal to.
    lines: int64 [findings], the line of `having`.
    having: uint64 [lines, words], which witnesses have a finding.
    all: uint64 [words], all witnesses.
    left: uint64 [words], work array.
    """

    # Findings of the rest are added to the needed ones until these are impossible: the last one is needed, and those
    # after it are not. All prefixes of the rest are asked about at once, each is a case.

    sets: FindingSets
    ends: Ints
    needed: npt.NDArray[np.bool_]
    stage: npt.NDArray[np.uint8]
    same: Ints
    lines: Ints
    having: Words
    all: Words
    left: Words


class Known(NamedTuple):
    """Answers for sets of findings, found by their keys.

    keys: uint64 [places, 2].
    answers: uint8 [places], IMPOSSIBLE, POSSIBLE, TOO_LARGE or EMPTY; places are a power of two.
    """

    keys: Words
    answers: npt.NDArray[np.uint8]


class Questions(NamedTuple):
    """Sets to ask about: the needed findings of a search with a prefix of its rest.

    searches: int64 [questions].
    prefixes: int64 [questions], findings of the rest.
    places: int64 [questions], of the answers.
    """

    searches: Ints
    prefixes: Ints
    places: Ints

    def first(self, count: int) -> Questions:
        """Return the first ones."""
        return Questions(self.searches[:count], self.prefixes[:count], self.places[:count])

    def some(self, numbers: Ints) -> Questions:
        """Return some of the questions."""
        return Questions(self.searches[numbers], self.prefixes[numbers], self.places[numbers])


def searches_in(sets: FindingSets, lines: Ints, having: Words, witnesses: int) -> Searches:
    """Return searches at their beginning; arguments as of `Searches`, and the number of witnesses."""
    every = np.zeros(having.shape[1], dtype=np.uint64)
    every[: witnesses >> 6] = ~NOTHING
    if witnesses & 63:
        every[witnesses >> 6] = (BIT << np.uint64(witnesses & 63)) - BIT
    ends = np.diff(sets.starts)
    needed, stage = np.zeros(len(sets.columns), dtype=np.bool_), np.where(ends > 0, WAITING, FOUND).astype(np.uint8)
    return Searches(sets, ends, needed, stage, np.arange(len(ends)), lines, having, every, np.empty_like(every))


def known(places: int) -> Known:
    """Return memory for fewer answers than places, a power of two."""
    return Known(np.zeros((places, 2), dtype=np.uint64), np.full(places, EMPTY, dtype=np.uint8))


@part
def _word(column: Any, code: Any) -> Any:
    """Return the random number of a finding."""
    return mixed((np.uint64(column) << np.uint64(32)) + np.uint64(code) + STEP)


@part
def _place(known: Any, one: Any, two: Any) -> int:
    """Return the place of a key, or the empty one where it belongs."""
    last = np.uint64(known.answers.size - 1)
    place = one & last
    while known.answers[place] != EMPTY and (known.keys[place, 0] != one or known.keys[place, 1] != two):
        place = (place + BIT) & last
    return int(place)


@part
def _enter(known: Any, place: int, one: Any, two: Any, answer: int) -> None:
    known.keys[place, 0], known.keys[place, 1], known.answers[place] = one, two, answer


@part
def _key_of_needed(searches: Any, s: int) -> Any:
    """Return the key of the needed findings of a search."""
    sets, one, two = searches.sets, NOTHING, NOTHING
    for at in range(sets.starts[s] + searches.ends[s], sets.starts[s + 1]):
        if searches.needed[at]:
            word = _word(sets.columns[at], sets.codes[at])
            one, two = one + word, two + mixed(word)
    return one, two


@part
def _keep_having(searches: Any, at: int) -> bool:
    """Leave the witnesses that have a finding; return True if there are any."""
    some = NOTHING
    for w in range(searches.left.size):
        searches.left[w] &= searches.having[searches.lines[at], w]
        some |= searches.left[w]
    return bool(some != NOTHING)


@gradual
@loops
def enter_nothing(known: Any) -> None:
    """Enter that it is possible to have no findings."""
    _enter(known, _place(known, NOTHING, NOTHING), NOTHING, NOTHING, POSSIBLE)


@gradual
@loops
def copy_known(before: Any, known: Any) -> None:
    """Enter all answers into other memory."""
    for at in range(before.answers.size):
        if before.answers[at] != EMPTY:
            one, two = before.keys[at, 0], before.keys[at, 1]
            _enter(known, _place(known, one, two), one, two, before.answers[at])


@gradual
@loops
def ask(searches: Any, known: Any, questions: Any) -> int:
    """Write the questions of all waiting searches that are not known, each once; return their number.

    known: has a place for all of them; they are entered, as possible if a witness has the set, otherwise as TOO_LARGE.
    questions: Questions, written, those that no witness answers.
    """
    sets, count = searches.sets, 0
    for s in range(searches.ends.size):
        if searches.stage[s] != WAITING:
            continue
        begin, end = sets.starts[s], sets.starts[s] + searches.ends[s]
        one, two = _key_of_needed(searches, s)
        for w in range(searches.left.size):
            searches.left[w] = searches.all[w]
        is_witnessed = searches.all[0] != NOTHING
        for at in range(end, sets.starts[s + 1]):
            if is_witnessed and searches.needed[at]:
                is_witnessed = _keep_having(searches, at)
        for at in range(begin, end):
            place = _place(known, one, two)
            if known.answers[place] == EMPTY:
                _enter(known, place, one, two, POSSIBLE if is_witnessed else TOO_LARGE)
                if not is_witnessed:
                    questions.searches[count], questions.prefixes[count] = s, at - begin
                    questions.places[count] = place
                    count += 1
            word = _word(sets.columns[at], sets.codes[at])
            one, two = one + word, two + mixed(word)
            is_witnessed = is_witnessed and _keep_having(searches, at)
    return count


@gradual
@loops
def advance(searches: Any, known: Any, met: Any, owners: Any) -> int:
    """Take the answers to the questions of all waiting searches; return the questions that they have then.

    met: Known without any, with places for more sets than there are searches; written.
    owners: int64 [places of `met`], written.
    """
    sets, count = searches.sets, 0
    for s in range(searches.ends.size):
        if searches.stage[s] != WAITING:
            continue
        begin = sets.starts[s]
        _take_answers(searches, known, s)
        if searches.stage[s] != WAITING:
            continue
        # What a search depends on from here on: its needed findings, and those with the rest.
        one, two = _key_of_needed(searches, s)
        one, two = np.uint64(3) * one, np.uint64(3) * two
        for at in range(begin, begin + searches.ends[s]):
            word = _word(sets.columns[at], sets.codes[at])
            one, two = one + word, two + mixed(word)
        place = _place(met, one, two)
        if met.answers[place] == EMPTY:
            _enter(met, place, one, two, POSSIBLE)
            owners[place] = s
            count += searches.ends[s]
        else:
            # Of searches that have become equal the first one goes on.
            searches.stage[s], searches.same[s] = EQUAL, owners[place]
    return count


@part
def _take_answers(searches: Any, known: Any, s: int) -> None:
    sets, begin, rest = searches.sets, searches.sets.starts[s], searches.ends[s]
    one, two = _key_of_needed(searches, s)
    # Findings that are added until the set is impossible: all of them if only the last prefix, the set itself, is.
    is_known, added = True, rest
    for prefix in range(rest):
        answer = known.answers[_place(known, one, two)]
        is_known &= answer != TOO_LARGE
        if answer == IMPOSSIBLE and added == rest:
            added = prefix
        word = _word(sets.columns[begin + prefix], sets.codes[begin + prefix])
        one, two = one + word, two + mixed(word)
    if not is_known:
        searches.stage[s] = GIVEN_UP
        return
    # Nothing is left to find where the needed ones are impossible.
    searches.ends[s] = max(0, added - 1)
    if added:
        searches.needed[begin + added - 1] = True
    if searches.ends[s] == 0:
        searches.stage[s] = FOUND


@gradual
@loops
def mark_columns(searches: Any, questions: Any, lines: Any) -> int:
    """Number the columns that questions have findings in, in their order; return how many there are.

    lines: int64 [columns], written: the number of each, or -1.
    """
    sets = searches.sets
    lines[:] = -1
    for n in range(questions.searches.size):
        s = questions.searches[n]
        begin, end = sets.starts[s], sets.starts[s] + searches.ends[s]
        for at in range(begin, sets.starts[s + 1]):
            if at < begin + questions.prefixes[n] or (at >= end and searches.needed[at]):
                lines[sets.columns[at]] = 0
    count = 0
    for column in range(lines.size):
        if lines[column] == 0:
            lines[column] = count
            count += 1
    return count


@gradual
@loops
def write_codes(searches: Any, questions: Any, lines: Any, sizes: Any, codes: Any) -> None:
    """Write the findings of questions.

    lines: of `mark_columns`.
    sizes: int32 [columns], codes of no finding.
    codes: int32 [lines, questions], written.
    """
    sets = searches.sets
    for column in range(lines.size):
        if lines[column] >= 0:
            codes[lines[column], :] = sizes[column]
    for n in range(questions.searches.size):
        s = questions.searches[n]
        begin, end = sets.starts[s], sets.starts[s] + searches.ends[s]
        for at in range(begin, sets.starts[s + 1]):
            if at < begin + questions.prefixes[n] or (at >= end and searches.needed[at]):
                codes[lines[sets.columns[at]], n] = sets.codes[at]


@gradual
@loops
def write_having(addresses: Any, rows: Any, columns: Any, codes: Any, having: Any) -> None:
    """Write which of some rows have findings, as bits.

    addresses: int64, of the codes of each column, int32.
    rows: int64 [n].
    columns, codes: [findings].
    having: uint64 [findings, words], written.
    """
    for f in range(columns.size):
        for w in range(having.shape[1]):
            word = NOTHING
            for i in range(w << 6, min(rows.size, (w + 1) << 6)):
                there = state_at(addresses[columns[f]] + STATE * rows[i]) == codes[f]
                word |= np.uint64(there) << np.uint64(i & 63)
            having[f, w] = word


@gradual
@loops
def write_keys(culprits: Any, codes: Any, cases: Any, keys: Any, counts: Any) -> None:
    """Write keys of the sets of culprits of some cases, equal for equal sets, and how many findings they have.

    culprits: uint8 [cases, columns].
    codes: int32 [columns, cases].
    cases: int64 [n].
    keys: uint64 [n], written.
    counts: int64 [n], written.
    """
    for n in range(cases.size):
        case, key, count = cases[n], NOTHING, 0
        for column in range(codes.shape[0]):
            if culprits[case, column]:
                key += _word(column, codes[column, case])
                count += 1
        keys[n], counts[n] = key, count


@gradual
@loops
def write_sets(culprits: Any, codes: Any, cases: Any, sets: Any) -> None:
    """Write the sets of culprits of some cases; arguments as of `write_keys`, the starts of the sets are there."""
    for n in range(cases.size):
        at = sets.starts[n]
        for column in range(codes.shape[0]):
            if culprits[cases[n], column]:
                sets.columns[at], sets.codes[at] = column, codes[column, cases[n]]
                at += 1
