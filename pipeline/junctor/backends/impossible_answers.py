"""What rows with P(e) = 0 get for an answer, whoever found them impossible.

Main function: `leave_impossible`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.answers import clear_rows

from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, Answers
from junctor.runtime.threads import in_threads

# Bytes of posteriors of a task of a thread.
TASK_BYTES = 1 << 21


def leave_impossible(
    rows: npt.NDArray[np.int64], answers: Answers, sizes: npt.NDArray[np.int64], threads: int = 1
) -> None:
    """Write that some rows are impossible; that they have no numbers is written as well, since bytes must not vary.

    rows: int64 [n], ascending, of the batch.
    answers: of the batch, written here.
    sizes: int64 [targets], numbers of states.
    threads: number of threads.
    """
    answers.status[rows], answers.log_value[rows] = IMPOSSIBLE, -np.inf
    answers.reasons.update(dict.fromkeys(rows.tolist(), NO_PROBABILITY))
    if answers.memory is None:
        for table in answers.posteriors.values():
            table[rows] = np.nan
        return
    if not (rows.size and answers.memory.size):
        return
    memory = answers.memory
    step = max(1, TASK_BYTES // int(sizes.sum() * memory.itemsize))
    parts = [rows[start : start + step] for start in range(0, rows.size, step)]
    in_threads(lambda part, _: clear_rows(part, sizes, memory), parts, threads)
