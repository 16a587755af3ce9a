"""The table as text: Markdown, summaries, targets, and an earlier record beside this one. Called by `tables.py`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from table_cells import KINDS, TOLERANCE

Found = dict[str, Any]
# Kinds of tables as users have them; the mean over these counts.
USERS = ("missing", "holes", "varied", "noisy")
_ENDS: dict[bool, str] = {True: "met", False: "NOT met"}


class Record:
    """What was measured: cells and times of pyAgrum; in CPU seconds, all threads together, with the clock `cpu`."""

    def __init__(self, record: Found, clock: str = "wall") -> None:
        self.cells: list[Found] = record.get("cells", [])
        engines = "engines" if clock == "wall" else "engines_cpu"
        if clock == "cpu":
            done = [cell for cell in self.cells if cell["done"]]
            self.cells = [cell | {"ms": 1e3 * cell["cpu"] / cell["done"]} for cell in done]
        self.peers = {(each["network"], each["kind"]): each.get(engines, {}) for each in record.get("peers", [])}

    def rows(self) -> list[int]:
        """Return the numbers of rows."""
        return sorted({cell["rows"] for cell in self.cells})

    def cell(self, rows: int, device: str, **name: str) -> Found | None:
        """Return the cell of this name."""
        wanted = name | {"rows": rows, "device": device}
        found = (cell for cell in self.cells if all(cell[key] == value for key, value in wanted.items()))
        return next(found, None)

    def peer_ms(self, cell: Found) -> float:
        """Return pyAgrum's milliseconds a row of as many rows: its best engine, the first row included."""
        engines = self.peers.get((cell["network"], cell["kind"]), {}).values()
        rows = cell["rows"]
        return min((1e3 * (first + (rows - 1) * usual) / rows for first, usual in engines), default=math.nan)

    def ratio(self, cell: Found) -> float:
        """Return how many times faster than pyAgrum we are; NaN where it has no answer, or we none."""
        ratio = self.peer_ms(cell) / cell["ms"]
        return math.nan if "error" in cell or math.isinf(ratio) else ratio

    def all(self, rows: int, device: str = "cpu", **name: str) -> list[Found]:
        """Return the cells of so many rows."""
        wanted = name | {"rows": rows, "device": device}
        return [cell for cell in self.cells if all(cell[key] == value for key, value in wanted.items())]


