"""Why rows are impossible: for each a minimal set of findings that contradict each other.

Main functions: `give_reasons`, called by the engine once a batch is answered, and `reason_of` for a single case. A set
is minimal if it has probability 0, and any part of it more: a minimal unsatisfiable subset (Junker 2004, QuickXplain).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
            for contradiction in dict.fromkeys(search.contradictions([some for some, _ in asked])):
                places = search.places_of(contradiction, rows, np.flatnonzero(unexplained))
                unexplained[places] = False
                answers.reasons.update(dict.fromkeys(rows[places].tolist(), search.text(contradiction)))
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


@dataclass(eq=False, slots=True)
class _Progress:
    """Search for a minimal contradiction in a set of findings.

    rest: among which some are needed; impossible together with the needed ones.
    needed: possible with the rest as long as any one of them is missing.
    questions: sets to ask about.
    """

    # Findings of the rest are added to the needed ones until these are impossible: the last one is needed, and those
    # after it are not. All prefixes are asked at once, each is a case.

    rest: FindingSet
    needed: FindingSet = ()
    questions: list[FindingSet] = field(init=False)

    def __post_init__(self) -> None:
        self._set_questions()

    def _set_questions(self) -> None:
        self.questions = [tuple(sorted(self.needed + self.rest[:count])) for count in range(len(self.rest))]

    def advance(self, possible: Sequence[bool | None]) -> None:
        """Take the answers to the questions."""
        count = next((n for n, answer in enumerate(possible) if not answer), len(possible))
        if count == 0:
            self.rest = ()
        else:
            self.needed, self.rest = (*self.needed, self.rest[count - 1]), self.rest[: count - 1]
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
        self._witnesses = witnesses
        columns = len(self._columns.variables)
        # A random number for each column, the same at every call.
        self._words = np.random.default_rng(0).integers(1 << 63, size=columns, dtype=np.uint64)
        # Finding -> bits of the witnesses that have it.
        self._witnessed: dict[Finding, int] = {}
        self.rows_at_a_time = min(ROWS_AT_A_TIME, self._columns.rows_at_a_time(limits.memory))
        # A Bayesian network without evidence has probability 1. None: not known, it takes too much.
        self._possible: dict[FindingSet, bool | None] = {(): True} if network.kind == "bayes" else {}

    def suspicions(self, rows: Rows) -> list[tuple[FindingSet, Rows]]:
        """Return impossible sets of findings in some rows, with the places of those rows, the most frequent first."""
        findings = self._columns.of_rows(rows)
        decision = decide(self._zeros.supports, findings, self._limits, accuse=True)
        places = np.flatnonzero(decision.found == words.IMPOSSIBLE)
        culprits = decision.culprits[places].astype(np.bool_)
        # Equal by chance with probability 1e-12; rows have to have the findings all the same before they get a reason.
        odd = np.where(culprits, 2 * findings.codes[:, places].T + 1, 0).astype(np.uint64)
        keys = odd @ self._words
        _, first, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        by_set = np.split(places[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
        found = []
        # Of equally frequent ones that of the earliest row comes first.
        for n in np.lexsort((first, -counts)).tolist():
            columns, place = np.flatnonzero(culprits[first[n]]), places[first[n]]
            some = tuple(zip(columns.tolist(), findings.codes[columns, place].tolist(), strict=True))
            found.append((some, by_set[n]))
        return found

    def contradictions(self, suspicions: Sequence[FindingSet]) -> list[FindingSet]:
        """Return a minimal contradiction in each of some impossible sets, where that does not take too much."""
        searches = [_Progress(some) for some in suspicions]
        while unfinished := [search for search in searches if search.rest]:
            self._ask([question for search in unfinished for question in search.questions])
            for search in unfinished:
                possible = [self._possible[question] for question in search.questions]
                if None in possible:
                    searches.remove(search)
                else:
                    search.advance(possible)
        return [tuple(sorted(search.needed)) for search in searches]

    def places_of(self, contradiction: FindingSet, rows: Rows, places: Rows) -> Rows:
        """Return those of some places in `rows` whose rows have all findings of a contradiction."""
        for column, code in contradiction:
            places = places[self._columns.codes(column, rows[places]) == code]
        return places

    def text(self, contradiction: FindingSet) -> str:
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

    def _ask(self, questions: Sequence[FindingSet]) -> None:
        """Learn whether sets of findings are possible; those of the first searches where not all can be asked."""
        new = [question for question in dict.fromkeys(questions) if question not in self._possible]
        self._possible.update((question, self._is_witnessed(question) or None) for question in new)
        new = [question for question in new if self._possible[question] is None]
        while new and self.left > 0:
            decision = self._decide(new)
            known = decision.found != words.TOO_LARGE
            for number in np.flatnonzero(known).tolist():
                self._possible[new[number]] = bool(decision.found[number] == words.POSSIBLE)
            if known.any():
                return
            new = new[: len(new) // 2]

    def _is_witnessed(self, some: FindingSet) -> bool:
        """Return True if a possible row has some findings."""
        rows = -1 if self._witnesses.size else 0
        for finding in some:
            if finding not in self._witnessed:
                has = self._columns.codes(finding[0], self._witnesses) == finding[1]
                self._witnessed[finding] = int.from_bytes(np.packbits(has).tobytes(), "little")
            rows &= self._witnessed[finding]
        return rows != 0

    def _decide(self, sets: Sequence[FindingSet]) -> Decision:
        findings = np.array([finding for some in sets for finding in some], dtype=np.int32).reshape(-1, 2)
        cases = np.repeat(np.arange(len(sets)), [len(some) for some in sets])
        columns, places = np.unique(findings[:, 0], return_inverse=True)
        codes: npt.NDArray[np.int32] = np.repeat(self._columns.sizes[columns, None], len(sets), axis=1)
        codes[places, cases] = findings[:, 1]
        limits = replace(self._limits, operations=self.left)
        decision = decide(self._zeros.supports, self._columns.of_codes(codes, columns.tolist()), limits)
        self.left -= decision.operations + QUESTION_OPERATIONS * len(sets)
        return decision
