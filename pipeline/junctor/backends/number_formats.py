"""Number formats of a query: the first one of all rows, then those for rows whose numbers leave its range."""

from __future__ import annotations

from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.model.query import Query

# Of sums.
LADDERS: dict[str, tuple[Algebra, ...]] = {
    "double": (reference.DOUBLE, reference.LOG),
    "single": (reference.SINGLE, reference.DOUBLE, reference.LOG),
    "log": (reference.LOG,),
}
# Formats that kernels of blocks on a GPU have, and those that chunks on a GPU have.
GPU_FORMATS = ("single", "double", "log", "max")
GPU_CHUNK_FORMATS = ("single", "double", "log", "max", "max-single")


def chunk_ladder_of(query: Query) -> tuple[Algebra, ...]:
    """Return the number formats of rows in chunks, the first one of all rows first."""
    if query.question.needs.semiring == "sum" or query.precision == "log":
        return ladder_of(query)
    # Single precision finds the states of most variables, and leaves to logarithms what rounding may have moved.
    return (reference.MAX_SINGLE, *ladder_of(query))


def ladder_of(query: Query) -> tuple[Algebra, ...]:
    """Return the number formats of a query, the first one of all rows first."""
    return LADDERS[query.precision] if query.question.needs.semiring == "sum" else (reference.MAX_LOG,)
