"""Tables in, tables out, in this process: neither Prefect nor Dask is imported.

Main class: Model, a network with what was prepared for its queries. The functions prepare a network at their first call
and find it prepared at the next one.
"""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa

from junctor.backends.joint_table import has_joint_table
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.plain_cells import PlainCells
from junctor.model.arguments import real, text, texts, whole
from junctor.model.errors import BudgetError, EvidenceError
from junctor.model.network import Network
from junctor.model.option_table import (
    EvidenceOptions,
    ExplanationOptions,
    PosteriorOptions,
    RowResources,
    SamplingOptions,
    TableOptions,
    defaults_of,
    options_for,
    takes_keywords,
)
from junctor.model.options import AnswerFiles, ComputeOptions
from junctor.model.query import (
    Precision,
    Query,
    Sampling,
    observed_words,
    repeating_names,
)
from junctor.model.question import AnswerKind, QueryKind
from junctor.runs.results import default_partition_rows, one_after_another, tables_for, with_kept
from junctor.runtime.devices import check_device, has_gpu
from junctor.runtime.machine import allowed_memory, compute_options

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.evidence.encode import EncodedPartition
    from junctor.model.answers import Answers

__all__ = ["Model", "most_probable", "posteriors"]

# What stays prepared for a network between calls: so many queries (one more for each call at the same time), and about
# so many bytes of plans and their programs. The longest unused go first.
KEPT_QUERIES = 32
KEPT_BYTES = 1 << 28
KEPT_QUESTIONS = 256
# Seconds for which the free memory is taken to be what it was: asking takes as long as a row of a small network.
MEMORY_SECONDS = 1.0
# An engine that was made for another amount of memory is made anew outside of these shares of what is allowed now.
LEAST_SHARE, MOST_SHARE = 0.5, 1.25

# Key of the number of all rows beside those that observe a variable.
NOBODY = -1

_Question = tuple[Query, ComputeOptions]
# What explanations have no options for.
_UNSAID: PosteriorOptions = defaults_of(PosteriorOptions)  # type: ignore[assignment]
_READING = tuple(defaults_of(EvidenceOptions))
_RESOURCES = tuple(defaults_of(RowResources).items())


@takes_keywords()
def posteriors(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    targets: Sequence[str] | None = None,
    precision: Precision = "double",
    **options: Unpack[PosteriorOptions],
) -> pa.Table:
    """Return the posterior of each target, and log P(evidence), for each row of `evidence`.

    network: a Network, or the path of a network file.
    evidence: pandas or Arrow table, dict of columns or list of rows; one column a variable, null where it is not
        observed.
    targets: names of variables or patterns of names (`DIAG_*`), None for all.
    precision: numbers to compute with.
    options: of the table.

    The columns are `case_id`, one fixed-size list for each target (float64; float32 in single precision; states in
    the order of the network), `log_evidence` (natural logarithm), `status` and `reason`. A row whose status is not
    `ok` is null but for its reason. Raises ModelError, EvidenceError, BudgetError, DiskError or
    DeviceError, and InputError for a network, mapping or spill that is no path.
    """
    question = _question("posteriors", targets, precision, options)
    return _prepared(network).answer(question, evidence, _reading(options))


@takes_keywords()
def most_probable(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    targets: Sequence[str] | None = None,
    precision: Precision = "double",
    **options: Unpack[ExplanationOptions],
) -> pa.Table:
    """Return the most probable states of all variables together, given each row of `evidence`.

    Arguments and errors as for `posteriors`; `targets` only choose which variables are shown. The columns are
    `case_id`, one state name for each target, `log_probability` (natural log of P(states, evidence)), `status` and
    `reason`.
    """
    asked: PosteriorOptions = {**_UNSAID, **options}
    question = _question("mpe", targets, precision, asked)
    return _prepared(network).answer(question, evidence, _reading(asked))