def text(record: Record) -> str:
    """Return tables and summaries of all numbers of rows, and the targets."""
    parts = []
    for rows in record.rows():
        for device in sorted({cell["device"] for cell in record.cells}):
            parts += [f"## {rows:,} rows, {device}: milliseconds a row", overview(record, rows, device)]
            parts += [details(record, rows, device), "\n".join(summary(record, rows, device))]
    return "\n\n".join([*parts, "## Targets", "\n".join(targets(record))])


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; left: columns of words."""
    rule = "|" + "---|" * left + "---:|" * (len(heads) - left)
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def overview(record: Record, rows: int, device: str) -> str:
    """Return networks by kinds: double, single, in brackets pyAgrum."""
    cells = record.all(rows, device)
    kinds = [kind for kind in KINDS if any(cell["kind"] == kind for cell in cells)]
    lines = []
    for network in dict.fromkeys(cell["network"] for cell in cells):
        line = [network]
        for kind in kinds:
            found = [cell for cell in cells if (cell["network"], cell["kind"]) == (network, kind)]
            peer = number(record.peer_ms(found[0])) if found else ""
            line.append(f"{', '.join(map(shown, found))}{f' ({peer})' if peer else ''}")
        lines.append(line)
    return markdown(["network", *kinds], lines)


def details(record: Record, rows: int, device: str) -> str:
    """Return a line for each network and kind."""
    heads = ["network", "kind", "pyAgrum", "double", "single", "×, double", "×, single"]
    lines = []
    for network, kind in dict.fromkeys((cell["network"], cell["kind"]) for cell in record.all(rows, device)):
        both = [record.cell(rows, device, network=network, kind=kind, precision=p) for p in TOLERANCE]
        some = next(cell for cell in both if cell)
        line = [network, kind, number(record.peer_ms(some)), *map(shown, both)]
        line += [number(record.ratio(cell)) if cell else "" for cell in both]
        line += [share(some, "impossible"), *(share(cell, "climbed") for cell in both)]
        lines.append(line)
    return markdown([*heads, "impossible", "climbed, double", "climbed, single"], lines, 2)


def shown(cell: Found | None) -> str:
    """Return milliseconds a row: `over` where they are more, a star where only some rows were done in time."""
    if cell is None or "error" in cell:
        return "failed" if cell else ""
    return f"{'over ' if cell['over'] else ''}{number(cell['ms'])}{'*' if 0 < cell['done'] < cell['rows'] else ''}"


def number(value: float) -> str:
    """Return three digits."""
    return "" if math.isnan(value) else f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.3g}"


def share(cell: Found | None, what: str) -> str:
    """Return the share of the rows that were done."""
    return f"{cell[what] / cell['done']:.2%}" if cell and cell.get("done") else ""


def summary(record: Record, rows: int, device: str) -> list[str]:
    """Return the worst ratios and the means."""
    lines = []
    for kind in KINDS:
        found = record.all(rows, device, kind=kind)
        if worst := _extreme(min, found, record.ratio):
            lines.append(f"- {kind}: at least {worst} x pyAgrum, geometric mean {_geometric(record, found)}")
    for precision in TOLERANCE:
        users = [cell for cell in record.all(rows, device, precision=precision) if cell["kind"] in USERS]
        if users:
            lines.append(f"- {', '.join(USERS)}, {precision}: geometric mean {_geometric(record, users)} x pyAgrum")
    if worst := _extreme(max, record.all(rows, device, precision="single"), lambda cell: against_double(record, cell)):
        lines.append(f"- single against double: at most {worst} x the time")
    if worst := _extreme(max, record.all(rows, device), lambda cell: against_fixed(record, cell)):
        lines.append(f"- any kind against `fixed`: at most {worst} x the time")
    return lines


def against_double(record: Record, cell: Found) -> float:
    """Return the time of a cell in single precision in parts of double's."""
    return _against(record, cell, precision="double")


def against_fixed(record: Record, cell: Found) -> float:
    """Return the time of a cell in parts of that of complete rows."""
    return _against(record, cell, kind="fixed")


def _against(record: Record, cell: Found, **changed: str) -> float:
    name = {key: cell[key] for key in ("network", "kind", "precision")} | changed
    other = record.cell(cell["rows"], cell["device"], **name)
    # Nothing is known where the other was not done, or is this one.
    return math.nan if other is None or other is cell or other["over"] else float(cell["ms"] / other["ms"])


def _extreme(pick: Callable[..., Found], cells: Sequence[Found], figure: Callable[[Found], float]) -> str:
    """Return the least or greatest figure of some cells, and which cell that is."""
    known = [cell for cell in cells if not math.isnan(figure(cell))]
    if not known:
        return ""
    cell = pick(known, key=figure)
    return f"{number(figure(cell))} ({cell['network']}, {cell['kind']}, {cell['precision']})"


def _geometric(record: Record, cells: Sequence[Found]) -> str:
    return number(_mean(record, cells))


def _mean(record: Record, cells: Sequence[Found]) -> float:
    ratios = [ratio for cell in cells if not math.isnan(ratio := record.ratio(cell))]
    return statistics.geometric_mean(ratios) if ratios else math.nan


