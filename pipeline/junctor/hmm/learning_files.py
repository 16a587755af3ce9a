"""Models fitted from files to a file, with a checkpoint beside it. Main class: ChainJob, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version

import numpy as np

from junctor.evidence.files import refuse_changes
from junctor.evidence.read import digest_of, stamps_of
from junctor.hmm.columns import NO_NAMES, SequenceColumns
from junctor.hmm.formats import read_model, write_model
from junctor.hmm.learned import LearnedModel
from junctor.hmm.learning import ChainOptions, fit_model
from junctor.hmm.sequences import encode_sequences, open_sequences
from junctor.learning.checkpoint import Checkpoint, checkpoint_path
from junctor.learning.em import Iteration
from junctor.learning.extras import Extras
from junctor.learning.parameter_table import parameters_path, write_parameters
from junctor.model.errors import InputError
from junctor.model.options import ComputeOptions
from junctor.runtime.devices import check_device
from junctor.runtime.remote import location

# Endings of files of models.
OUTPUTS = (".parquet", ".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class ChainJob:
    """A fit; paths as they were given. Raises InputError for an output whose name says no format.

    model: file of it.
    sequences: file or folder of them.
    output: file of the fitted model, Parquet or JSON.
    options: what is fitted, and how.
    columns: names of those of the table of sequences.
    strict: whether the first invalid sequence ends the fit.
    overwrite: whether the state of a different fit that was interrupted is given up.
    model_format, sequences_format: None for the formats by name of the files.
    """

    model: str
    sequences: str
    output: str
    options: ChainOptions
    columns: SequenceColumns = NO_NAMES
    strict: bool = False
    overwrite: bool = False
    model_format: str | None = None
    sequences_format: str | None = None

    def __post_init__(self) -> None:
        # Before hours of work: any other name would get a Parquet file.
        name = location(self.output).name
        if not name.lower().endswith(OUTPUTS):
            raise InputError(f"output {name!r}: expected a name that ends in {', '.join(OUTPUTS)}")

    def run(
        self,
        compute: ComputeOptions,
        watch: Callable[[int, Iteration], None] | None = None,
        extras: Extras | None = None,
        begin: Callable[[Checkpoint], None] = lambda _: None,
        judge: Callable[[LearnedModel], None] = lambda _: None,
    ) -> LearnedModel:
        """Fit, and write the model; an interrupted fit goes on where it stopped.

        compute: memory, threads and device.
        watch: told of each iteration, with the number of its start.
        extras: what is found out besides, None for nothing; standard errors are written beside the model.
        begin: told of the checkpoint before the first iteration.
        judge: told of the fit before it is written; what it raises leaves it unwritten.
        Raises InputError, BudgetError, DeviceError, and RunError where the state of another fit lies there.
        """
        check_device(compute.device)
        output = location(self.output)
        model = read_model(self.model, self.model_format)
        stamps = stamps_of(self.sequences)
        identity = {
            "model": model.digest,
            "sequences": digest_of(self.sequences),
            "columns": asdict(self.columns),
            "strict": self.strict,
            "options": asdict(self.options),
            "junctor": version("junctor"),
        }
        checkpoint = Checkpoint(checkpoint_path(output), identity, self.overwrite)
        begin(checkpoint)
        source = open_sequences(
            self.sequences,
            model,
            self.columns,
            strict=self.strict,
            format=self.sequences_format,
        )
        batch = source.whole()
        if batch is None:
            batch = encode_sequences([], model).batch
        weight = self.columns.weight
        weights = np.ones(len(batch)) if weight is None else source.weights(weight)
        refuse_changes(stamps, stamps_of(self.sequences))
        learned = fit_model(model, batch, weights, self.options, compute, watch, checkpoint, extras, source.names_of)
        judge(learned)
        write_model(learned.model, output)
        if learned.parameters is not None:
            write_parameters(learned.parameters, parameters_path(output))
        # Not before: an output that cannot be written is no end.
        checkpoint.remove()
        return learned
