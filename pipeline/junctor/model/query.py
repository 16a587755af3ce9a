"""Queries: what is asked of every row of evidence, and how rows are sampled. Main class: Query."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_args

from junctor.model.errors import EvidenceError, nearest
from junctor.model.question import AnswerKind, QueryKind, Question, question_name, question_of

if TYPE_CHECKING:
    from junctor.model.network import Network

# Fewer samples give no usable estimate of their own standard error.
LEAST_SAMPLES = 100
# Exclusive bound; 64-bit counters have room for more.
MOST_SAMPLES = 2**40
# Probability that an interval holds, where none is given.
CONFIDENCE = 0.95
# Entries of tables, far more than any memory holds.
MOST_ENTRIES = 2**48
# States of a target that scores show: far more than people read, and few enough for the width of a row.
MOST_TOP = 1024
# Characters of a pattern of names.
WILDCARDS = frozenset("*?[")

Precision = Literal["double", "single", "log"]
Method = Literal["exact", "sampling", "auto"]
Sampler = Literal["ais-bn", "epis-bn", "sis", "lw", "wmb"]
Stages = Literal["last", "all"]
# Joint posteriors come from messages (Shafer-Shenoy), from stored clique tables (Hugin), or from the faster of both.
Architecture = Literal["auto", "messages", "stored"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rows are sampled; raises EvidenceError for values out of range.

    sampler: likelihood weighting (`lw`), self-importance sampling (`sis`; Shachter and Peot 1990), AIS-BN (Cheng and
        Druzdzel 2000), EPIS-BN (Yuan and Druzdzel 2003) or weighted mini-buckets (`wmb`; Liu, Fisher and Ihler 2015);
        None for what `sampler_of` says.
    samples: samples for each row, learning included; None for the default of the sampler.
    error: largest standard error of a posterior, with `wmb` half of the width of its interval, instead of a number of
        samples.
    seed: 64 bits, not negative.
    stages: "all" counts the samples of the learning stages as well, "last" those of the last stage only.
    confidence: probability that an interval of `wmb` holds, each by itself.
    table_entries: of all tables of mini-buckets of a row together; None for the default.
    """

    sampler: Sampler | None = None
    samples: int | None = None
    error: float | None = None
    seed: int = 0
    stages: Stages = "all"
    confidence: float = CONFIDENCE
    table_entries: int | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None:
            one_of("sampler", self.sampler, Sampler)
        one_of("stages", self.stages, Stages)
        if self.samples is not None and self.error is not None:
            raise EvidenceError("found both a number of samples and an error, expected one of them")
        if self.samples is not None and not LEAST_SAMPLES <= self.samples < MOST_SAMPLES:
            raise EvidenceError(f"found {self.samples:,} samples, expected {LEAST_SAMPLES:,} or more (below 2^40)")
        if self.error is not None and not 0 < self.error < 1:
            raise EvidenceError(f"found an error of {self.error!r}, expected a number between 0 and 1")
        if not 0 <= self.seed < 2**64:
            raise EvidenceError(f"found seed {self.seed}, expected 0 to 2^64 - 1")
        if not 0 < self.confidence < 1:
            raise EvidenceError(f"found a confidence of {self.confidence!r}, expected a number between 0 and 1")
        if self.table_entries is not None and not 1 <= self.table_entries <= MOST_ENTRIES:
            raise EvidenceError(f"found {self.table_entries:,} entries of tables, expected 1 or more (at most 2^48)")
        if self.asks_intervals and self.sampler not in (None, "wmb"):
            raise EvidenceError(
                f"a confidence and entries of tables are of the sampler 'wmb', the sampler is {self.sampler!r}"
            )

    @property
    def asks_intervals(self) -> bool:
        """True where something is said that only weighted mini-buckets have."""
        return self.confidence != CONFIDENCE or self.table_entries is not None