class Model:
    """A network with what was prepared for its queries, for the next call; any threads may call it at once.

    network: a Network, or the path of a network file. What was prepared is that of the Network: the functions and other
        models of it use it too, and it goes with it.

    Loads compiled code where rows of the network will need it; on a machine without it another process compiles it
    while NumPy answers. Raises ModelError, and InputError for what is no path.
    """

    def __init__(self, network: Network | str | os.PathLike[str]) -> None:
        self.network = _read(network)
        self._prepared = _prepared(self.network)
        if not has_joint_table(self.network):
            from junctor.strategies.row_trees import begin_trees

            begin_trees()

    def __repr__(self) -> str:
        return f"Model({self.network!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes prepare what they need.
        return Model, (self.network,)

    @takes_keywords()
    def posteriors(
        self,
        evidence: Any,
        targets: Sequence[str] | None = None,
        precision: Precision = "double",
        **options: Unpack[PosteriorOptions],
    ) -> pa.Table:
        """Return the posteriors of the targets for each row of `evidence`; arguments and errors as of `posteriors`."""
        question = _question("posteriors", targets, precision, options)
        return self._prepared.answer(question, evidence, _reading(options))

    @takes_keywords()
    def most_probable(
        self,
        evidence: Any,
        targets: Sequence[str] | None = None,
        precision: Precision = "double",
        **options: Unpack[ExplanationOptions],
    ) -> pa.Table:
        """Return the most probable states for each row of `evidence`; arguments and errors as of `most_probable`."""
        asked: PosteriorOptions = {**_UNSAID, **options}
        question = _question("mpe", targets, precision, asked)
        return self._prepared.answer(question, evidence, _reading(asked))


def _question(
    kind: QueryKind, targets: Sequence[str] | None, precision: Precision, options: PosteriorOptions
) -> _Question:
    if targets is None and type(precision) is str and all(map(is_, options.values(), _UNSAID.values())):
        # As most calls are: a row of a small network takes a tenth of a millisecond.
        return _of_unsaid(kind, precision)
    return _asked(kind, targets, precision, options)


@lru_cache
def _of_unsaid(kind: QueryKind, precision: Precision) -> _Question:
    return _asked(kind, None, precision, _UNSAID)


def _asked(
    kind: QueryKind, targets: Sequence[str] | None, precision: Precision, options: PosteriorOptions
) -> _Question:
    named = None if targets is None else texts("targets", targets)
    top = None if options["top"] is None else whole("top", options["top"])
    names = texts("probabilities", options["probabilities"])
    # Of one type each: 3.0 and True are equal to good values, and questions are found by what they are equal to.
    expected = tuple((name, ()) for name in texts("expected", options["expected"]))
    shown = options["answers"], top, names, bool(options["hide_targets"]), expected
    asked = kind, named, precision, _resources(options), _sampling(options), shown
    try:
        return _checked(*asked)
    except TypeError:
        # What has no hash is no good value either, and the checks say why.
        return _checked.__wrapped__(*asked)


def _resources(options: RowResources) -> tuple[tuple[str, Any], ...]:
    # What nobody says is left out: most calls say nothing, and a row of a small network takes a tenth of a millisecond.
    given = {name: told for name, default in _RESOURCES if (told := options[name]) is not default}  # type: ignore[literal-required]
    if "threads" in given:
        given["threads"] = whole("threads", given["threads"], BudgetError)
    if isinstance(limit := given.get("time_limit"), int | float):
        given["time_limit"] = f"{limit}s"
    # As text: a list has no hash, and True would be found as 1.
    texts_of = {name: str(given[name]) for name in ("memory", "device_memory", "disk", "time_limit") if name in given}
    return tuple((given | texts_of).items())


def _sampling(options: SamplingOptions) -> tuple[Any, ...]:
    count, entries = (
        None if (given := options[name]) is None else whole(name, given) for name in ("samples", "table_entries")
    )
    number = None if options["error"] is None else real("error", options["error"])
    seed, confidence = whole("seed", options["seed"]), real("confidence", options["confidence"])
    return options["method"], options["sampler"], count, number, seed, options["stages"], confidence, entries


@lru_cache(maxsize=KEPT_QUESTIONS)
def _checked(
    kind: QueryKind,
    targets: tuple[str, ...] | None,
    precision: Precision,
    resources: tuple[tuple[str, Any], ...],
    sampling: tuple[Any, ...],
    scores: tuple[AnswerKind, int | None, tuple[str, ...], bool, tuple[tuple[str, tuple[float, ...]], ...]],
) -> _Question:
    # Checked even where answers are exact: wrong options should not wait for another method to be seen.
    method, *how = sampling
    query = Query(kind, targets, precision, method, Sampling(*how), *scores)
    options = replace(compute_options(**dict(resources)), all_gpus=True)
    if options.strategy is not None and method != "exact":
        raise EvidenceError(f"strategy {options.strategy.value!r} is a way to exact answers, the method is {method!r}")
    # Now: a device that is missing should not cost the reading of a network.
    check_device(options.device)
    return query, options


def _reading(options: EvidenceOptions) -> EvidenceOptions:
    """Return how a table of evidence is read; raises EvidenceError for what has another type."""
    reading: dict[str, Any] = {name: options[name] for name in _READING}  # type: ignore[literal-required]
    reading["case_id"] = text("case_id", options["case_id"])
    reading["keep"] = texts("keep", options["keep"])
    reading["missing"] = texts("missing", options["missing"], numbers=True)
    return reading  # type: ignore[return-value]


