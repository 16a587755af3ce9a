"""A pass of a cut plan that has been enqueued on GPUs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from junctor_kernels.gpu.device import Event

from junctor.out_of_core.gpu.launches import PassFacts, PassLaunches
from junctor.out_of_core.gpu.slots import DeviceSlots, StreamMark
from junctor.planning.chunks import ChunkPass

Array = npt.NDArray[Any]
States = Mapping[int, int]


@dataclass(eq=False, slots=True)
class PassInFlight:
    """A pass that has begun, until its report.

    number, facts: of the pass.
    launches: device -> launches of the pass.
    pilot: the device of the pilot task.
    followed: events behind the steps of the pilot task.
    relayed: other device -> events behind what it knows of each of these steps.
    reached: slot -> the last of these steps that it has waited for.
    computed, saved: slot -> its last mark behind kernels, and behind copies.
    parts: configurations of the groups, and marks behind what they stored.
    reported: events behind the words of every device.
    terms: states -> result that the host adds up.
    late: what is copied where, (source, target) on the host, once the devices are through.
    kept: arrays that copies need.
    """

    number: int
    facts: PassFacts
    launches: dict[DeviceSlots, PassLaunches] = field(default_factory=dict)
    pilot: DeviceSlots | None = None
    followed: list[Event] = field(default_factory=list)
    relayed: dict[DeviceSlots, list[Event]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    computed: dict[int, StreamMark] = field(default_factory=dict)
    saved: dict[int, StreamMark] = field(default_factory=dict)
    parts: list[tuple[States, StreamMark]] = field(default_factory=list)
    reported: list[Event] = field(default_factory=list)
    terms: dict[tuple[int, ...], Array] = field(default_factory=dict)
    late: list[tuple[Array, Array]] = field(default_factory=list)
    kept: list[Array] = field(default_factory=list)

    @property
    def pass_(self) -> ChunkPass:
        """The pass itself."""
        return self.facts.pass_

    def is_done(self) -> bool:
        """Return True if the devices are through with it."""
        # Reports come on another stream than tasks: both have to be through.
        return all(mark.event.done for mark in self.saved.values()) and all(event.done for event in self.reported)

    def wait(self) -> None:
        """Wait until the devices are through with it."""
        for event in (*(mark.event for mark in self.saved.values()), *self.reported):
            event.synchronize()


@dataclass(eq=False, slots=True)
class BegunPass:
    """A pass of whose tasks some are to be enqueued.

    work: the pass.
    waits: table -> what tasks wait for before they read it.
    groups: turn, device and states of each group that is left.
    """

    work: PassInFlight
    waits: Mapping[int, Any]
    groups: deque[tuple[float, tuple[int, States]]]
