"""Why rows are impossible: for each a minimal set of findings that contradict each other.

Main functions: `give_reasons`, called by the engine once a batch is answered, and `reason_of` for a single case. A set
is minimal if it has probability 0, and any part of it more: a minimal unsatisfiable subset (Junker 2004, QuickXplain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress
from operator import and_, or_

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import possible as words

from junctor.backends.impossibility import Decision, FindingColumns, Limits, decide, zeros_of
from junctor.evidence.batch import EvidenceBatch, Rows, SoftEvidence
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network

# Column and code.
Finding = tuple[int, int]
FindingSet = tuple[Finding, ...]

# Word operations of the search in a batch: for each impossible row and variable, and at least. That is half a
# microsecond; an answer takes about one for each variable. Rows that the search does not come to keep a general reason.
ROW_OPERATIONS, LEAST_OPERATIONS = 1024, 1 << 25
# What a question takes in Python, in word operations.
QUESTION_OPERATIONS = 1 << 15
# Searches side by side: their questions share trees.
SIDE_BY_SIDE = 1024
# Rows that suspicions are gathered from at a time: what contradicts itself in them does so in many later ones.
ROWS_AT_A_TIME = 2048
# Possible rows that are witnesses: what they have is possible, and no question.
MOST_WITNESSES = 4096
# Rows at a time that are looked up for contradictions: a few kilobytes for each finding.
LOOKED_UP = 1 << 16
# Bytes: however many more there are, reasons do not depend on them.
MOST_MEMORY = 1 << 28


def give_reasons(network: Network, batch: EvidenceBatch, answers: Answers, memory: int, threads: int) -> None:
    """Write which findings contradict each other in impossible rows, as far as a bounded search finds it.

    network: the network.
    batch: evidence.
    answers: of the batch; the reasons of impossible rows are written here.
    memory: bytes that this may take; with too few, reasons stay as they are.
    threads: number of threads; reasons do not depend on it.
    """
    rows = np.flatnonzero(answers.status == IMPOSSIBLE)
    if not rows.size or 2 * sum(factor.table.size for factor in network.factors) > memory:
        return
    witnesses = np.flatnonzero(answers.status == OK)[:MOST_WITNESSES]
    search = ContradictionSearch(network, batch, len(rows), witnesses, Limits(min(memory, MOST_MEMORY), threads))
    while rows.size and search.left > 0:
        suspicions = search.suspicions(rows[: search.rows_at_a_time])
        unexplained = np.ones(len(rows), dtype=np.bool_)
        while search.left > 0:
            # The most frequent first; many of the others are explained meanwhile.
            suspicions = [(some, places) for some, places in suspicions if unexplained[places].any()]
            asked, suspicions = suspicions[:SIDE_BY_SIDE], suspicions[SIDE_BY_SIDE:]
            if not asked:
                break
            found = list(dict.fromkeys(search.contradictions([some for some, _ in asked])))
            for text, places in search.explained(found, rows, np.flatnonzero(unexplained)):
                unexplained[places] = False
                answers.reasons.update(dict.fromkeys(rows[places].tolist(), text))
        # What could not be explained is not tried again.
        unexplained[: search.rows_at_a_time] = False
        rows = rows[unexplained]


def reason_of(network: Network, likelihoods: Mapping[int, npt.NDArray[np.float64]], memory: int) -> str:
    """Return why a single case is impossible.

    network: the network.
    likelihoods: variable -> likelihood of each state; one state alone is an observed one.
    memory: bytes that this may take.
    """
    states, soft = {}, {}
    for v, values in likelihoods.items():
        allowed = np.flatnonzero(values)
        if len(allowed) == 1:
            states[v] = allowed.astype(np.int32)
        elif len(allowed):
            soft[v] = SoftEvidence(np.zeros(1, dtype=np.int64), values[None])
    answers = Answers((), np.array([IMPOSSIBLE], dtype=np.int8), np.array([-np.inf]), reasons={0: NO_PROBABILITY})
    # Likelihoods of zeros alone, which no row of a table has, need no search.
    if len(states) + len(soft) == len(likelihoods):
        give_reasons(network, EvidenceBatch(1, states, soft), answers, memory, 1)
    return answers.reasons[0]


class _RowSets:
    """Which of some rows have a finding, as bits: sets of rows that are quick to intersect.

    columns: findings of a batch.
    rows: some of its rows.
    """

    def __init__(self, columns: FindingColumns, rows: Rows) -> None:
        self._columns = columns
        self._rows = rows
        self._having: dict[Finding, int] = {}
        self.all = (1 << len(rows)) - 1

    def having(self, finding: Finding) -> int:
        """Return the rows that have a finding."""
        if finding not in self._having:
            has = self._columns.having(*finding, self._rows)
            self._having[finding] = int.from_bytes(np.packbits(has, bitorder="little").tobytes(), "little")
        return self._having[finding]

    def places(self, rows: int) -> Rows:
        """Return the places of some rows."""
        count = len(self._rows)
        packed = np.frombuffer(rows.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(packed, bitorder="little").view(np.bool_))


@dataclass(eq=False, slots=True)
class _Progress:
    """Search for a minimal contradiction in a set of findings.

    rest: findings among which some are needed, a bit for each; impossible together with the needed ones.
    having: witnesses that have each of them.
    witnesses: that have the needed ones.
    needed: possible with the rest as long as any one of them is missing.
    is_known: False where an answer takes too much.
    questions: sets to ask about.
    witnessed: witnesses that have each of these sets.
    """

    # Findings of the rest are added to the needed ones until these are impossible: the last one is needed, and those
    # after it are not. All prefixes are asked at once, each is a case.

    rest: list[int]
    having: list[int]
    witnesses: int
    needed: int = 0
    is_known: bool = True
    questions: list[int] = field(init=False)
    witnessed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._set_questions()

    def _set_questions(self) -> None:
        if self.rest:
            self.questions = list(accumulate(self.rest[:-1], or_, initial=self.needed))
            self.witnessed = list(accumulate(self.having[:-1], and_, initial=self.witnesses))

    @property
    def key(self) -> tuple[int, int]:
        """What the search depends on from here on."""
        return self.needed, self.questions[-1] | self.rest[-1]

    def advance(self, answers: Mapping[int, bool | None]) -> None:
        """Take the answers to the questions."""
        possible = [answers[question] for question in self.questions]
        self.is_known = None not in possible
        count = possible.index(False) if False in possible else len(possible)
        if count:
            self.needed |= self.rest[count - 1]
            self.witnesses &= self.having[count - 1]
        # Nothing is left to find where the needed ones are impossible.
        end = max(0, count - 1) if self.is_known else 0
        del self.rest[end:], self.having[end:]
        self._set_questions()


class ContradictionSearch:
    """Minimal contradictions among the findings of a batch.

    network: the network.
    batch: evidence.
    rows: how many are to be explained.
    witnesses: rows that are possible.
    limits: what is asked at a time may take.
    left: word operations that are left for the search.
    """

    def __init__(self, network: Network, batch: EvidenceBatch, rows: int, witnesses: Rows, limits: Limits) -> None:
        self.left = max(LEAST_OPERATIONS, ROW_OPERATIONS * rows * len(network.variables))
        self._network = network
        self._zeros = zeros_of(network)
        self._columns = FindingColumns(self._zeros, batch)
        self._limits = limits
        self._witnesses = _RowSets(self._columns, witnesses)
        columns = len(self._columns.variables)
        # A random number for each column, the same at every call.
        self._words = np.random.default_rng(0).integers(1 << 63, size=columns, dtype=np.uint64)
        # Finding in suspicions -> its bit, since sets as bits are quick to add to and to tell from others, and the
        # witnesses that have it.
        self._met: dict[Finding, tuple[int, int]] = {}
        self.rows_at_a_time = min(ROWS_AT_A_TIME, self._columns.rows_at_a_time(limits.memory))
        # Set of findings, as bits -> answer. None: not known, it takes too much.
        self._possible: dict[int, bool | None] = {}
        if network.kind == "bayes":
            # Without evidence it has probability 1.
            self._possible[0] = True

    def suspicions(self, rows: Rows) -> list[tuple[FindingSet, Rows]]:
        """Return impossible sets of findings in some rows, with the places of those rows, the most frequent first."""
        findings = self._columns.of_rows(rows)
        decision = decide(self._zeros.supports, findings, self._limits, accuse=True)
        places = np.flatnonzero(decision.found == words.IMPOSSIBLE)
        # Few findings of a row are culprits.
        cases, columns = np.nonzero(decision.culprits[places].view(np.bool_))
        codes = findings.codes[columns, places[cases]]
        ends = np.searchsorted(cases, np.arange(len(places) + 1))
        # Equal by chance with probability 1e-12; rows have to have the findings all the same before they get a reason.
        odd = (2 * codes + 1).astype(np.uint64) * self._words[columns]
        keys = np.diff(np.cumsum(np.append(np.uint64(0), odd))[ends])
        _, first, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        by_set = np.split(places[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
        found = []
        # Of equally frequent ones that of the earliest row comes first.
        for n in np.lexsort((first, -counts)).tolist():
            here = slice(ends[first[n]], ends[first[n] + 1])
            found.append((tuple(zip(columns[here].tolist(), codes[here].tolist(), strict=True)), by_set[n]))
        return found

    def contradictions(self, suspicions: Sequence[FindingSet]) -> list[FindingSet]:
        """Return a minimal contradiction in each of some impossible sets, where that does not take too much."""
        for finding in dict.fromkeys(chain.from_iterable(suspicions)):
            self._met.setdefault(finding, (1 << len(self._met), self._witnesses.having(finding)))
        searches = [self._begun(some) for some in suspicions]
        waiting = [search for search in searches if search.rest]
        while waiting:
            self._ask(waiting)
            different: dict[tuple[int, int], _Progress] = {}
            for search in waiting:
                search.advance(self._possible)
                if search.rest:
                    # Of searches that have become equal the first one goes on.
                    different.setdefault(search.key, search)
            waiting = list(different.values())
        findings = list(self._met)
        sets = dict.fromkeys(search.needed for search in searches if search.is_known and not search.rest)
        return [tuple(sorted(findings[number] for number in _numbers_of(some))) for some in sets]

    def _begun(self, some: FindingSet) -> _Progress:
        """Return the search in an impossible set."""
        met = [self._met[finding] for finding in some]
        return _Progress([bit for bit, _ in met], [rows for _, rows in met], self._witnesses.all)

    def explained(self, contradictions: Sequence[FindingSet], rows: Rows, places: Rows) -> Iterator[tuple[str, Rows]]:
        """Yield contradictions in words, and those of some places in `rows` whose rows have all findings of it.

        A row that has several is with the first one.
        """
        texts = [self._text(contradiction) for contradiction in contradictions]
        for start in range(0, len(places), LOOKED_UP):
            some = places[start : start + LOOKED_UP]
            sets = _RowSets(self._columns, rows[some])
            left = sets.all
            for text, contradiction in zip(texts, contradictions, strict=True):
                have = left
                for finding in contradiction:
                    have &= sets.having(finding)
                if have:
                    left ^= have
                    yield text, some[sets.places(have)]

    def _text(self, contradiction: FindingSet) -> str:
        """Return a contradiction in words."""
        findings = [self._name(column, code) for column, code in contradiction]
        if not findings:
            return "impossible: the network has probability 0 without any evidence"
        if len(findings) == 1:
            return f"impossible: {findings[0]} has probability 0"
        return f"impossible: {findings[0]} with {', '.join(findings[1:])}"

    def _name(self, column: int, code: int) -> str:
        variable = self._network.variables[self._columns.variables[column]]
        # Codes beyond the states are likelihoods.
        if code >= variable.cardinality:
            return f"likelihood on {variable.name}"
        return f"{variable.name} = {variable.states[code]}"

    def _ask(self, searches: Sequence[_Progress]) -> None:
        """Learn whether the questions of searches are possible; those of the first ones where not all can be asked."""
        questions = chain.from_iterable(search.questions for search in searches)
        witnessed = dict(zip(questions, chain.from_iterable(search.witnessed for search in searches), strict=True))
        new = [question for question in witnessed if question not in self._possible]
        # What a possible row has is possible.
        self._possible.update((question, bool(witnessed[question]) or None) for question in new)
        new = [question for question in new if not witnessed[question]]
        while new and self.left > 0:
            decision = self._decide(new)
            known = decision.found != words.TOO_LARGE
            if known.any():
                found = (decision.found == words.POSSIBLE)[known].tolist()
                self._possible.update(zip(compress(new, known.tolist()), found, strict=True))
                return
            new = new[: len(new) // 2]

    def _decide(self, sets: Sequence[int]) -> Decision:
        column, code = np.array(list(self._met), dtype=np.int64).reshape(-1, 2).T
        size = -(-len(code) // 8)
        packed = np.frombuffer(b"".join(some.to_bytes(size, "little") for some in sets), dtype=np.uint8)
        has = np.unpackbits(packed.reshape(len(sets), size), axis=1, bitorder="little").view(np.bool_)
        columns = np.unique(column[np.flatnonzero(has.any(axis=0))])
        codes: npt.NDArray[np.int32] = np.repeat(self._columns.sizes[columns, None], len(sets), axis=1)
        cases, numbers = np.nonzero(has)
        codes[np.searchsorted(columns, column)[numbers], cases] = code[numbers]
        limits = replace(self._limits, operations=self.left)
        decision = decide(self._zeros.supports, self._columns.of_codes(codes, columns.tolist()), limits)
        self.left -= decision.operations + QUESTION_OPERATIONS * len(sets)
        return decision


def _numbers_of(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
