"""Why rows are impossible: for each a minimal set of findings that contradict each other.

Main functions: `give_reasons`, called by the engine once a batch is answered, and `reason_of` for a single case. A set
is minimal if it has probability 0, and any part of it more: a minimal unsatisfiable subset (Junker 2004, QuickXplain).
Of the several that a row may have, which one is found depends on the network and the row alone, so that reasons are the
same however rows are cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import case_words as words
from junctor_kernels.row_trees import contradictions as searching
from junctor_kernels.row_trees.contradictions import FindingSets, Questions, Searches
from junctor_kernels.row_trees.culprits import accuse_factors

from junctor.backends.impossibility import Decision, FindingColumns, Limits, Rooms, decide, operations_of, zeros_of
from junctor.evidence.batch import EvidenceBatch, Rows, SoftEvidence
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads

# Column and code.
Finding = tuple[int, int]
Contradiction = tuple[Finding, ...]

# Word operations of a tree whose messages 64 cases have together, an eighth of a second: rows keep a general reason
# where more are needed. Of these are the tree of the network, or, if that is larger, the one of all findings to search
# among; and the tree of the row, if no factor is enough.
MOST_OPERATIONS = 1 << 27
# Searches side by side: their questions share trees.
SIDE_BY_SIDE = 1024
# Possible rows that are witnesses: what they have is possible, and no question.
MOST_WITNESSES = 4096
# Rows whose factors a thread looks at, at a time, in a few milliseconds.
LOOKED_AT = 4096
# Places for answers at first, a power of two.
LEAST_PLACES = 1 << 10
# Bytes: however many more there are, reasons do not depend on them.
MOST_MEMORY = 1 << 27


def give_reasons(network: Network, batch: EvidenceBatch, answers: Answers, memory: int, threads: int) -> None:
    """Write which findings contradict each other in impossible rows, as far as that does not take too much.

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
    search = ContradictionSearch(network, batch, witnesses, Limits(min(memory, MOST_MEMORY), threads, MOST_OPERATIONS))
    for start in range(0, len(rows), search.rows_at_a_time):
        some = rows[start : start + search.rows_at_a_time]
        sets, numbers = search.suspicions(some)
        texts = search.texts(sets)
        told = {row: texts[number] for row, number in zip(some.tolist(), numbers.tolist(), strict=True) if number >= 0}
        answers.reasons.update({row: text for row, text in told.items() if text is not None})


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


