"""Figures set by hand, because they are choices: limits of seconds, and what no measurement of a machine tells."""

from __future__ import annotations

# Seconds of a survey of patterns, unless a share of the run is more.
SURVEY = 5.0
# Seconds of one core that an exact answer to a row may take before `--method auto` samples.
EXACT_ROW = 60.0
# Seconds of work in NumPy from which coefficients are fitted for a forecast: reading measurements takes a tenth of
# them.
FITTED_FORECAST = 0.5
# Seconds of cores, and of a GPU with what goes with it, that are worth one more process.
PROCESS, GPU_PROCESS = 5.0, 5.0
# Exponent of the cores of a machine, by which a run from files gains on one: 8 times with 16, 23 with 64.
CORES = 0.75
# Seconds a byte to or from a disk, in addition to those of the process: 1 GB/s, as disks differ.
DISK_BYTE = 1e-9
# Share of the work of a batch that looking for a better choice may take.
PLANNING_SHARE = 0.04
