"""Netica's DNET text files (`.dne`, `.neta`): nature nodes with a table, a function table or a noisy-OR equation.

    bnet small { node a { kind = NATURE; discrete = TRUE; states = (no, yes); parents = (); probs = (0.4, 0.6); }; };

Main functions: `read` and `write`. Source: Norsys, DNET-1 file format. The last parent is fastest but for the child.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from junctor.formats.blocks import Block, parse_blocks
from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import decode, title_of
from junctor.formats.noisy import NoisyMax, NoisyShape, binary, tables_of
from junctor.formats.numbers import shown
from junctor.formats.text import MAX_FILLED, hinted, note_findings, shortened
from junctor.formats.writing import identifier, parents_first, refuse_markov
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network, table_size

_States = Mapping[str, Sequence[str]]

_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")
# States of two-state nodes that Netica's equations take for true and false.
_TRUE = ("true", "yes", "present", "on", "positive", "1", "t", "y")
_FALSE = ("false", "no", "absent", "off", "negative", "0", "f", "n")
_EQUATION = re.compile(
    r"\s*+p\s*+\((?P<child>[^()|]*+)\|(?P<parents>[^()|]*+)\)\s*+=\s*+(?P<kind>Noisy(?:Or|And)Dist)\s*+"
    r"\((?P<arguments>[^()]*+)\)\s*+;?\s*+",
    re.IGNORECASE,
)
# Rows without meaning, because their configuration cannot be.
_IMPOSSIBLE = "@imposs"


def read(data: bytes, file: str, reading: Reading | None = None) -> Network:
    """Read a Bayesian network from a DNET file; raises ModelError with line and column."""
    head = data[:4096]
    if _BINARY.search(head) and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ModelError(
            "this is a binary file of Netica, which only Netica reads: save it there as text (File, Save as, *.dne)",
            Place(file),
        )
    net = parse_blocks(decode(data, file), file, "bnet", reading)
    # Constants are titles and comments on the canvas, or parameters of equations.
    listed = [node for node in net.blocks("node") if _kind(node) != "constant"]
    nodes = [node for node in listed if _kind(node) not in ("decision", "utility")]
    variables = [_variable(node) for node in nodes]
    leave_out(
        [_decision(node) for node in listed if _kind(node) in ("decision", "utility")],
        ((node.name, node.list("parents")) for node in nodes),
        reading,
    )
    note_findings([node.name for node in nodes if node.value("evidence") is not None], reading)
    # Of two variables of one name the first counts here; build_network refuses the second.
    states = {variable.name: variable.states for variable in reversed(variables)}
    tables, noisy, filled = [], [], 0
    for node in nodes:
        _refuse_unknown_parents(node, states)
        if node.value("probs") is not None:
            values = node.table("probs", f"table of {node.name!r}", _shape(node, states))
            tables.append(DraftTable(_scope(node), values, node.place_of("probs")))
        elif node.value("functable") is not None:
            filled += table_size(_shape(node, states), f"table of {node.name!r}", node.place)
            tables.append(_function_table(node, states, filled))
        else:
            noisy.append(_noisy(node, states))
    hidden, noisy_tables = tables_of(noisy, states)
    place = Place(file)
    return build_network(
        net.name or title_of(file), "bayes", variables + hidden, tables + noisy_tables, place, reading, len(hidden)
    )


def _kind(node: Block) -> str:
    return node.word("kind").lower() or "nature"


def _decision(node: Block) -> DecisionNode:
    kind = _kind(node)
    refusal = f"node {node.name!r} is a {kind} of an influence diagram, expected nature nodes"
    return DecisionNode(node.name, refusal, node.place)


def _variable(node: Block) -> DraftVariable:
    if _kind(node) != "nature":
        raise ModelError(f"node {node.name!r} has kind {node.word('kind')!r}, expected NATURE", node.place_of("kind"))
    states, levels = node.list("states"), node.list("levels")
    if not states and levels:
        # Netica's names of intervals; of a discrete node each level is a state.
        is_discrete = node.word("discrete").lower() != "false"
        states = levels if is_discrete else [f"{low} to {high}" for low, high in pairwise(levels)]
    if not states and node.word("numstates").isdecimal():
        # Netica numbers the states of a node that has no names.
        number = int(node.word("numstates")[:9])
        table_size([number], f"node {node.name!r}", node.place_of("numstates"))
        states = [f"#{i}" for i in range(min(number, MAX_FILLED))]
    if not states:
        raise ModelError(f"node {node.name!r} has no states, expected a list: states = (no, yes);", node.place)
    return DraftVariable(node.name, states, node.place)


def _scope(node: Block) -> list[str]:
    return [*node.list("parents"), node.name]


def _refuse_unknown_parents(node: Block, states: _States) -> None:
    for name in node.list("parents"):
        if name not in states:
            hint = hinted(name, states)
            raise ModelError(f"node {node.name!r}: unknown parent {shown(name)}{hint}", node.place_of("parents"))


def _shape(node: Block, states: _States) -> tuple[int, ...]:
    return tuple(len(states[name]) for name in _scope(node))


def _function_table(node: Block, states: _States, filled: int) -> DraftTable:
    """Return the table of a deterministic node; filled: entries of all such tables of the file up to this one."""
    what, place = f"table of {node.name!r}", node.place_of("functable")
    shape = _shape(node, states)
    if filled > MAX_FILLED:
        raise ModelError(f"{what}: all function tables up to it would have {filled:,} entries", place)
    results = node.list("functable")
    rows = math.prod(shape[:-1])
    if len(results) != rows:
        raise ModelError(f"{what}: found {len(results)} values of its function, expected {rows}", place)
    index = {state: i for i, state in enumerate(states[node.name])}
    index |= {f"#{i}": i for i in range(shape[-1])}
    levels = node.list("levels")
    table = np.zeros((rows, shape[-1]))
    for row, result in enumerate(results):
        state = index.get(result)
        if result.lower() == _IMPOSSIBLE:
            # Any distribution will do.
            table[row] = 1.0 / shape[-1]
        elif state is not None:
            table[row, state] = 1.0
        else:
            table[row, _level(node, result, levels, shape[-1], place)] = 1.0
    return DraftTable(_scope(node), table, place)


def _level(node: Block, result: str, levels: Sequence[str], states: int, place: Place) -> int:
    """Return the state of a number: of a discrete node the level that it is, else the interval that it lies in."""
    try:
        value, bounds = float(result), [float(level) for level in levels]
    except ValueError:
        value, bounds = math.nan, []
    if len(bounds) == states and value in bounds:
        return bounds.index(value)
    rising = sorted(bounds)
    if len(bounds) == states + 1 and bounds in (rising, rising[::-1]) and rising[0] <= value <= rising[-1]:
        # Bounds belong to the interval above them, but for the largest one.
        interval = min(int(np.searchsorted(rising, value, side="right")) - 1, states - 1)
        return interval if bounds == rising else states - 1 - interval
    raise ModelError(f"node {node.name!r} has no state {shown(result)}{hinted(result, node.list('states'))}", place)


def _noisy(node: Block, states: _States) -> NoisyMax:
    """Return the node of a noisy-OR or noisy-AND equation; raises ModelError for any other node without a table."""
    raw = node.value("equation")
    if raw is None:
        raise ModelError(
            f"node {node.name!r} has no probs and no functable: give it a table in Netica and save the file again",
            node.place,
        )
    place = node.place_of("equation")
    # Netica breaks long strings by a backslash at the end of a line.
    equation = re.sub(r"\\(?:\n|n|t)", " ", raw.strip().strip('"'))
    match = _EQUATION.fullmatch(equation)
    if match is None:
        raise ModelError(
            f"node {node.name!r} has the equation {shortened(equation)} and no table; read are NoisyOrDist and "
            "NoisyAndDist: make it a table in Netica (Table, Equation to table) and save the file again",
            place,
        )
    parents = node.list("parents")
    # Links may have names of their own, by which the equation calls the parents.
    links = dict(zip(_links(node), parents, strict=False)) | {name: name for name in parents}
    child, leak, *pairs = [argument.strip() for argument in match["arguments"].split(",")] + [""] * 2
    pairs = pairs[:-2]
    named = [links.get(name) for name in pairs[::2]]
    try:
        numbers = [float(number) for number in (leak, *pairs[1::2])]
    except ValueError:
        numbers = []
    if child != node.name or len(pairs) % 2 or sorted(map(str, named)) != sorted(parents) or not numbers:
        raise ModelError(
            f"node {node.name!r}: found {match['kind']} ({shortened(match['arguments'])}), expected the node, a "
            "number, and then each parent with a number",
            place,
        )
    if not all(0 <= number <= 1 for number in numbers):
        raise ModelError(f"node {node.name!r}: found {numbers}, expected probabilities from 0 to 1", place)
    of = {name: number for name, number in zip(named, numbers[1:], strict=True) if name is not None}
    # A noisy-AND is a noisy-OR of what keeps the node from being true:
    # P(true) = (1 - leak) * product over absent requirements of (1 - p).
    is_or = match["kind"].lower() == "noisyordist"
    truth = {name: _true_state(node, name, states) for name in (*parents, node.name)}
    shape = NoisyShape(
        [truth[name] if is_or else 1 - truth[name] for name in parents],
        truth[node.name] if is_or else 1 - truth[node.name],
    )
    return binary(_scope(node), [of[name] for name in parents], numbers[0], shape, place)


def _links(node: Block) -> list[str]:
    value = node.value("inputs")
    return [] if value is None else [name.strip() for name in value.strip()[1:-1].split(",")]


def _true_state(node: Block, name: str, states: _States) -> int:
    lowered = [state.lower() for state in states[name]]
    if len(lowered) == 2:
        for i in range(2):
            if lowered[i] in _TRUE and lowered[1 - i] in _FALSE:
                return i
    raise ModelError(
        f"node {node.name!r}: the equation needs {name!r} to be true or false, found the states "
        f"{shortened(', '.join(states[name]))}",
        node.place_of("equation"),
    )


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,29}")


def write(network: Network) -> str:
    """Return a Bayesian network as DNET text; `read` restores its numbers to the last bit.

    Nodes stand after their parents, as Netica writes them. Raises ModelError for a Markov network, and for names that
    are none in Netica.
    """
    refuse_markov(network, "DNET")
    title = re.sub(r"[^A-Za-z0-9_]", "_", network.name)[:29]
    lines = ["// ~->[DNET-1]->~", "", f"bnet {title if _NAME.fullmatch(title) else 'N' + title} {{"]
    names = [_name(variable.name) for variable in network.variables]
    for i in parents_first(network):
        variable, factor = network.variables[i], network.factors[i]
        states = ", ".join(map(_name, variable.states))
        lines += [
            f"node {names[i]} {{",
            "  kind = NATURE;",
            "  discrete = TRUE;",
            f"  states = ({states});",
            f"  parents = ({', '.join(names[parent] for parent in factor.scope[:-1])});",
            f"  probs = {_nested(factor.table)};",
            "};",
        ]
    return "\n".join([*lines, "};"]) + "\n"


def _name(name: str) -> str:
    return identifier(name, _NAME, "Netica", "letters, digits and underscores, a letter first, at most 30")


def _nested(table: npt.NDArray[np.float64]) -> str:
    """Return a table in brackets, one pair for each axis."""
    if table.ndim == 1:
        # repr gives the shortest digits that read back as the same double.
        return f"({', '.join(map(repr, table.tolist()))})"
    inner = ",\n    ".join(map(_nested, table))
    return f"({inner})"
