"""Why rows are impossible: for each a minimal set of findings that contradict each other.

Main functions: `give_reasons`, called by the engine once a batch is answered, and `reason_of` for a single case. A set
is minimal if it has probability 0, and any part of it more: a minimal unsatisfiable subset (Junker 2004, QuickXplain).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import case_words as words
from junctor_kernels.row_trees import contradictions as searching
from junctor_kernels.row_trees.contradictions import FindingSets, Questions, Searches

from junctor.backends.impossibility import Decision, FindingColumns, Limits, Rooms, decide, zeros_of
from junctor.evidence.batch import EvidenceBatch, Rows, SoftEvidence
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads

# Column and code.
Finding = tuple[int, int]
Contradiction = tuple[Finding, ...]

# Word operations of the search in a batch: for each impossible row and variable, and at least. That is half a
# microsecond; an answer takes about one for each variable. Rows that the search does not come to keep a general reason.
ROW_OPERATIONS, LEAST_OPERATIONS = 1024, 1 << 25
# What a question is charged beside its tree, in word operations.
QUESTION_OPERATIONS = 1 << 15
# Searches side by side: their questions share trees.
SIDE_BY_SIDE = 1024
# Rows that suspicions are gathered from at a time: what contradicts itself in them does so in many later ones.
ROWS_AT_A_TIME = 2048
# Possible rows that are witnesses: what they have is possible, and no question.
MOST_WITNESSES = 4096
# Rows that a thread looks up for contradictions at a time, in half a millisecond.
LOOKED_UP = 2048
# Places for answers at first, a power of two.
LEAST_PLACES = 1 << 10
# Bytes: however many more there are, reasons do not depend on them.
MOST_MEMORY = 1 << 27


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
        suspicions, suspicion_of = search.suspicions(rows[: search.rows_at_a_time])
        unexplained = np.ones(len(rows), dtype=np.bool_)
        numbers = np.arange(len(suspicions.starts) - 1)
        while search.left > 0:
            # The most frequent first; many of the others are explained meanwhile.
            left = suspicion_of[unexplained[: len(suspicion_of)] & (suspicion_of >= 0)]
            numbers = numbers[np.bincount(left, minlength=len(suspicions.starts) - 1)[numbers] > 0]
            asked, numbers = numbers[:SIDE_BY_SIDE], numbers[SIDE_BY_SIDE:]
            if not asked.size:
                break
            places = np.flatnonzero(unexplained)
            explained, texts = search.explained(search.contradictions(suspicions.some(asked)), rows[places])
            answers.reasons.update(zip(rows[places[explained]].tolist(), texts, strict=True))
            unexplained[places[explained]] = False
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
        self._rooms = Rooms(self._zeros.supports.factors, self._columns.variables)
        self._witnesses = witnesses
        self.rows_at_a_time = min(ROWS_AT_A_TIME, self._columns.rows_at_a_time(limits.memory))
        self._known = searching.known(LEAST_PLACES)
        if network.kind == "bayes":
            # Without evidence it has probability 1.
            searching.enter_nothing(self._known)

    def suspicions(self, rows: Rows) -> tuple[FindingSets, Rows]:
        """Return impossible sets of findings in some rows, the most frequent first, and which one each row has.

        A row that is not decided has -1.
        """
        findings, numbers = self._columns.of_rows(rows), np.full(len(rows), -1, dtype=np.int64)
        decision = decide(self._zeros.supports, findings, self._limits, self._rooms, accuse=True)
        places = np.flatnonzero(decision.found == words.IMPOSSIBLE)
        keys, sizes = np.empty(len(places), dtype=np.uint64), np.empty(len(places), dtype=np.int64)
        searching.write_keys(decision.culprits, findings.codes, places, keys, sizes)
        # Equal by chance with probability 1e-12; rows have to have the findings all the same before they get a reason.
        _, first, groups, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        # Of equally frequent ones that of the earliest row comes first.
        order = np.lexsort((first, -counts))
        numbers[places] = np.argsort(order)[groups.ravel()]
        starts = np.append(0, np.cumsum(sizes[first[order]]))
        sets = FindingSets(np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int32), starts)
        searching.write_sets(decision.culprits, findings.codes, places[first[order]], sets)
        return sets, numbers

    def contradictions(self, suspicions: FindingSets) -> list[Contradiction]:
        """Return a minimal contradiction in each of some impossible sets, where that does not take too much."""
        searches = self._begun(suspicions)
        places = _places_for(len(searches.ends))
        questions = int(searches.ends.sum())
        while questions:
            self._ask(searches, questions)
            questions = searching.advance(searches, self._known, searching.known(places))
        is_found = searches.stage == searching.FOUND
        needed = searches.needed & np.repeat(is_found, np.diff(suspicions.starts))
        # A set may be empty, where the network itself is impossible.
        sizes = np.diff(np.append(0, np.cumsum(needed))[suspicions.starts])[is_found]
        found = FindingSets(suspicions.columns[needed], suspicions.codes[needed], np.append(0, np.cumsum(sizes)))
        return list(dict.fromkeys(found.lists()))

    def _begun(self, sets: FindingSets) -> Searches:
        """Return the searches in impossible sets."""
        findings = (sets.columns << 32) | sets.codes
        different, lines = np.unique(findings, return_inverse=True)
        having = np.empty((len(different), 1 + len(self._witnesses) // words.BITS), dtype=np.uint64)
        columns, codes = different >> 32, different & 0xFFFFFFFF
        searching.write_having(self._columns.addresses, self._witnesses, columns, codes, having)
        return searching.searches_in(sets, lines.ravel(), having, len(self._witnesses))

    def explained(self, contradictions: Sequence[Contradiction], rows: Rows) -> tuple[Rows, list[str]]:
        """Return the places of those of some rows that have all findings of a contradiction, and it in words.

        A row that has several is with the first one.
        """
        pairs = np.array(list(chain.from_iterable(contradictions)), dtype=np.int64).reshape(-1, 2)
        starts = np.append(0, np.cumsum([len(some) for some in contradictions], dtype=np.int64))
        sets = FindingSets(np.ascontiguousarray(pairs[:, 0]), pairs[:, 1].astype(np.int32), starts)
        found = np.empty(len(rows), dtype=np.int64)

        def look_up(start: int, _: int) -> None:
            here = slice(start, start + LOOKED_UP)
            some = rows[here]
            searching.explain(self._columns.addresses, some, sets, np.empty_like(some), found[here])

        in_threads(look_up, range(0, len(rows), LOOKED_UP), self._limits.threads)
        places = np.flatnonzero(found >= 0)
        texts = [self._text(contradiction) for contradiction in contradictions]
        return places, [texts[number] for number in found[places].tolist()]

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
        """Learn whether the questions of searches are possible; those of the first ones where not all can be asked.

        most: number of questions, equal ones included.
        """
        self._reserve(most)
        questions = Questions(*np.empty((3, most), dtype=np.int64))
        count = searching.ask(searches, self._known, questions)
        while count and self.left > 0:
            some = questions.first(count)
            decision = self._decide(searches, some)
            is_known = decision.found != words.TOO_LARGE
            if is_known.any():
                self._known.answers[some.places[is_known]] = decision.found[is_known]
                return
            count //= 2

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
        limits = replace(self._limits, operations=self.left)
        decision = decide(self._zeros.supports, findings, limits, self._rooms)
        self.left -= decision.operations + QUESTION_OPERATIONS * len(questions.places)
        return decision


def _places_for(sets: int) -> int:
    """Return places for so many sets: a power of two, at most half of which are taken."""
    return max(LEAST_PLACES, 1 << (2 * sets).bit_length())