class ContradictionSearch:
    """Minimal contradictions among the findings of a batch.

    network: the network.
    batch: evidence.
    witnesses: rows that are possible: what they have is no question.
    limits: what is asked at a time may take.
    """

    def __init__(self, network: Network, batch: EvidenceBatch, witnesses: Rows, limits: Limits) -> None:
        self._network = network
        self._zeros = zeros_of(network)
        self._columns = FindingColumns(self._zeros, batch)
        self._limits = limits
        self._rooms = Rooms(self._zeros.supports.factors, self._columns.variables)
        self._witnesses = witnesses
        self.rows_at_a_time = self._columns.rows_at_a_time(limits.memory)
        self._known = searching.known(LEAST_PLACES)
        # Columns and codes of a set as bytes -> its contradiction in words, None where that takes too much.
        self._told: dict[bytes, str | None] = {}
        if network.kind == "bayes":
            # Without evidence it has probability 1.
            searching.enter_nothing(self._known)

    def suspicions(self, rows: Rows) -> tuple[FindingSets, Rows]:
        """Return different impossible sets of findings, and which one of them each of some rows has.

        A row that is not decided has -1.
        """
        findings, numbers = self._columns.of_rows(rows), np.full(len(rows), -1, dtype=np.int64)
        decision = self._accused(findings)
        places = np.flatnonzero(decision.found == words.IMPOSSIBLE)
        keys, sizes = np.empty(len(places), dtype=np.uint64), np.empty(len(places), dtype=np.int64)
        searching.write_keys(decision.culprits, findings.codes, places, keys, sizes)
        # Equal by chance with probability 1e-12.
        _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
        numbers[places] = groups.ravel()
        starts = np.append(0, np.cumsum(sizes[first]))
        sets = FindingSets(np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int32), starts)
        searching.write_sets(decision.culprits, findings.codes, places[first], sets)
        return sets, numbers

    def _accused(self, findings: words.Findings) -> Decision:
        """Return which cases are found impossible, with the culprits: on a factor, in other cases on their tree."""
        columns, cases = findings.codes.shape
        found, culprits = np.full(cases, words.POSSIBLE, dtype=np.uint8), np.zeros((cases, columns), dtype=np.uint8)
        supports, work = self._zeros.supports, np.empty((3, cases), dtype=np.int64)

        def look(start: int, _: int) -> None:
            end = min(cases, start + LOOKED_AT)
            some = np.empty(int(np.diff(supports.factors.places).max(initial=1)), dtype=np.uint8)
            accuse_factors(supports, findings, start, end, work, some, found, culprits)

        in_threads(look, range(0, cases, LOOKED_AT), self._limits.threads)
        left = np.flatnonzero(found != words.IMPOSSIBLE)
        others = findings._replace(codes=np.ascontiguousarray(findings.codes[:, left]))
        decision = decide(supports, others, self._limits, self._rooms, accuse=True)
        found[left], culprits[left] = decision.found, decision.culprits
        return Decision(found, culprits)

    def texts(self, sets: FindingSets) -> list[str | None]:
        """Return a minimal contradiction in each of some impossible sets in words, None where that takes too much."""
        names = sets.names()
        new = np.array([n for n, name in enumerate(names) if name not in self._told], dtype=np.int64)
        for start in range(0, len(new), SIDE_BY_SIDE):
            some = new[start : start + SIDE_BY_SIDE]
            for number, found in zip(some.tolist(), self.contradictions(sets.some(some)), strict=True):
                self._told[names[number]] = None if found is None else self._text(found)
        return [self._told[name] for name in names]

    def contradictions(self, suspicions: FindingSets) -> list[Contradiction | None]:
        """Return a minimal contradiction in each of some impossible sets, None where that takes too much."""
        searches = self._begun(suspicions)
        places = _places_for(len(searches.ends))
        questions = int(searches.ends[searches.stage == searching.WAITING].sum())
        while questions:
            self._ask(searches, questions)
            questions = searching.advance(searches, self._known, searching.known(places), np.empty(places, np.int64))
        needed = searches.needed
        # A set may be empty, where the network itself is impossible.
        starts = np.append(0, np.cumsum(needed))[suspicions.starts]
        sets = FindingSets(suspicions.columns[needed], suspicions.codes[needed], starts).lists()
        found: list[Contradiction | None] = []
        for stage, same, contradiction in zip(searches.stage.tolist(), searches.same.tolist(), sets, strict=True):
            # What it is equal to comes before it.
            equal = found[same] if stage == searching.EQUAL else None
            found.append(contradiction if stage == searching.FOUND else equal)
        return found

    def _begun(self, sets: FindingSets) -> Searches:
        """Return the searches in impossible sets."""
        findings = (sets.columns << 32) | sets.codes
        different, lines = np.unique(findings, return_inverse=True)
        having = np.empty((len(different), 1 + len(self._witnesses) // words.BITS), dtype=np.uint64)
        columns, codes = different >> 32, different & 0xFFFFFFFF
        searching.write_having(self._columns.addresses, self._witnesses, columns, codes, having)
        searches = searching.searches_in(sets, lines.ravel(), having, len(self._witnesses))
        if self._zeros.operations > self._limits.operations:
            is_larger = np.array([self._operations(some) > self._limits.operations for some in sets.lists()])
            searches.stage[is_larger & (searches.stage == searching.WAITING)] = searching.GIVEN_UP
        return searches

    def _operations(self, findings: Contradiction) -> float:
        """Return the word operations of a tree in which any of some findings may be missing."""
        columns, codes = np.array(findings, dtype=np.int64).reshape(-1, 2).T
        # Missing in one of two cases.
        both = np.stack([codes, self._columns.sizes[columns]], axis=1).astype(np.int32)
        return operations_of(self._zeros.supports, self._columns.of_codes(both, columns), self._rooms)

    def _text(self, contradiction: Contradiction) -> str:
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

    def _ask(self, searches: Searches, most: int) -> None:
        """Learn whether the questions of searches are possible; most: their number, equal ones included."""
        self._reserve(most)
        questions = Questions(*np.empty((3, most), dtype=np.int64))
        waiting = [questions.first(searching.ask(searches, self._known, questions))]
        while waiting:
            some = waiting.pop()
            found = self._decide(searches, some).found
            self._known.answers[some.places] = found
            left = some.some(np.flatnonzero(found == words.TOO_LARGE))
            # Less memory is needed for fewer together, and least for one alone, whose tree is its own.
            if len(some.places) > 1 and len(left.places):
                waiting += [left.some(part) for part in np.array_split(np.arange(len(left.places)), 2) if part.size]

    def _reserve(self, answers: int) -> None:
        """Make room for so many more answers."""
        places = _places_for(answers + int((self._known.answers != searching.EMPTY).sum()))
        if places > len(self._known.answers):
            before, self._known = self._known, searching.known(places)
            searching.copy_known(before, self._known)

    def _decide(self, searches: Searches, questions: Questions) -> Decision:
        lines = np.empty(len(self._columns.variables), dtype=np.int64)
        count = searching.mark_columns(searches, questions, lines)
        codes = np.empty((count, len(questions.places)), dtype=np.int32)
        searching.write_codes(searches, questions, lines, self._columns.sizes, codes)
        findings = self._columns.of_codes(codes, np.flatnonzero(lines >= 0))
        return decide(self._zeros.supports, findings, self._limits, self._rooms)


def _places_for(sets: int) -> int:
    """Return places for so many sets: a power of two, at most half of which are taken."""
    return max(LEAST_PLACES, 1 << (2 * sets).bit_length())