def targets(record: Record) -> list[str]:
    """Return a line for each target that these cells can tell of."""
    lines: list[str] = []
    for rows, least, mean in ((20, 1, 0), (2000, 30, 100), (200_000, 0, 200)):
        cells = record.all(rows)
        if least and (worst := _extreme(min, cells, record.ratio)):
            ends = all(not record.ratio(cell) < least for cell in cells)
            lines.append(target(ends, f"{rows:,} rows: every cell at least {least} x pyAgrum", worst))
        for precision in TOLERANCE if mean else ():
            users = [cell for cell in cells if cell["kind"] in USERS and cell["precision"] == precision]
            if not math.isnan(found := _mean(record, users)):
                what = f"{rows:,} rows, {precision}: geometric mean of {', '.join(USERS)} at least {mean} x pyAgrum"
                lines.append(target(found >= mean, what, number(found)))
    ways: list[tuple[int | None, str, float, Callable[[Record, Found], float]]] = [
        (200_000, "200,000 rows: every kind at most 5 x its `fixed`", 5.0, against_fixed),
        (None, "single at most 1.1 x double", 1.1, against_double),
        (None, "less than 1 % of the rows climb in single precision", 0.01, lambda _, cell: climbed(cell, "single")),
        (None, "no row climbs in double precision", 0.0, lambda _, cell: climbed(cell, "double")),
        (None, "GPU: no cell slower than on the CPU", 1.0, against_cpu),
    ]
    for only, what, most, figure in ways:
        cells = [cell for cell in record.cells if only in (None, cell["rows"])]
        if worst := _extreme(max, cells, lambda cell, figure=figure: figure(record, cell)):
            lines.append(target(all(not figure(record, cell) > most for cell in cells), what, worst))
    for cell in record.all(200_000, "gpu", network="munin2"):
        if cell["kind"] in ("missing", "varied") and cell["done"]:
            what = f"GPU, munin2, {cell['kind']}, {cell['precision']}: 200,000 rows a second"
            lines.append(target(cell["ms"] <= 0.005, what, f"{1e3 / cell['ms']:,.0f}"))
    apart = [cell for cell in record.cells if disagrees(cell)]
    failed = [cell for cell in record.cells if "error" in cell]
    checked = sum(cell.get("compared", 0) for cell in record.cells)
    if checked:
        lines.append(
            target(not apart, f"answers agree with pyAgrum's ({checked:,} rows)", f"{len(apart)} cells differ")
        )
    return [*lines, target(not failed, "every cell is answered", f"{len(failed)} failed")]


def target(met: bool, what: str, figure: str) -> str:
    """Return a line of a target."""
    return f"- {_ENDS[met]}: {what}: {figure}"


def climbed(cell: Found, precision: str) -> float:
    """Return the share of the rows that climbed; NaN for other precisions."""
    return cell["climbed"] / cell["done"] if cell["precision"] == precision and cell.get("done") else math.nan


def against_cpu(record: Record, cell: Found) -> float:
    """Return the time of a cell on a GPU in parts of the CPU's beside it."""
    name = {key: cell[key] for key in ("network", "kind", "precision")}
    other = record.cell(cell["rows"], "cpu", **name)
    return float(cell["ms"] / other["ms"]) if cell["device"] == "gpu" and other else math.nan


def disagrees(cell: Found) -> bool:
    """Whether answers of a cell differ from pyAgrum's."""
    most = TOLERANCE[cell["precision"]]
    differences = (cell.get("posterior_difference", 0.0), cell.get("log_difference", 0.0))
    return bool(cell.get("other_status")) or max(differences) > most


def comparison(now: Record, before: Record) -> str:
    """Return seconds of the clock and of the CPU in parts of those of an earlier record."""
    lines, ratios = [], []
    for cell in now.cells:
        name = {key: cell[key] for key in ("network", "kind", "precision")}
        other = before.cell(cell["rows"], cell["device"], **name)
        if other is None or not (cell.get("done") and other.get("done")):
            continue
        cpu = (cell["cpu"] / cell["done"]) / (other["cpu"] / other["done"])
        ratios.append(cell["ms"] / other["ms"])
        words = [cell["network"], cell["kind"], cell["precision"], f"{cell['rows']:,}"]
        lines.append([*words, number(other["ms"]), number(cell["ms"]), number(ratios[-1]), number(cpu)])
    heads = ["network", "kind", "precision", "rows", "before", "now", "now / before", "CPU seconds, now / before"]
    mean = number(statistics.geometric_mean(ratios)) if ratios else "nothing in common"
    return f"## Against the earlier record\n\n{markdown(heads, lines, 3)}\n\n- geometric mean: {mean}"