class _Prepared:
    """What was prepared for a network, at rest; a call takes what it needs, alone, and gives it back.

    network: a copy of the key in `_networks`, which is never let go while anything refers to it.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._encoder = PlainCells(network)
        self._lock = threading.Lock()
        # The longest unused first, and the bytes that they hold.
        self._idle: list[_Answerer] = []
        self._held = 0

    def answer(self, question: _Question, evidence: Any, reading: EvidenceOptions) -> pa.Table:
        """Return the answers to a table of evidence."""
        if question[0].expected:
            from junctor.evidence.mapping import read_mapping
            from junctor.evidence.values import with_values

            query = with_values(question[0], self._network, read_mapping(reading["mapping"], self._network))
            question = query, question[1]
        answerer = self._take(question)
        try:
            table = answerer.answer(evidence, reading)
        except EvidenceError:
            # Nothing was begun. After any other error it is not known what is left.
            self._give_back(answerer)
            raise
        self._give_back(answerer)
        return table

    def _take(self, question: _Question) -> _Answerer:
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].question == question:
                    self._held -= self._idle[at].held
                    return self._idle.pop(at)
        return _Answerer(self._network, self._encoder, question)

    def _give_back(self, answerer: _Answerer) -> None:
        answerer.rest()
        with self._lock:
            self._idle.append(answerer)
            self._held += answerer.held
            while len(self._idle) > KEPT_QUERIES or self._held > KEPT_BYTES:
                self._held -= self._idle.pop(0).held


class _Answerer:
    """What answers one query with one record of options, one call at a time; raises EvidenceError for unknown targets.

    question: the query and the options.
    held: bytes between calls, about.
    """

    def __init__(self, network: Network, encoder: PlainCells, question: _Question) -> None:
        self.question = question
        self.held = 0
        self._network = network
        self._encoder = encoder
        self._query, self._options = question
        self._tables = tables_for(network, self._query)
        self._named = {network.index[name]: name for name in repeating_names(network, self._query)}
        self._engine: Engine | None = None

    def answer(self, evidence: Any, reading: EvidenceOptions) -> pa.Table:
        """Return the answers to a table of evidence."""
        keep, mapped = tuple(reading["keep"]), reading["mapping"] is not None
        is_plain = not (keep or reading["missing"] or mapped or self._query.hide_targets)
        few = self._encoder.encode(evidence, reading["case_id"]) if is_plain else None
        if few is not None and few[0].rows <= self._most_rows:
            batch, case_ids = few
            if self._named:
                self._warn([self._observed(batch)])
            return self._tables.table(self._answer(batch, 0, batch.rows), case_ids)
        from junctor.evidence.encode import TableEncoder, as_arrow
        from junctor.evidence.mapping import hiding, read_mapping

        table, mapping = as_arrow(evidence), read_mapping(reading["mapping"], self._network)
        mapping = hiding(mapping, self._network, self._query)
        if keep:
            from junctor.runs.answer_files import refuse_taken_names

            query = replace(self._query, hide_targets=mapping is not None and bool(mapping.hidden))
            refuse_taken_names(self._network, query, AnswerFiles(keep=keep))
        rows = table.num_rows
        encoder = TableEncoder(
            table.schema,
            self._network,
            mapping=mapping,
            **options_for(TableOptions, reading),
        )

        observed: list[Counter[int]] = []

        def read(piece: tuple[int, pa.Table]) -> EncodedPartition:
            encoded = encoder.encode(piece[1], piece[0])
            observed.append(self._observed(encoded.batch))
            return encoded

        def finish(encoded: EncodedPartition, answers: Answers) -> pa.Table:
            return with_kept(self._tables.table(answers, encoded.case_ids), encoded.kept)

        # In pieces of the size of a part file: the same answers, row for row, as `junctor run` writes.
        pieces = list(_slices(table, default_partition_rows(self._network, self._query)))
        first, others = read(pieces[0]), pieces[1:]
        is_long = others and self._query.method == "exact" and self._options.threads != 1
        # What a batch takes of a GPU is mostly Python, of one thread at a time however many there are.
        if is_long and not self._uses_gpu(first.batch, rows):
            # Imported when needed, as below.
            from junctor.engine.sequence import answer_in_sequence

            def read_once(piece: tuple[int, pa.Table]) -> EncodedPartition:
                return first if piece is pieces[0] else read(piece)

            engine_for, batch_of = (lambda: self._engine_for(rows)), (lambda each: each.batch)
            results = list(answer_in_sequence(pieces, read_once, batch_of, engine_for, finish))
            self._warn(observed)
            return one_after_another(results)
        results = []
        for encoded in chain([first], map(read, others)):
            results.append(finish(encoded, self._answer(encoded.batch, encoded.first_row, rows)))
        self._warn(observed)
        return one_after_another(results)

    def _observed(self, batch: EvidenceBatch) -> Counter[int]:
        """Return how many valid rows observe each of the variables that the query names; of none: all valid rows."""
        there = [v for v in self._named if v in batch.states]
        if not there:
            return Counter()
        valid = batch.valid
        counts = {v: int(np.count_nonzero(batch.states[v][valid] != UNOBSERVED)) for v in there}
        return Counter({**counts, NOBODY: len(valid)})

    def _warn(self, observed: Sequence[Counter[int]]) -> None:
        """Warn of targets that rows observe; observed: of all batches."""
        total = sum(observed, Counter())
        for v in sorted(v for v in total if v != NOBODY):
            told = observed_words(self._named[v], total[v], total[NOBODY])
            # To the caller of the function or method.
            warnings.warn(f"{told} (hide_targets=True takes targets as unobserved)", stacklevel=6)

    def rest(self) -> None:
        """Let go of what the next call can do without, or make as fast."""
        if self._query.method != "exact":
            # Rows take far longer than their preparation, and the memory that is free decides which are sampled.
            self._engine = None
        self.held = 0 if self._engine is None else self._engine.keep(KEPT_BYTES)

    def _answer(self, batch: EvidenceBatch, first: int, rows: int) -> Answers:
        """Return the answers to a batch; first: number of its first row; rows: of all batches together."""
        engine = self._engine_for(rows)
        if not engine.facts.takes_gpu:
            return engine.answer(batch, first_row=first)
        with _turn(engine.uses_gpu(batch)):
            return engine.answer(batch, first_row=first)

    def _uses_gpu(self, batch: EvidenceBatch, rows: int) -> bool:
        """Return True if a GPU answers a batch; rows: of all batches together."""
        return _may_use_gpu(self._options) and self._engine_for(rows).uses_gpu(batch)

    def _engine_for(self, rows: int) -> Engine:
        engine, allowed = self._engine, _allowed(self._options)
        if engine is None or not LEAST_SHARE * allowed <= engine.allowed <= MOST_SHARE * allowed:
            # Imported when needed, as below: each of them loads kernels that the others do without.
            from junctor.engine.engine import Engine

            store = None if engine is None else engine.facts.store
            if store is not None:
                # Made for the other amount.
                store.row_engines.clear()
            engine = self._engine = Engine(self._network, self._query, self._options, store=store)
            engine.facts.is_lasting = True
        # As a new engine would be told, so that answers do not depend on earlier calls.
        engine.facts.expected_rows = rows
        return engine

    @cached_property
    def _most_rows(self) -> int:
        return default_partition_rows(self._network, self._query)


_networks: weakref.WeakKeyDictionary[Network, _Prepared] = weakref.WeakKeyDictionary()
_networks_lock = threading.Lock()
# A GPU answers one batch at a time.
_gpu_lock = threading.Lock()


def _prepared(network: Network | str | os.PathLike[str]) -> _Prepared:
    network = _read(network)
    with _networks_lock:
        found = _networks.get(network)
        if found is None:
            # Of a copy, which shares everything: what refers to its own key would keep it.
            found = _networks[network] = _Prepared(copy.copy(network))
        return found


def _read(network: Network | str | os.PathLike[str]) -> Network:
    if isinstance(network, Network):
        return network
    from junctor.formats import read_network

    return read_network(network)


def _allowed(options: ComputeOptions) -> int:
    """Return the bytes for propagation, of a measurement that may be some time old."""
    return options.memory if options.memory is not None else _measured(int(time.monotonic() / MEMORY_SECONDS))


@lru_cache(maxsize=1)
def _measured(when: int) -> int:
    del when
    return allowed_memory(ComputeOptions())


def _turn(on_gpu: bool) -> AbstractContextManager[Any]:
    return _gpu_lock if on_gpu else nullcontext()


def _may_use_gpu(options: ComputeOptions) -> bool:
    return options.device != "cpu" and has_gpu()


def _slices(table: pa.Table, rows: int) -> Iterator[tuple[int, pa.Table]]:
    # Pieces keep the arrays of the engine small however long the table is. An empty table is one empty piece. Arrow
    # believes any length of a table without columns, so it gets the right one.
    for first in range(0, max(1, table.num_rows), rows):
        yield first, table.slice(first, min(rows, table.num_rows - first))
