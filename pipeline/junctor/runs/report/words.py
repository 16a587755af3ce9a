"""Words, numbers and lines of pictures that pages of one and of two runs share; called by `page` and `comparison`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from junctor.model.errors import counted
from junctor.runs.outcome import Outcome
from junctor.runs.report import pictures
from junctor.runs.statistics import Cells
from junctor.runtime.files import written_atomically
from junctor.runtime.remote import AnyPath

# Columns with pictures where few drift and at the most, and columns in the first table.
FEW_COLUMNS, PICTURED_COLUMNS, SHOWN = 6, 12, 12

Table = npt.NDArray[np.float64]


def write(template: str, title: str, page: object, path: AnyPath, *packages: str) -> None:
    """Write a page, whole or not at all.

    template: name of its file.
    title: of the page.
    page: whose properties the template places.
    path: of the file.
    packages: where the template and what it extends lie; those of this one may be parts of it.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # Everything is escaped: names of states and reasons are data of others.
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in (*packages, __package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "share": share, "number": number, "seconds": seconds}
    style = (files(__package__) / "style.css").read_text()
    text = environment.get_template(template).render(page=page, title=title, style=style, version=version("junctor"))
    with written_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def count(value: int) -> str:
    """Return a whole number for people."""
    return f"{value:,}"


def share(value: float) -> str:
    """Return a share as a percentage that is 0 or 100 only where the share is; a dash for nan."""
    if math.isnan(value):
        return "–"
    if 0 < value < 0.0001:
        return "<0.01 %"
    if 0.9999 < value < 1:
        return ">99.99 %"
    return f"{100 * value:.{2 if value < 0.01 or value > 0.99 else 1}f} %" if 0 < value < 1 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    """Return a number to three places, a dash for nan."""
    return "–" if math.isnan(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:,.2f}"


def seconds(value: float) -> str:
    """Return seconds for people."""
    return f"{value:,.1f}"


def title_of(outcome: Outcome) -> str:
    """Return the title of a page: network and folder."""
    network = outcome.network.name if outcome.network is not None else ""
    # BIF calls networks without a name so.
    return f"{network} · {folder_of(outcome)}" if network and network != "unknown" else folder_of(outcome)


def folder_of(outcome: Outcome) -> str:
    """Return the name of a run's folder."""
    return outcome.directory.path.name or str(outcome.directory.path)


def missing_statistics(outcome: Outcome) -> str:
    """Return what a page says of parts without statistics, nothing where all have some."""
    parts = len(outcome.manifest.parts)
    if outcome.counted == parts:
        return ""
    name = folder_of(outcome)
    which = (
        f"Only {outcome.counted:,} of {parts:,} parts of {name} have" if outcome.counted else f"No part of {name} has"
    )
    return (
        f"{which} statistics: an earlier version wrote the others. Of these, this page has "
        "rows and statuses alone; --overwrite answers them again."
    )


def facts_of(outcome: Outcome) -> list[tuple[str, str]]:
    """Return versions, digests and the query of a run."""
    manifest, size = outcome.manifest, sum(each.bytes for each in outcome.manifest.parts)
    facts = {"finished": manifest.finished_at, "directory": str(outcome.directory.path)}
    facts |= {"answers": f"{counted(len(manifest.parts), 'part')}, {size / 2**20:,.1f} MiB in {manifest.spec.folder}"}
    if outcome.network is not None:
        facts["network"] = f"{outcome.network.name or 'no name'}, {counted(len(outcome.network.public), 'variable')}"
    record = manifest.to_record()["spec"]
    for name, value in record.items():
        if value not in (None, (), [], False) and name != "format_version":
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            facts[name.replace("_", " ")] = pictures.short(text, 400)
    return list(facts.items())


def pictured(drifted: int) -> int:
    """Return how many columns have pictures where so many drift."""
    return min(PICTURED_COLUMNS, max(FEW_COLUMNS, drifted))


def drift_heading(names: Sequence[str], whence: str, what: str = "column") -> str:
    """Return the heading of a section on drift: which columns or targets drift, the first few by name."""
    if not names:
        return f"No {what} drifts {whence}"
    shown = ", ".join(pictures.short(name, 30) for name in names[:4])
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return f"{counted(len(names), what)} {'drifts' if len(names) == 1 else 'drift'} {whence}: {shown}{more}"


def part(some: float, whole: float) -> float:
    """Return a share, nan of nothing."""
    return some / whole if whole else math.nan


def shares_of(cells: Cells) -> Table:
    """Return the shares of the observed states, float64 [states]."""
    states = np.array(cells.states, dtype=np.float64)
    shares: Table = states / max(1.0, states.sum())
    return shares


def means_of(counts: Table) -> Table:
    """Return the means of posteriors from their bins [states, BINS], about."""
    middles = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    means: Table = counts @ middles / np.maximum(1.0, counts.sum(axis=1))
    return means


def differing(states: Sequence[str], a: Table, b: Table) -> str:
    """Return the state whose numbers differ most, and both."""
    at = int(np.abs(a - b).argmax())
    return f"{pictures.short(states[at], 40)}: {share(float(a[at]))} in A, {share(float(b[at]))} in B"


def bars(title: str, states: Sequence[str], values: Table, marks: Table | None) -> pictures.Group:
    """Return the lines of a variable: of many states those that are most frequent or differ most, in their order."""
    weight = values if marks is None else np.abs(values - marks) + np.maximum(values, marks)
    order = np.sort(np.argsort(-weight, kind="stable")[: pictures.MOST_STATES])
    return pictures.Group(title, [states[i] for i in order], values[order], None if marks is None else marks[order])


def states_of(outcome: Outcome, name: str) -> tuple[str, ...]:
    """Return the names of the states of a variable."""
    network = outcome.answering
    assert network is not None
    return tuple(network.variables[network.index[name]].states)
