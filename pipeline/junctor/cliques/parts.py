"""What stored clique tables spend their time on: the parts of table II of Bistaffa, Farinelli and Bombieri (2014).

Main functions: `marked` and `measured`, which take the time of a copy or a kernel, and `part_seconds`, which adds up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

from junctor_kernels.gpu.stored import CliqueDevice
from junctor_kernels.gpu.stored_tasks import CliqueLaunch

Part = Literal["preprocessing", "transfers", "reduction", "scattering"]
PARTS: tuple[Part, ...] = get_args(Part)
Result = TypeVar("Result")
# A copy to or from a device, the launches of a chunk together (each of which is there as well), or a part.
What = Literal["in", "out", "work"] | Part | CliqueLaunch
# What was done, and marks before and behind it: seconds of a clock, or events of a device.
Trace = list[tuple[What, Any, Any]]


def marked(trace: Trace | None, record: Callable[[], Any], what: What, work: Callable[[], object]) -> Any:
    """Do or enqueue something, and return the mark behind it.

    trace: that it is added to, if there is one.
    record: returns a mark.
    """
    before = None if trace is None else record()
    work()
    behind = record()
    if trace is not None:
        trace.append((what, before, behind))
    return behind


def measured(trace: Trace | None, part: Part, function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function of the host whose times are added to a trace, if there is one."""
    if trace is None:
        return function

    def called(*given: Any) -> Result:
        begin = time.perf_counter()
        result = function(*given)
        trace.append((part, begin, time.perf_counter()))
        return result

    return called


def part_seconds(trace: Trace, device: CliqueDevice | None) -> dict[Part, float]:
    """Return the seconds of each part; those of a kernel that does two are divided by the entries of either.

    device: whose events marks are; those of the host are seconds.
    """
    seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for what, before, behind in trace:
        taken = device.elapsed(before, behind) if device and not isinstance(before, float) else behind - before
        if isinstance(what, CliqueLaunch):
            for part, share in zip(PARTS[-2:], (what.summed, 1 - what.summed), strict=True):
                seconds["preprocessing" if what.kernel == "permute" else part] += share * taken
        elif what in ("in", "out"):
            seconds["transfers"] += taken
        elif what in PARTS:
            seconds[what] += taken
    return seconds
