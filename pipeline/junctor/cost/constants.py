"""Constants set by hand: seconds, rates and limits of seconds, one record for each kind of device.

Every field has its unit, its source and its date; an estimate is marked as one. Whatever can be fitted is not here: see
`fit.py`. Modules read `CPU` and `GPU`; planning and placement get what they need as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConstants:
    """Seconds of what is priced alike on every kind of device: tasks of Dask workers.

    task_operation: of an entry operation in a task.
    task_byte: of a byte to or from a task on its worker.
    """

    task_operation: float
    task_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConstants(DeviceConstants):
    """Constants of a CPU, of one core unless stated otherwise, and of the host of a GPU."""

    # Seconds an entry operation in a task of a worker. Estimate, for choices between plans; 2026-11-21.
    task_operation: float = 1e-9
    # Seconds a byte to or from a task on its worker. Estimate; 2026-11-21.
    task_byte: float = 1e-10

    # NumPy and compiled code, one plan.
    # Seconds an entry operation of the NumPy kernels. Estimate, good to a factor of two; 2026-11-21.
    numpy_operation: float = 1.5e-9
    # Seconds an entry of a case's tables in NumPy: maximum, minimum and division by a scale. Median over networks of
    # ten to a thousand variables, good to a factor of two; 2026-11-21.
    numpy_entry: float = 5e-9
    # Seconds a variable that is left, to plan and bind for NumPy. Median as above; 2026-11-21.
    numpy_variable: float = 4e-4
    # Times as long as that NumPy takes in log space. Estimate; 2026-11-21.
    numpy_log: float = 4.0
    # Seconds an entry operation of the compiled blocks. Estimate, coarser than docs/measurements/plans.md ("4e10 to
    # 7e10 operations a second" in tiles); 2026-11-21.
    compiled_operation: float = 2e-10
    # Bytes of a usual table of the smallest block up to which it stays in the cache; seconds of an operation that is
    # not zero where it does not. barley, pigs, munin2 and grids with likelihoods, good to a factor of two; 2026-11-28.
    cached_bytes: float = 2.0 * 2**20
    uncached_operation: float = 5e-10
    # Times as long as those take in log space. Estimate: an exponential for each term; 2026-11-22.
    compiled_log: float = 8.0
    # Seconds a step, to lower it for the compiled blocks. Estimate; 2026-11-21.
    lowering_step: float = 3e-5
    # Seconds a step of compiled contractions over entries: preparation, scales and bounds in NumPy. Estimate;
    # 2026-11-21.
    entries_step: float = 2e-4
    # Seconds a table of a plan, to plan, bind and lower it. Median as above; 2026-11-21.
    compiling_table: float = 1.6e-4
    # Seconds an entry of those tables. Median as above; 2026-11-21.
    compiling_entry: float = 3e-8
    # Seconds a cell, to turn evidence into a likelihood. Median as above; 2026-11-21.
    likelihood: float = 1e-7
    # Seconds such a cell, where Python copies columns to the blocks of explanations. munin2; 2026-11-26.
    copied_likelihood: float = 5e-7
    # Times as long as a sum that a maximum takes in compiled blocks, traceback included. Seven networks; 2026-11-26.
    maximum: float = 3.0
    # Seconds a column of a pattern, to sort patterns by what they observe. munin2, 2,048 patterns; 2026-11-22.
    pattern_mark: float = 7e-9
    # Seconds a row in addition to arithmetic: reading evidence, writing answers. Estimate; 2026-11-21.
    row: float = 5e-6
    # Seconds an entry operation of a row's own tree. Fit to 68 batches of 18 networks, good to a factor of 1.7;
    # 2026-11-24.
    tree_operation: float = 2.8e-10
    # Times as long as such an operation that a maximum takes there. Fit to twelve batches of four networks; 2026-11-26.
    tree_maximum: float = 1.5
    # Seconds an entry of such a tree's messages: evidence cut out of factors, scales, bounds. As above.
    tree_entry: float = 4.4e-10
    # Seconds a table of such a tree, with its messages. As above.
    tree_table: float = 1.6e-7
    # Seconds to plan a table of a tree, and to find the possible states before. As above.
    tree_plan: float = 7e-8
    # Seconds to ask for the work of a tree, beside its tables. alarm and asia; 2026-11-23.
    tree_forecast: float = 1.5e-4
    # Seconds a table of such a tree beside those, where a network has zeros, to plan it and to find possible states:
    # forecasts of a run have it, choices between trees do not. Rows of munin1, link and diabetes, the least of 25 times
    # each, good to a factor of 1.5; 2026-11-29.
    tree_start: float = 8e-7
    # Bytes of the messages of such a row up to which they stay in the last cache; seconds an entry beyond, as above.
    # Rows of munin1 of 4 to 60 million entries, on a machine that others used as well; 2026-11-29.
    far_bytes: float = 32.0 * 2**20
    far_entry: float = 1.5e-9
    # Seconds an entry operation of a row among others on one tree, of those that are not zero for every row. Fit to 60
    # batches of 18 networks, of which those count most that trees of their own answer in about the same time; good to a
    # factor of 1.7; 2026-11-24.
    lane_operation: float = 3.6e-11
    # Seconds an entry of such a row's messages: scales, bounds, memory. As above.
    lane_entry: float = 4.5e-10
    # Seconds an entry operation that is not zero, for all rows of a block. As above.
    lane_start: float = 5.7e-9
    # Seconds a table of such a tree for all rows of a block. As above.
    lane_table: float = 5.6e-6
    # Times as long as where rows differ in what they observe: they are sorted, and messages copied. As above.
    lane_mixed: float = 3.9
    # Seconds a table of each row there, beside those, as `tree_start`. A random network of 2,000 variables, 400
    # patterns; 2026-11-29.
    lane_row: float = 1.4e-7

    # Seconds until a process has loaded what a run needs: the interpreter, Arrow, compiled code. 1.0 for ten rows of
    # asia (docs/measurements/files.md), 2026-11-21, and 0.05 to 0.2 for each kind of compiled code of larger runs;
    # 2026-11-24.
    load: float = 1.3
    # Seconds a cell of evidence: read, encoded, kept in the run directory, read again, counted. 4 to 2,000 columns, on
    # a machine that others used as well, good to a factor of two; 2026-11-29.
    cell: float = 1.2e-7
    # Seconds a byte of answers, and a column of a part, to lay them out, compress them, sum them up and write them. As
    # above; answers that repeat take a third.
    answer_byte: float = 6e-9
    answer_column: float = 2.5e-4

    # Seconds of an operation on a word of 64 cases, for the choice of blocks. Measured on diabetes and munin2, good to
    # a factor of two; 2026-11-22.
    word_operation: float = 1e-9

    # Limits.
    # Seconds of work in NumPy from which compiled code, ten times as fast, is loaded. Loading takes 0.05 to 0.2 s, but
    # compilation some 15 the first time on a machine; 2026-11-24.
    compiled_work: float = 1.0
    # Seconds that compiled contractions have to save to be loaded: a difference of two forecasts, not work as
    # `compiled_work`. Loading takes 0.05 to 0.2 s; 2026-11-24.
    compiled_saving: float = 0.2
    # Seconds of work in NumPy from which coefficients are fitted for a forecast: reading measurements takes a tenth of
    # them. Estimate; 2026-11-21.
    fitted_forecast: float = 0.5
    # Seconds of a survey of patterns, unless a share of the run is more. Choice; 2026-11-21.
    survey: float = 5.0
    # Seconds of an exact answer to a row beyond which `--method auto` samples. Choice; 2026-11-21.
    exact_row: float = 60.0
    # Seconds of work that are worth one more process: starting and planning take some of them. Estimate; 2026-11-21.
    process: float = 5.0
    # Exponent of the cores of a machine, by which a run from files gains on one: 8 times with 16, 23 with 64. munin2
    # and others, where 16 gain 6.5 to 12 and 64 gain 9 to 26; 2026-11-28.
    cores: float = 0.75

    # Chunks, disks and workers.
    # Seconds a step, to cut a plan for a memory split and to count its work. Estimate; 2026-11-21.
    cutting_step: float = 1e-4
    # Seconds a byte to or from a disk, in addition to those of the process. Estimate (1 GB/s), as disks differ;
    # docs/memory.md has 1.3 to 1.8 GB/s of one disk; 2026-11-21.
    disk_byte: float = 1e-9
    # Seconds a task of the client and the scheduler together. Estimate; 2026-11-21.
    task: float = 1e-2
    # Seconds a byte from one worker to another. Estimate (1 GB/s); 2026-11-21.
    worker_byte: float = 1e-9

    # Samples and hidden Markov models.
    # Seconds a variable of a sample. Estimate, for forecasts; 2026-11-21.
    draw: float = 1.5e-9
    # Transitions times time steps a second. Estimate; 2026-11-21.
    transition_rate: float = 2e10


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConstants(DeviceConstants):
    """Constants of a GPU, and of its host where a GPU is used."""

    # Transitions times time steps a second, of one sequence of 6,000 states: docs/hmm.md, H100; 2026-11-21.
    transition_rate: float = 8e11
    # Seconds an entry operation in a task of a worker. Estimate; 2026-11-21.
    task_operation: float = 1.5e-12
    # Seconds a byte of a task on the device. Estimate; 2026-11-21.
    task_byte: float = 1e-12

    # Rates of the bus, bytes a second.
    # Copies of pinned memory, one way. H100, docs/measurements/grids.md ("copies alone reach 55 GB/s"), by
    # `benchmarks/stored.py stream`; 2026-11-21.
    bus_rate: float = 55e9
    # The same both ways at once, together, from the same table; 2026-11-21.
    bus_rate_both_ways: float = 99.7e9
    # Answers that a kernel writes to the host while a block is computed: less than `bus_rate`, because faster writing
    # slows the block. H100, docs/decisions/0013-answers-leave-the-gpu.md (5.1e10 would be possible); 2026-11-21.
    answer_rate: float = 3.8e10
    # Copies from another GPU of the host. Estimate, below what NVLink of an H100 or H200 is specified for; 2026-11-21.
    link_rate: float = 300e9

    # A copy of one run from another GPU, and several copies or copies of rows, one after the other, while others copy
    # from the same GPU. Four H200, NVLink between all; 2026-11-22.
    link_copy_rate: float = 393e9
    link_rows_rate: float = 110e9

    # Rates of the device.
    # Bytes a second of a plain copy, read and written. H100, docs/measurements/gpu.md (2.97 TB/s), rounded; 2026-11-21.
    copy_rate: float = 3e12
    # Bytes a second that contraction kernels touch: less than `copy_rate`. H100, benchmarks/chunk_costs.py. Counts of
    # `chunks-gpu-*` go by this rate: another value needs another fit; 2026-11-21.
    kernel_rate: float = 2.2e12
    # Loads a second of contraction kernels. As `kernel_rate`; 2026-11-21.
    load_rate: float = 2e12

    # Host.
    # Seconds a launch of a task in chunks. As `kernel_rate`; 2026-11-21.
    chunk_launch: float = 4e-5
    # Seconds a copy of such a task. As `kernel_rate`; 2026-11-21.
    chunk_copy: float = 4e-5
    # Seconds a pass over such tasks. H100 and H200, docs/forecasts.md ("0.15 ms of the host a pass"); 2026-11-22.
    chunk_pass: float = 1.5e-4
    # Seconds of the driver for a launch (H200, 6.7 microseconds; 2026-11-23), and for a copy from another GPU (H200, 24
    # microseconds in a propagation on four; 2026-11-22).
    launch_call: float = 7e-6
    copy_call: float = 2.4e-5
    # Seconds in which the thread of a row in chunks keeps those of other rows from running, over the seconds that the
    # host is forecast to take for it: Python's lock, and the driver's. H200, docs/measurements/chunks.md, by
    # `benchmarks/oversize.py run --abreast 4`; 2026-11-23.
    host_held: float = 1.4
    # Seconds a launch for a chunk of a streamed clique table: other code than that of tasks. Agrees with the rates of
    # docs/forecasts.md ("Stored tables"), which were measured on an H100; 2026-11-21.
    stream_launch: float = 2e-5
    # Seconds a copy for a streamed clique table. As `stream_launch`; 2026-11-21.
    stream_copy: float = 2e-5
    # Seconds until a GPU of this process beside the first one answers rows in chunks. Estimate: a run of 16 rows, 28 x
    # 28, took 1.6 s longer on two H200 than on one, though rows of 0.1 s went side by side; 2026-11-24.
    opening: float = 2.0
    # Seconds a byte of memory that is pinned, once for a group of rows: 8 GiB took 0.37 to 0.67 s with 16 and with 4
    # threads of the host of an H200; 2026-11-26.
    pinned_byte: float = 7e-11

    # Choice of the device.
    # Seconds until a GPU is ready: CUDA, CuPy, a process. Estimate; 2026-11-21.
    start: float = 4.0
    # Seconds that a run is longer because of a GPU, beside those of its rows: while it is opened, evidence is read and
    # plans are made, as without. munin2, scores, 30,000 to 300,000 rows, H100 and the 16 cores beside it; 2026-11-28.
    ready: float = 1.0
    # Seconds of a GPU and of what goes with it that are worth one more process. 1,600,000 rows of munin2 with scores, 9
    # of them by forecast, took 8.7 s with one of four H200, 11 with a process for each of two and of four; 2026-11-26.
    process: float = 5.0
    # Seconds a cell, to bring a state to the device and make a likelihood of it. munin2, 16,384 rows on an H200;
    # 2026-11-22.
    likelihood: float = 1.5e-9
    # Seconds a table of a tree and an entry of these tables, to plan, bind and lower them for a GPU. 290 batches of 14
    # networks on an H200: half of the forecasts are between 0.6 and 1.1 times what was measured; 2026-11-28.
    plan_table: float = 2e-4
    plan_entry: float = 2.3e-7
    # Seconds of a group of rows on a plan of its own: answers of its last block go out, and the first rows of the next
    # group go alone, while nothing else is computed. H200; 2026-11-23.
    group: float = 0.02
    # Cores beside a GPU that answer rows with trees of their own as one each would. Of 16 beside an H100, by rows of
    # six networks with gaps on plans there and on trees here: with 1 as with 8 some take twice as long; 2026-11-27.
    cores: int = 4
    # Rows that a GPU answers in the time of one on a core. Estimate, for the search for orders; 2026-11-21.
    gain: int = 64


CPU = CpuConstants()
GPU = GpuConstants()
