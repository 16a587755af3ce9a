"""A pass of a cut plan that GPUs have been handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from junctor.out_of_core.gpu.launches import PassFacts, PassLaunches
from junctor.out_of_core.gpu.slots import DeviceSlots, StreamMark
from junctor.planning.chunks import ChunkPass

Array = npt.NDArray[Any]
States = Mapping[int, int]


@dataclass(eq=False, slots=True)
class PassInFlight:
    """A pass that has been handed in, until all is known of what it made.

    computed, saved: the last marks of every slot behind its kernels, and behind its copies. parts: configurations of
    the groups, and marks behind what they stored. leader, followed: the device of the first task, and events behind its
    steps. told: for other devices, events behind what they know of each. reached: by slot, the last of these steps that
    it has waited for. terms: results that are added up on the host. late: what goes where once copies are done.
    """

    number: int
    facts: PassFacts
    calls: dict[DeviceSlots, PassLaunches] = field(default_factory=dict)
    leader: DeviceSlots | None = None
    followed: list[Any] = field(default_factory=list)
    told: dict[DeviceSlots, list[Any]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    computed: dict[int, StreamMark] = field(default_factory=dict)
    saved: dict[int, StreamMark] = field(default_factory=dict)
    parts: list[tuple[States, StreamMark]] = field(default_factory=list)
    reported: list[Any] = field(default_factory=list)
    terms: dict[tuple[int, ...], Array] = field(default_factory=dict)
    late: list[tuple[Array, Array]] = field(default_factory=list)
    held: list[Array] = field(default_factory=list)

    @property
    def each(self) -> ChunkPass:
        """The pass itself."""
        return self.facts.each

    def is_done(self) -> bool:
        """Tell whether the devices are through with it."""
        return all(mark.event.done for mark in self.saved.values()) and all(event.done for event in self.reported)

    def wait(self) -> None:
        """Wait until they are."""
        for event in (*(mark.event for mark in self.saved.values()), *self.reported):
            event.synchronize()
