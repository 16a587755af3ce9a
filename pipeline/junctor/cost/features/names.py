"""Names of the counts of backends that most runs do not use, apart from the modules that count: those load much."""

from __future__ import annotations

from junctor.cost.features.contraction import COMPILED_WORK, NUMPY_WORK

CHUNK_WORK = (
    # Of the case: one; entries of factors and evidence; passes, and the steps of all of them.
    *("cases", "leaf_entries", "passes", "steps"),
    # Of each task: one, and its contractions, in NumPy and in compiled code.
    *("tasks", "contractions", *NUMPY_WORK, *COMPILED_WORK),
    # Entries that are made and looked through, added to others, taken out; tables on disk, and their entries.
    *("entries", "added", "stored", "files", "spilled"),
    # Entries of steps whose tables exceed the cache.
    "far",
)
# A case, seconds of the busiest way of each pass, and by how much the host takes longer. More features forecast what
# was measured no better, and other plans worse.
GPU_CHUNK_WORK = ("cases", "busiest", "behind")
STORED_WORK = (
    # Making tables: cliques, their entries, those times factors, those brought into another order, and those of tables
    # beyond the cache among them.
    *("cliques", "made", "multiplied", "permuted", "far"),
    # A case: one, passes, kernels; entries that are copied, times what they are multiplied by and times the separators
    # that they are summed for; entries of those separators.
    *("cases", "passes", "kernels", "copied", "scattered", "reduced", "separators"),
)
