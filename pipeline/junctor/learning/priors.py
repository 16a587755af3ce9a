"""Dirichlet priors as pseudo counts, one for each parameter. Main function: `pseudo_counts`.

Pseudo counts a are added to expected counts, so that a complete table gives (n + a) / sum(n + a): the mean of a
Dirichlet posterior with parameters a, and the mode of one with parameters a + 1. EM raises log-likelihood + the sum of
a log(parameter), the latter's density; structural zeros have no pseudo counts.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from junctor.learning.expectation import LEAST_WEIGHT, MOST_WEIGHT, Floats
from junctor.learning.parameters import NetworkParameters
from junctor.model.errors import InputError, ModelError, Place, nearest
from junctor.model.network import Network
from junctor.runtime.files import parse_json, refused
from junctor.runtime.remote import AnyPath, location, shown

# Columns of a file of counts.
COUNT_COLUMNS = ("variable", "state", "parents", "count")
# The rows that a network of a prior stands for, at the end of its path.
STRENGTH = re.compile(r"(.+)@([0-9.eE+-]+)")


def pseudo_counts(prior: str, parameters: NetworkParameters) -> Floats:
    """Return the pseudo count of each parameter, float64 [entries]; raises InputError for a prior that is none.

    prior: "none"; "bdeu:N" for an equivalent sample size of N rows, N / (r q) for each entry of a table with r states
        and q configurations of parents [Heckerman, Geiger and Chickering 1995]; "dirichlet:FILE" for a file of counts
        (JSON, CSV or the Parquet of `junctor counts`) or a network, whose probabilities are the pseudo counts of one
        row for each configuration, of N rows with "dirichlet:FILE@N".
    parameters: that it is about; fixed ones have none.
    """
    kind, _, rest = prior.partition(":")
    if kind == "none" and not rest:
        return np.zeros(parameters.size)
    if kind == "bdeu":
        counts = _bdeu(_positive(rest, f"prior {prior!r}"), parameters)
    elif kind == "dirichlet" and rest:
        counts = _of_file(rest, parameters)
    else:
        # What follows may be a URL with credentials.
        told = f"{kind}:..." if rest else prior
        raise InputError(f"found the prior {told!r}, expected none, bdeu:N or dirichlet:FILE")
    counts[parameters.is_fixed] = 0.0
    return counts


def prior_file(prior: str) -> str | None:
    """Return the file of a prior as of `pseudo_counts`, None for one without."""
    kind, _, rest = prior.partition(":")
    return _strength_of(rest)[0] if kind == "dirichlet" and rest else None


def configuration_text(network: Network, variable: int, states: Sequence[int]) -> str:
    """Return `A=yes, B=no` for states of the parents of a variable."""
    parents = network.factors[variable].scope[:-1]
    named = (
        f"{network.variables[p].name}={network.variables[p].states[s]}" for p, s in zip(parents, states, strict=True)
    )
    return ", ".join(named)


def _bdeu(rows: float, parameters: NetworkParameters) -> Floats:
    counts = np.empty(parameters.size)
    for block in parameters.blocks:
        counts[block.span] = rows / math.prod(block.shape)
    return np.where(parameters.support, counts, 0.0)


def _strength_of(text: str) -> tuple[str, str | None]:
    """Return the file in `FILE@N`, and the text of N if there is one."""
    match = STRENGTH.fullmatch(text)
    return (text, None) if match is None else (match[1], match[2])


def _of_file(text: str, parameters: NetworkParameters) -> Floats:
    text, times = _strength_of(text)
    strength = 1.0 if times is None else _positive(times, f"prior dirichlet:{shown(text)}@{times}")
    path = location(text)
    place, name = Place(str(path)), path.name.lower()
    if name.endswith(".json"):
        tables = _json_tables(path, parameters)
    elif name.endswith(".csv"):
        tables = _row_tables(_csv_rows(path), parameters, place)
    elif name.endswith(".parquet") and (rows := _parquet_rows(path)) is not None:
        tables = _row_tables(rows, parameters, place)
    else:
        tables = _network_tables(path, parameters)
    counts = np.zeros(parameters.size)
    for variable, table in tables.items():
        block, known = parameters.blocks[variable], parameters.network.variables[variable].name
        if block.is_fixed:
            continue
        if block.is_contribution:
            raise InputError(
                f"pseudo counts of {known!r}: a noisy node with many parents has no table, only bdeu", place
            )
        if not (np.isfinite(table) & (table >= 0)).all():
            raise InputError(f"pseudo counts of {known!r}: expected finite numbers that are not negative", place)
        # Sums of larger ones would leave the range of numbers. By a division: a product may leave it as well.
        if (table > MOST_WEIGHT / strength).any():
            times = "" if strength == 1 else f" times {strength:g}"
            raise InputError(
                f"pseudo counts of {known!r}: found {table.max():g}{times}, expected at most {MOST_WEIGHT:g}", place
            )
        counts[block.span] = strength * table.ravel()
    wrong = np.flatnonzero((counts > 0) & ~parameters.support)
    if wrong.size:
        variable = next(b.owner for b in parameters.blocks if b.span.start <= wrong[0] < b.span.stop)
        known = parameters.network.variables[variable].name
        raise InputError(
            f"pseudo counts of {known!r}: one above 0 stands where the network has a structural zero (--impossible "
            "smooth lifts these)",
            place,
        )
    return counts


def _foreign(place: Place) -> InputError:
    """Return the refusal of a file without a word on any table, which would be no prior at all."""
    return InputError("none of its variables is in the network: give a prior of this network, or none", place)


def _network_tables(path: AnyPath, parameters: NetworkParameters) -> dict[int, Floats]:
    from junctor.formats import read_network

    other, network, tables = read_network(path), parameters.network, {}
    if network.index.keys().isdisjoint(other.index):
        raise _foreign(Place(str(path)))
    for name in network.index:
        if name not in other.index or parameters.blocks[network.index[name]].is_fixed:
            continue
        variable = _found(name, parameters, Place(str(path)))
        factor, given = network.factors[variable], other.expanded.factors[other.index[name]]
        parents, others = ([of.variables[v] for v in f.scope] for of, f in ((network, factor), (other, given)))
        if sorted(v.name for v in parents) != sorted(v.name for v in others) or others[-1].name != name:
            raise ModelError(f"the table of {name!r} has other parents than in the network", Place(str(path)))
        order = [[v.name for v in others].index(v.name) for v in parents]
        if [others[at].states for at in order] != [v.states for v in parents]:
            raise ModelError(f"the table of {name!r} has other states than in the network", Place(str(path)))
        tables[variable] = given.table.transpose(order)
    return tables


def _json_tables(path: AnyPath, parameters: NetworkParameters) -> dict[int, Floats]:
    place = Place(str(path))
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON: {error}", place) from None
    if not isinstance(content, dict):
        raise InputError("expected an object: names of variables, and for each its counts, parents first", place)
    tables = {}
    for name, counts in content.items():
        variable = _found(name, parameters, place)
        try:
            table = np.array(counts, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise InputError(f"pseudo counts of {name!r}: expected numbers in nested lists", place) from None
        expected = parameters.network.factors[variable].table.shape
        if table.shape != expected and table.shape != (math.prod(expected),):
            sizes = [" x ".join(map(str, shape)) or "1" for shape in (table.shape, expected)]
            raise InputError(f"pseudo counts of {name!r}: found {sizes[0]}, expected {sizes[1]}, parents first", place)
        tables[variable] = table.reshape(expected)
    if not tables:
        raise _foreign(place)
    return tables


def _csv_rows(path: AnyPath) -> Iterator[Mapping[str, Any]]:
    place = Place(str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8", place) from None
    reader = csv.DictReader(io.StringIO(text))
    try:
        if not set(COUNT_COLUMNS) <= set(reader.fieldnames or ()):
            raise InputError(f"expected the columns {', '.join(COUNT_COLUMNS)}", place)
        yield from reader
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}: {error}", place) from None


def _parquet_rows(path: AnyPath) -> Iterator[Mapping[str, Any]] | None:
    """Return the rows of a file of counts, None for a network."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from junctor.runtime.remote import parquet_source

    with (
        refused(lambda said: InputError(f"cannot be read as Parquet ({said})", Place(str(path)))),
        pq.ParquetFile(parquet_source(path)) as file,
    ):
        if not set(COUNT_COLUMNS) <= set(file.schema_arrow.names):
            return None
        table: pa.Table = file.read(columns=list(COUNT_COLUMNS))
    rows: list[dict[str, Any]] = table.to_pylist()
    for number, row in enumerate(rows, 1):
        try:
            row["parents"] = ", ".join(f"{each['variable']}={each['state']}" for each in row["parents"] or ())
        except (KeyError, TypeError):
            found = f"found the parents {row['parents']!r}"
            said = f"row {number}: {found}, expected a list of records with variable and state"
            raise InputError(said, Place(str(path))) from None
    return iter(rows)