@dataclass(frozen=True, slots=True)
class Query:
    """What is computed for every row; raises EvidenceError for unknown names, and for what explanations have not.

    kind: posterior marginals (`posteriors`) or the most probable explanation (`mpe`).
    targets: names of variables, or patterns of names (`DIAG_*`); None for all, in the order of the network.
    precision: plans with `log` propagate in log space (float64) from the start; all else does so only for rows whose
        numbers left their range.
    method: `exact`; `sampling`; `auto` samples the rows whose exact answers exceed the memory budget.
    sampling: options of the sampler.
    answers: of posteriors all numbers (`posteriors`), or most probable state, its probability and entropy (`scores`).
    top: scores have lists of so many states, the most probable first; None for one state and no list.
    probabilities: `variable=state`, whose posterior probabilities are columns of their own in scores.
    hide_targets: whether the variables that are named in all of these count as unobserved.
    expected: variables whose mean and variance are columns in scores, each with the numbers that its states stand for;
        none before `evidence.values` has looked for them.
    """

    kind: QueryKind = "posteriors"
    targets: tuple[str, ...] | None = None
    precision: Precision = "double"
    method: Method = "exact"
    sampling: Sampling = field(default_factory=Sampling)
    answers: AnswerKind = "posteriors"
    top: int | None = None
    probabilities: tuple[str, ...] = ()
    hide_targets: bool = False
    expected: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        one_of("query", self.kind, QueryKind)
        one_of("answers", self.answers, AnswerKind)
        self._check_scores()
        one_of("method", self.method, Method)
        if self.method != "exact" and not self.question.is_sampled:
            raise EvidenceError(f"sampling answers posteriors, not {self.question.plural}: use --method exact")
        one_of("precision", self.precision, Precision)

    @property
    def question(self) -> Question:
        """What is asked, whatever the names."""
        return question_of(question_name(self.kind, self.answers))

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of the answers."""
        return 4 if self.precision == "single" else 8

    def _check_scores(self) -> None:
        if self.kind != "posteriors" and self.answers != "posteriors":
            raise EvidenceError(
                f"{question_of(self.answers).plural} are of posteriors: an explanation is one state of every variable, "
                "found together, and none of them has a probability of its own; use --query posteriors"
            )
        asked = {"--probability": self.probabilities, "--expected": self.expected, "--top": self.top is not None}
        if not self.question.has_top and any(asked.values()):
            given = next(name for name, is_asked in asked.items() if is_asked)
            raise EvidenceError(
                f"{self.question.plural} have no scores: leave out {given}, or use --query posteriors --answers scores"
            )
        if self.top is not None and not (type(self.top) is int and 1 <= self.top <= MOST_TOP):
            raise EvidenceError(f"found top {self.top!r}, expected a number of states from 1 to {MOST_TOP:,}")


def sampler_of(network: Network, query: Query) -> Sampler:
    """Return the sampler of a query.

    Where none is named weighted mini-buckets of a Markov network, or where their options are given, else EPIS-BN.
    """
    # Markov networks have no tables of variables, given their parents, from which the others draw.
    is_bounded = network.kind == "markov" or query.sampling.asks_intervals
    return query.sampling.sampler or ("wmb" if is_bounded else "epis-bn")


def has_intervals(network: Network, query: Query) -> bool:
    """Return whether sampled numbers have intervals that hold with a stated probability."""
    return query.method != "exact" and sampler_of(network, query) == "wmb"


def sampling_record(network: Network, query: Query) -> dict[str, Any]:
    """Return how rows are sampled, with the sampler by name, and what is of intervals where there are some."""
    record = asdict(query.sampling) | {"sampler": sampler_of(network, query)}
    if not has_intervals(network, query):
        del record["confidence"], record["table_entries"]
    return record


def target_names(network: Network, query: Query) -> tuple[str, ...]:
    """Return the names of the targets in the order asked; raises EvidenceError for unknown or repeated ones.

    A target that is no variable's name may be a pattern (`fnmatch`, case matters); what is named already counts once.
    """
    if query.targets is None:
        return tuple(variable.name for variable in network.public)
    if not query.targets:
        raise EvidenceError("no targets given, expected at least one (or none named, for all variables)")
    # Repeated targets would give two columns of one name.
    plain: set[str] = set()
    # A dictionary keeps the order.
    found: dict[str, None] = {}
    for name in query.targets:
        if name in plain:
            raise EvidenceError(f"target {name!r} is named twice")
        if name in network.index:
            plain.add(name)
            found[name] = None
        else:
            found.update(dict.fromkeys(_matching(network, name)))
    return tuple(found)


def _matching(network: Network, pattern: str) -> list[str]:
    """Return the variables that a pattern matches, in the order of the network; raises EvidenceError for none."""
    if WILDCARDS.isdisjoint(pattern):
        raise EvidenceError(f"unknown target {pattern!r}{nearest(pattern, network.index)}")
    matching = [name for name in network.index if fnmatchcase(name, pattern)]
    if not matching:
        raise EvidenceError(f"target pattern {pattern!r} matches no variable{nearest(pattern, network.index)}")
    return matching


def chosen_states(network: Network, query: Query) -> tuple[tuple[str, int], ...]:
    """Return variable name and state number of each `variable=state` asked, then of all states of variables expected.

    Raises EvidenceError for unknown ones.
    """
    for text in query.probabilities:
        if query.probabilities.count(text) > 1:
            raise EvidenceError(f"probability {text!r} is named twice")
    chosen = tuple(_chosen_state(network, text) for text in query.probabilities)
    names = [name for name, _ in query.expected]
    for name in names:
        if name not in network.index:
            raise EvidenceError(f"expected value: unknown variable {name!r}{nearest(name, network.index)}")
        if names.count(name) > 1:
            raise EvidenceError(f"expected value of {name!r} is asked for twice")
    states = ((name, state) for name in names for state in range(network.cardinalities[network.index[name]]))
    return (*chosen, *states)


def _chosen_state(network: Network, text: str) -> tuple[str, int]:
    # Names may have equals signs themselves: every one of them is tried as the one between variable and state.
    pairs = [(text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "="]
    if not pairs:
        raise EvidenceError(f"found probability {text!r}, expected VARIABLE=STATE")
    known = [(name, state) for name, state in pairs if name in network.index]
    if not known:
        raise EvidenceError(
            f"probability {text!r}: unknown variable {pairs[0][0]!r}{nearest(pairs[0][0], network.index)}"
        )
    found = [(name, state) for name, state in known if state in network.variables[network.index[name]].states]
    if len(found) > 1:
        raise EvidenceError(f"probability {text!r} may be of {' or of '.join(repr(name) for name, _ in found)}")
    if not found:
        name, state = known[0]
        states = network.variables[network.index[name]].states
        raise EvidenceError(f"probability {text!r}: unknown state {state!r} of {name!r}{nearest(state, states)}")
    name, state = found[0]
    return name, network.variables[network.index[name]].states.index(state)


def answering_network(network: Network, query: Query) -> Network:
    """Return the network that answers a query; of what it returned the same again."""
    question = query.question
    if not network.index.keys().isdisjoint(question.added):
        return network
    names = None if query.targets is None else target_names(network, query)
    # What is added comes last, where auxiliary variables would be.
    return question.network(network.expanded if question.added else network, names)


def answered_names(network: Network, query: Query) -> tuple[str, ...]:
    """Return the variables whose posteriors are computed: targets, then others of which a number is asked.

    Those that the question adds to the network take their place.
    """
    names = target_names(network, query)
    if query.question.added or not (query.probabilities or query.expected):
        return query.question.added or names
    return tuple(dict.fromkeys([*names, *(name for name, _ in chosen_states(network, query))]))


def named_variables(network: Network, query: Query) -> tuple[str, ...]:
    """Return the variables that a query names, none where all are answered unasked.

    Raises EvidenceError for unknown ones.
    """
    names = () if query.targets is None else target_names(network, query)
    return tuple(dict.fromkeys([*names, *(name for name, _ in chosen_states(network, query))]))


def repeating_names(network: Network, query: Query) -> tuple[str, ...]:
    """Return those of them whose answers repeat the input where they are observed."""
    return () if query.question.added else named_variables(network, query)


def hidden_name(name: str) -> str:
    """Return the name that the kept column of a hidden variable has beside the answers to the variable."""
    return f"{name}_"


def observed_words(name: str, observed: int, rows: int) -> str:
    """Say that the answers to a target repeat the input.

    name: of the target.
    observed: rows that observe it.
    rows: all of them but invalid ones.
    """
    if observed < rows:
        return f"target {name} is observed in {observed:,} of {rows:,} rows: there its answers repeat the input"
    which = "the only row" if rows == 1 else f"all {rows:,} rows"
    return f"target {name} is observed in {which}: its answers repeat the input"


def as_posteriors(network: Network, query: Query) -> Query:
    """Return the query for the posteriors that its answers are, or are made of."""
    targets = None if query.targets is None and not query.question.added else answered_names(network, query)
    plain = replace(query, kind="posteriors", targets=targets, probabilities=(), expected=(), top=None)
    return replace(plain, answers="posteriors")


def one_of(what: str, found: str, allowed: Any) -> None:
    """Raise EvidenceError unless `found` is a name of the literal type `allowed`."""
    names = get_args(allowed)
    # What is no text may not even be compared.
    if not isinstance(found, str) or found not in names:
        raise EvidenceError(f"found {what} {found!r}, expected {' or '.join(map(repr, names))}")
