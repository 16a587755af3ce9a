"""Parameters before and after a fit as a table, one row each. Main function: `parameter_table`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from junctor.learning.counts import PARENT, parents_of
from junctor.learning.expectation import Floats
from junctor.learning.parameters import NetworkParameters
from junctor.runtime.files import written_atomically
from junctor.runtime.remote import AnyPath

PARAMETERS_SCHEMA = pa.schema(
    [
        pa.field("variable", pa.string(), nullable=False),
        pa.field("parents", pa.list_(PARENT), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("before", pa.float64(), nullable=False),
        pa.field("after", pa.float64(), nullable=False),
        pa.field("count", pa.float64(), nullable=False),
        pa.field("error", pa.float64()),
    ]
)


def parameter_table(
    parameters: NetworkParameters, before: Floats, after: Floats, counts: Floats, errors: Floats | None = None
) -> pa.Table:
    """Return a row for each entry of each table, and for each of the contributions to a noisy node.

    parameters: which there are.
    before, after: float64, probabilities.
    counts: float64, expected ones of the rows, after.
    errors: float64, standard errors; null if not given.

    The columns are `variable`, `parents` (a list of records with the `variable` and the `state` of each), `state`,
    `before`, `after`, `count` and `error`. A contribution has one parent. Chains of fixed noisy nodes are left out.
    """
    network, pieces = parameters.network, [PARAMETERS_SCHEMA.empty_table()]
    # Contributions to a noisy node are apart among the factors.
    blocks = sorted(zip(parameters.blocks, network.factors, strict=True), key=lambda pair: pair[0].owner)
    for block, factor in blocks:
        if block.is_fixed and max(factor.scope) >= len(network.public):
            continue
        scope = factor.scope[len(factor.scope) - len(block.shape) :]
        own, size = network.variables[block.owner], block.span.stop - block.span.start
        pieces.append(
            pa.Table.from_arrays(
                [
                    pa.repeat(pa.scalar(own.name), size),
                    parents_of(network, scope, block.shape),
                    pa.array(own.states).take(pa.array(np.arange(size) % own.cardinality)),
                    *(pa.array(column[block.span]) for column in (before, after, counts)),
                    pa.nulls(size, pa.float64()) if errors is None else pa.array(errors[block.span]),
                ],
                schema=PARAMETERS_SCHEMA,
            )
        )
    return pa.concat_tables(pieces).combine_chunks()


def parameters_path(output: AnyPath) -> AnyPath:
    """Return the path of the table beside the output of a fit: `fit.parameters.parquet` beside `fit.bif`."""
    return output.with_name(f"{output.name.removesuffix('.gz').rpartition('.')[0]}.parameters.parquet")


def write_parameters(table: pa.Table, path: AnyPath) -> None:
    """Write a table of parameters as Parquet, whole or not at all; raises RunError if it cannot be."""
    with written_atomically(path) as temporary:
        parquet.write_table(table, temporary)