def _row_tables(rows: Iterator[Mapping[str, Any]], parameters: NetworkParameters, place: Place) -> dict[int, Floats]:
    """Return the tables of rows of counts; entries without a row have a count of 0."""
    network = parameters.network
    tables: dict[int, Floats] = {}
    places: dict[int, dict[str, tuple[int, ...]]] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for number, row in enumerate(rows, 1):
        variable = _found(row["variable"], parameters, place)
        factor, known = network.factors[variable], network.variables[variable]
        if variable not in tables:
            tables[variable] = np.zeros(factor.table.shape)
            every = product(*map(range, factor.table.shape[:-1]))
            places[variable] = {configuration_text(network, variable, states): states for states in every}
        configuration = row["parents"] or ""
        if configuration not in places[variable] or row["state"] not in known.states:
            wrong = repr(row["state"]) if configuration in places[variable] else f"the configuration {configuration!r}"
            raise InputError(f"row {number}: {known.name!r} has no {wrong} in the network", place)
        at = (*places[variable][configuration], known.states.index(row["state"]))
        if (variable, at) in seen:
            raise InputError(f"row {number}: a second count of the same entry of {known.name!r}", place)
        seen.add((variable, at))
        try:
            tables[variable][at] = float(row["count"])
        except (TypeError, ValueError):
            raise InputError(f"row {number}: found the count {row['count']!r}, expected a number", place) from None
    if not tables:
        raise _foreign(place)
    return tables


def _found(name: Any, parameters: NetworkParameters, place: Place) -> int:
    """Return the index of a variable with a table; raises InputError."""
    network = parameters.network
    # Cells of Parquet may be anything, such as lists, which have no hash.
    if not isinstance(name, str) or name not in network.index:
        raise InputError(f"no variable is named {name!r}{nearest(str(name), network.index)}", place)
    variable = network.index[name]
    if parameters.blocks[variable].is_contribution:
        raise InputError(f"pseudo counts of {name!r}: a noisy node with many parents has no table, only bdeu", place)
    return variable


def _positive(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        raise InputError(f"{what}: found {text!r}, expected a number from 1e-100 to 1e100")
    return number
