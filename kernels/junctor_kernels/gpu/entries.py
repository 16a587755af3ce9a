"""Contractions of one case on a GPU, for plans out of core: what a launch reads, and sums that take several.

    out[s] = sum over r of  prod over k of  scale_k table_k[A_k[s] + R_k[r]]

An entry s lies in a panel and at a place inside it, a term r in a far and a near part; each has its own table of
offsets, so that none grows with a clique.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import KernelModule, cuda_source
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, contraction, row_major
from junctor_kernels.tables.reference import Algebra

# Threads of a block, entries that each of them takes, and so entries of a block.
THREADS, EACH = 256, 4
TILE = THREADS * EACH
# Operands of a launch; more are contracted in several.
MOST_OPERANDS = 16
# Blocks that keep a device busy; where there is more to do, each does several rounds.
MOST_BLOCKS = 1 << 12
# Numbers of operands that have a kernel of their own.
MOST_COMPILED = 6
# Entries of a panel at the most, in tables from so many entries on (so there are fewer offsets), and near terms.
PANEL, LARGE_PANEL, LARGE_ENTRIES, NEAR = 1 << 12, 1 << 14, 1 << 24, 32
# Entries of a panel whose neighbours in the largest operand are in other panels.
FAR_PANEL = 1 << 12
# Kept entries from which a thread takes an entry; with fewer, a block takes one, or some terms are kept at first.
MANY_ENTRIES = 1 << 15
# With fewer, the share of the entries that its terms may be for a thread to take them all.
TERMS_WORTH_THREADS = 64
# Terms that a block sums for an entry.
BLOCK_TERMS = 1 << 14
# Operations up to which such blocks may read what lies far apart.
SCATTERED_WORK = 1 << 20
# Entries that are made of terms which are kept at first.
PARTIAL_ENTRIES = 1 << 18
# Terms of each of them that are worth it.
EACH_PARTIAL = 8
# How four neighbouring entries lie in an operand: anywhere, in one place, in two neighbouring ones, side by side. In
# chains the states of the axes that come and go may be side by side instead, those of the first axis fastest or last.
APART, SAME, PAIRS, RUN, TILE_RUN, TILE_LAST_FIRST = range(6)
# Places that entries may have in a small table of a chain.
MOST_ROWS = 32
# Most operands of the kernel for such entries, and most lines of memory that a warp may touch at once there.
MOST_IN_QUADS, MOST_LINES = 3, 16
# Entries that are loaded or stored as one where they lie side by side, from multiples of it on.
VECTOR = 4
# Entries of a line, those of it that memory gives at the least, and threads of a warp.
LINE, SECTOR, WARP = 32, 8, 32
# Of an exchange: bytes of a vector, vectors that a thread takes at a time, axes of runs and shares of a part at most,
# and blocks: one for each multiprocessor fills the links of a device, and leaves others room for two of a chain's.
VECTOR_BYTES, EACH_VECTORS, MOST_AXES, MOST_SHARES, EXCHANGE_BLOCKS = 16, 4, 12, 16, 132
# Vectors of a bulk copy, where runs are as long, and how many a block has in shared memory.
BULK_VECTORS, BULK_STAGES = 512, 5
# What its warps take, at the most: they count in 32 bits.
MOST_WARPS = 1 << 31
# The fields of the struct `Reduction`, in its order, and those of an operand.
FIELDS = ("out", "out_panels", "extremes", "entries", "panel", "near_terms", "far_terms", "operands", "adds")
OPERAND_FIELDS = (
    *("table", "panels", "places", "far", "near", "scale", "lead"),
    *("whole", "quad", "second", "third", "fourth", "rows"),
)
# Where in the record the addresses of the result and of the operands lie, and what differs from task to task.
OUT, TABLES = FIELDS.index("out"), [len(FIELDS) + k * len(OPERAND_FIELDS) for k in range(MOST_OPERANDS)]
SCALE, OUT_PANELS = OPERAND_FIELDS.index("scale"), FIELDS.index("out_panels")
EXTREMES, ADDS, OPERANDS = FIELDS.index("extremes"), FIELDS.index("adds"), FIELDS.index("operands")

# The sign of a number in double precision.
SIGN = np.uint64(1 << 63)

Integers = npt.NDArray[Any]
# Size, and the stride in every operand.
Axis = tuple[int, ...]


def source(algebra: str) -> str:
    """Return the CUDA C++ source of the kernels in an algebra, by its name."""
    constants = {"THREADS": THREADS, "EACH": EACH, "TILE": TILE, "MOST_OPERANDS": MOST_OPERANDS, "NEAR": NEAR}
    constants |= {"APART": APART, "SAME": SAME, "PAIRS": PAIRS, "RUN": RUN}
    constants |= {"MOST_ROWS": MOST_ROWS, "TILE_RUN": TILE_RUN, "TILE_LAST_FIRST": TILE_LAST_FIRST}
    constants |= {"EACH_VECTORS": EACH_VECTORS, "MOST_AXES": MOST_AXES, "MOST_SHARES": MOST_SHARES}
    constants |= {"BULK_VECTORS": BULK_VECTORS, "BULK_STAGES": BULK_STAGES}
    what = reference.ALGEBRAS[algebra]
    before = "\n".join(["#define LOGS"] * what.logs + ["#define MAXIMA"] * (what.join is np.maximum))
    double = what.dtype.itemsize == 8
    return cuda_source(("numbers.cu", "algebra.cu", "entries.cu"), constants, double, before)


KERNELS = KernelModule(source)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where the entries and terms of an operand lie.

    panels, far: int64, of entries and of terms; they may lie anywhere in a table.
    places, near: int32, inside a panel and among near terms.
    """

    panels: Integers
    places: Integers
    far: Integers
    near: Integers

    @property
    def parts(self) -> tuple[Integers, ...]:
        """All of them, in the order of the record."""
        return self.panels, self.places, self.far, self.near


@dataclass(frozen=True, slots=True)
class EntryLaunch:
    """A contraction for a kernel whose threads go over entries, or over the terms of an entry.

    over_entries: whether threads go over entries.
    entries: of the result; in a chain those beside the axes that come and go.
    panel, near_terms, far_terms: entries of a panel, and terms of both parts.
    offsets: of each operand.
    quads: how four neighbouring entries lie in each, where a thread takes four: the kind, and where the other three lie
    to the first.
    stages: eliminations of a chain (`chains.py`), 0 for none.
    begins: int64, where each panel of the result begins; None where they lie one after the other.
    is_apart: whether the four entries of a thread are neighbours in the largest operand and lie apart in the result,
        which is one more operand then, as in a chain.
    """

    over_entries: bool
    entries: int
    panel: int
    near_terms: int
    far_terms: int
    offsets: tuple[Offsets, ...]
    quads: tuple[tuple[int, ...], ...] = ()
    stages: int = 0
    begins: Integers | None = None
    is_apart: bool = False

    @property
    def has_result(self) -> bool:
        """Whether the last operand is the result."""
        return self.is_apart or self.stages > 0

    @property
    def name(self) -> str:
        """The kernel, of those over entries the one for so many operands."""
        if self.stages:
            return f"reduce_chain_{self.stages}"
        if not self.over_entries:
            return "reduce_terms"
        if self.quads:
            kind, operands = ("apart", len(self.offsets) - 1) if self.is_apart else ("quads", len(self.offsets))
            return f"reduce_{kind}_{operands}_{2 - self.near_terms % 2}"
        return f"reduce_entries_{len(self.offsets) if len(self.offsets) <= MOST_COMPILED else 0}"

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        if not self.over_entries:
            return self.entries
        tiles = -(-self.panel // TILE)
        return tiles * min(self.entries // self.panel, -(-MOST_BLOCKS // tiles))

    def with_operand(self, k: int, offsets: Offsets, quad: tuple[int, ...]) -> EntryLaunch:
        """Return the same launch for an operand that lies elsewhere; quad: how neighbours lie there, if that counts."""
        quads = (*self.quads[:k], quad, *self.quads[k + 1 :]) if quad else ()
        return replace(self, offsets=(*self.offsets[:k], offsets, *self.offsets[k + 1 :]), quads=quads)

    @property
    def nbytes(self) -> int:
        """Bytes of all offsets."""
        return sum(part.nbytes for offsets in self.offsets for part in offsets.parts)


@lru_cache(maxsize=256)
def launches_of(what: Contraction) -> tuple[EntryLaunch, ...]:
    """Return the launches of a contraction: one, or several of which each reads what the one before made.

    Where few entries have many terms, the fastest terms are kept at first, so that there are threads enough. Raises
    OverflowError for more operands than a launch takes.
    """
    if len(what.operands) > MOST_OPERANDS:
        raise OverflowError(f"a product of {len(what.operands)} tables, the GPU takes {MOST_OPERANDS}")
    kept = list(zip(what.kept, *(strides.kept for strides in what.operands), strict=True))
    eliminated = list(zip(what.eliminated, *(strides.eliminated for strides in what.operands), strict=True))
    entries, terms, operands = what.kept_entries, what.eliminated_entries, len(what.operands)
    if entries >= MANY_ENTRIES or terms <= max(NEAR, entries // TERMS_WORTH_THREADS):
        return (_launch(True, kept, eliminated, operands),)
    if terms <= BLOCK_TERMS and (entries * terms <= SCATTERED_WORK or not _nearer_entries(kept, eliminated, operands)):
        return (_launch(False, kept, eliminated, operands),)
    most = PARTIAL_ENTRIES // entries
    if terms < EACH_PARTIAL * most:
        # Always fewer than there are, and no more than there is room for.
        most = min(most, BLOCK_TERMS) if terms > BLOCK_TERMS else terms // EACH_PARTIAL
    left, more = cut_axes(eliminated, most)
    if _entries(more) == 1:
        return (_launch(False, kept, eliminated, operands),)
    # Neighbouring threads take what lies side by side in the largest operand: its axes, slowest first, behind others.
    axes, largest = [*kept, *more], _largest(kept, eliminated, operands)
    order = sorted(range(len(axes)), key=lambda n: -(axes[n][largest] or math.inf))
    first = _launch(True, [axes[n] for n in order], left, operands)
    sizes = {n: axis[0] for n, axis in enumerate(axes)}
    return (first, *launches_of(contraction(range(len(kept)), range(len(kept), len(axes)), [order], sizes)))


def _largest(kept: Sequence[Axis], eliminated: Sequence[Axis], operands: int) -> int:
    """Return the place of the strides of the largest operand in an axis."""
    sizes = [math.prod(axis[0] for axis in (*kept, *eliminated) if axis[k]) for k in range(1, operands + 1)]
    return 1 + sizes.index(max(sizes))


def _nearer_entries(kept: Sequence[Axis], eliminated: Sequence[Axis], operands: int) -> bool:
    """Return True if in the largest operand entries lie nearer to each other than terms."""
    largest = _largest(kept, eliminated, operands)
    nearest = [min((axis[largest] for axis in axes if axis[largest]), default=math.inf) for axes in (kept, eliminated)]
    return nearest[0] < nearest[1]


def _entries(axes: Sequence[Axis]) -> int:
    return math.prod(axis[0] for axis in axes)


def cut_axes(axes: Sequence[Axis], most: int) -> tuple[list[Axis], list[Axis]]:
    """Cut axes (size, strides of the operands) into slow and fast ones; the fast have at most so many entries."""
    slow, fast, entries = list(axes), list[Axis](), 1
    while slow:
        size, *strides = slow.pop()
        # A part of an axis has to divide it: what is left is an axis again.
        part = next(part for part in range(min(size, most // entries), 0, -1) if size % part == 0)
        fast.insert(0, (part, *strides))
        entries *= part
        if part < size:
            slow.append((size // part, *(stride * part for stride in strides)))
            break
    return slow, fast


def _launch(over_entries: bool, kept: Sequence[Axis], eliminated: Sequence[Axis], operands: int) -> EntryLaunch:
    most = PANEL if _entries(kept) < LARGE_ENTRIES else LARGE_PANEL
    # Kept axes have their stride in the result, which has them in this order, as one more.
    strides = row_major(range(len(kept)), [axis[0] for axis in kept])
    axes = [(*axis, strides[n]) for n, axis in enumerate(kept)]
    # Two tables of offsets a side: their sizes add up, where one table would have the product.
    (panels, places), (far, near) = cut_axes(axes, most), cut_axes(eliminated, NEAR)
    begins = None
    largest = _largest(kept, eliminated, operands) if over_entries and _entries(kept) >= LARGE_ENTRIES else None
    if largest is not None and _is_far(panels, largest):
        # Panels that read the same lines of the largest operand, a few numbers of each, follow each other: then these
        # are still in the cache. They are smaller, so that more of them are read at once.
        panels, places = cut_axes(axes, FAR_PANEL)
        others, apart = _neighbours(axes, panels, largest)
        if operands > MOST_IN_QUADS or _entries(far) > 1:
            apart = []
        if apart:
            panels, places = cut_axes(others, FAR_PANEL // VECTOR)
            places = [*places, *apart]
        panels.sort(key=lambda axis: 0 < axis[largest] < LINE)
        if apart and (launch := _apart(panels, places, near, operands)) is not None:
            return launch
        begins = walk(panels, operands + 1)
    offsets = tuple(_offsets(panels, places, far, near, k) for k in range(1, operands + 1))
    quads = _quads(offsets) if over_entries and _entries(far) == 1 else ()
    sizes = _entries(kept), _entries(places), _entries(near), _entries(far)
    return EntryLaunch(over_entries, *sizes, offsets, quads, begins=begins)


def _is_far(panels: Sequence[Axis], largest: int) -> bool:
    """Return True if neighbours in the largest operand are in different panels."""
    return any(0 < axis[largest] < SECTOR for axis in panels)


def _neighbours(axes: Sequence[Axis], panels: Sequence[Axis], largest: int) -> tuple[list[Axis], list[Axis]]:
    """Return axes in two parts, the second along which four entries are near to each other in the largest operand.

    axes: all of them; those of `panels` are chosen from. The second part is empty where these do not have four.
    """
    # An axis of which a part is inside of panels stays where it is.
    near = [axis for axis in panels if 0 < axis[largest] < SECTOR and axis in axes]
    slow, fast = cut_axes(sorted(near, key=lambda axis: -axis[largest]), VECTOR)
    if _entries(fast) != VECTOR:
        return list(axes), []
    return [*slow, *(axis for axis in axes if axis not in near)], fast


def _apart(panels: Sequence[Axis], places: Sequence[Axis], near: Sequence[Axis], operands: int) -> EntryLaunch | None:
    """Return a launch whose threads take the innermost four places each; None where these lie otherwise for each."""
    # Of the result there are no terms.
    offsets = tuple(_offsets(panels, places, [], near if k <= operands else [], k) for k in range(1, operands + 2))
    quads = [_quad(each, any_lines=True) for each in offsets]
    if not all(quads):
        return None
    sizes = _entries((*panels, *places)), _entries(places), _entries(near), 1
    return EntryLaunch(True, *sizes, offsets, tuple(quads), is_apart=True)


def _offsets(
    panels: Sequence[Axis], places: Sequence[Axis], far: Sequence[Axis], near: Sequence[Axis], k: int
) -> Offsets:
    return Offsets(walk(panels, k), narrow(walk(places, k)), walk(far, k), narrow(walk(near, k)))


def _quads(offsets: Sequence[Offsets]) -> tuple[tuple[int, ...], ...]:
    """Return how four neighbouring entries lie in each operand; nothing where a thread is better off with others."""
    if not 1 <= len(offsets) <= MOST_IN_QUADS or len(offsets[0].places) % 4:
        return ()
    quads = tuple(map(_quad, offsets))
    return quads if all(quads) else ()


def _quad(offsets: Offsets, any_lines: bool = False) -> tuple[int, ...]:
    """Return how the entries of a thread lie in an operand; nothing where that differs from thread to thread.

    any_lines: whether a warp may touch any number of lines.
    """
    quads = offsets.places.reshape(-1, 4)
    first, lies = quads[:, 0], quads[0] - quads[0, 0]
    # Where a warp touches more lines at once, threads that take one entry are better off.
    lines = len(np.unique(first[:WARP] // LINE))
    if (lines > MOST_LINES and not any_lines) or (quads - first[:, None] != lies).any():
        return ()
    kinds = {(0, 0, 0, 0): (SAME, 1), (0, 0, 1, 1): (PAIRS, 2), (0, 1, 2, 3): (RUN, 4)}
    kind, aligned = kinds.get(tuple(lies.tolist()), (APART, 1))
    # Vectors are loaded from multiples of their size only.
    if any((part % aligned).any() for part in (offsets.panels, first, offsets.far, offsets.near)):
        kind = APART
    return (kind, *lies[1:].tolist())


class PartRuns(NamedTuple):
    """How the entries of a part lie in a larger table: so many side by side, and where each run begins."""

    entries: int
    starts: tuple[int, ...]


def in_place(launch: EntryLaunch, k: int, runs: PartRuns) -> EntryLaunch | None:
    """Return the same launch for an operand that lies in runs; None where that is another computation.

    Sums keep their order: the kernel is the same.
    """
    offsets = in_runs(launch.offsets[k], runs)
    if offsets is None:
        return None
    quad = _quad(offsets, launch.is_apart) if launch.quads else ()
    return None if launch.quads and not quad else launch.with_operand(k, offsets, quad)


def in_runs(offsets: Offsets, runs: PartRuns) -> Offsets | None:
    """Return offsets into runs; None where those of entries and terms do not simply add up there."""
    starts = np.array(runs.starts, dtype=np.int64)
    found = [np.divmod(part, runs.entries) for part in offsets.parts]
    # Sums of parts must not cross the end of a run: inside one, addresses add up as offsets do.
    if sum(int(within.max()) for _, within in found) >= runs.entries:
        return None
    numbers = np.zeros(1, np.int64)
    sums = np.zeros(1, np.int64)
    for run, _ in found:
        # Sorting them would take ten times as long.
        is_touched = np.zeros(len(starts), np.bool_)
        is_touched[run] = True
        touched = np.flatnonzero(is_touched)
        if len(numbers) * len(touched) > len(starts):
            return None
        numbers = np.add.outer(numbers, touched).reshape(-1)
        sums = np.add.outer(sums, starts[touched]).reshape(-1)
    if (starts[numbers] != sums).any():
        return None
    panels, places, far, near = (starts[run] + within for run, within in found)
    return Offsets(panels, narrow(places), far, narrow(near))


def out_panels(launch: EntryLaunch, runs: PartRuns) -> Integers | None:
    """Return the offsets of the panels of a result in runs; None where a panel is not in one of them."""
    if runs.entries % launch.panel:
        return None
    begins = np.arange(0, launch.entries, launch.panel) if launch.begins is None else launch.begins
    return np.array(runs.starts, dtype=np.int64)[begins // runs.entries] + begins % runs.entries


def walk(axes: Sequence[Axis], k: int) -> Integers:
    """Return where operand `k` (from 1 on) has the entries of some axes, in C order."""
    at = np.zeros(1, dtype=np.int64)
    for axis in axes:
        at = (at[:, None] + axis[k] * np.arange(axis[0])[None, :]).reshape(-1)
    return at


def narrow(offsets: Integers) -> Integers:
    """Return offsets inside a panel; raises OverflowError where they are too large."""
    if offsets.size and int(offsets.max()) > np.iinfo(np.int32).max:
        raise OverflowError(f"found an offset of {int(offsets.max()):,} inside a panel, the GPU counts to 2^31")
    return offsets.astype(np.int32)


def _blank() -> npt.NDArray[np.int64]:
    return np.zeros(len(FIELDS) + MOST_OPERANDS * len(OPERAND_FIELDS), dtype=np.int64)


def record(
    launch: EntryLaunch, out: int, extremes: int, adds: bool, operands: Sequence[tuple[int, ...]]
) -> npt.NDArray[np.int64]:
    """Return the struct `Reduction`.

    out: address of the result.
    extremes: address of the two words that are raised, 0 for none.
    adds: whether sums are added to what is there.
    operands: addresses of table, panels, places, far and near, the bits of its scale, and the address of the word that
    tells its power of two, 0 for none.
    """
    fields = [out, 0, extremes, launch.entries, launch.panel, launch.near_terms, launch.far_terms, len(operands), adds]
    for k, operand in enumerate(operands):
        fields += [*operand, *(launch.quads[k] if launch.quads else ())]
        fields += [0] * (len(FIELDS) + (k + 1) * len(OPERAND_FIELDS) - len(fields))
    words = _blank()
    words[: len(fields)] = fields
    return words


def carried(to: int, of: int, entries: int) -> npt.NDArray[np.int64]:
    """Return the struct `Reduction` of the kernel `carry`, which copies a table.

    to, of: addresses of the target and of the source.
    entries: of the table.
    """
    words = _blank()
    words[OUT], words[TABLES[0]], words[FIELDS.index("entries")] = to, of, entries
    return words


def relayed(to: int, of: int, steps: int) -> npt.NDArray[np.int64]:
    """Return the struct `Reduction` of the kernel `relay`, which copies what the first task found.

    to, of: addresses of words [steps, 2, 2], the target and the source.
    steps: whose words are copied.
    """
    words = _blank()
    words[EXTREMES], words[len(FIELDS) + OPERAND_FIELDS.index("lead")] = to, of
    words[FIELDS.index("entries")] = steps
    return words


def gathered(to: int, of: Sequence[int], steps: int) -> npt.NDArray[np.int64]:
    """Return the struct `Reduction` of the kernel `gather`, which combines what several devices found.

    to: address of words [steps, 2, 2].
    of: addresses of such words of every device.
    steps: whose words are combined.
    """
    words = _blank()
    words[EXTREMES], words[FIELDS.index("entries")], words[OPERANDS] = to, steps, len(of)
    leads = len(FIELDS) + OPERAND_FIELDS.index("lead")
    words[leads :: len(OPERAND_FIELDS)][: len(of)] = of
    return words


class ExchangeLaunch(NamedTuple):
    """A launch of a kernel that copies runs.

    kernel: `exchange_runs` for long ones, or `exchange`.
    blocks: of threads.
    threads: of a block.
    words: the struct `Exchange`.
    to, of: places of the addresses of targets and of sources in it.
    """

    kernel: str
    blocks: int
    threads: int
    words: npt.NDArray[np.int64]
    to: slice
    of: slice


def exchanged(axes: Sequence[Axis], shares: Sequence[tuple[int, int]], bulk: bool = False) -> ExchangeLaunch | None:
    """Return the launch that copies runs; None where they are no whole vectors, or too many kinds of them.

    axes: (states, bytes from one to the next in the target, in the source), slowest first; the last one is a run, whose
    states are bytes.
    shares: addresses of target and source; what lies at each is alike.
    bulk: whether the device copies long runs in bulk.
    """
    *outer, (width, _, _) = axes
    aligned = [width, *(stride for axis in outer for stride in axis[1:]), *(end for ends in shares for end in ends)]
    if len(outer) > MOST_AXES or len(shares) > MOST_SHARES or any(number % VECTOR_BYTES for number in aligned):
        return None
    vectors, runs = width // VECTOR_BYTES, _entries(outer)
    warps = len(shares) * runs * -(-vectors // (WARP * EACH_VECTORS))
    if warps > MOST_WARPS:
        return None
    head = [vectors, runs, len(outer), len(shares)]
    distances = [(states, to // VECTOR_BYTES, of // VECTOR_BYTES) for states, to, of in outer]
    distances += [(0, 0, 0)] * (MOST_AXES - len(outer))
    head += itertools.chain.from_iterable(distances)
    ends = [*itertools.chain.from_iterable(shares), *[0] * (2 * (MOST_SHARES - len(shares)))]
    first, behind = len(head), len(head) + 2 * len(shares)
    kernel, blocks, threads = "exchange", -(-warps * WARP // THREADS), THREADS
    if bulk and vectors >= BULK_VECTORS:
        kernel, blocks, threads = "exchange_runs", len(shares) * runs * -(-vectors // BULK_VECTORS), WARP
    words = np.array(head + ends, np.int64)
    blocks = min(EXCHANGE_BLOCKS, blocks)
    return ExchangeLaunch(kernel, blocks, threads, words, slice(first, behind, 2), slice(first + 1, behind, 2))


def exchanged_shares(words: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the addresses, target and source, of the shares of a struct `Exchange`."""
    first = len(words) - 2 * MOST_SHARES
    for share in range(int(words[3])):
        to, of = words[first + 2 * share : first + 2 * share + 2].tolist()
        yield to, of


def exchanged_bytes(words: npt.NDArray[np.int64]) -> int:
    """Return the bytes that a struct `Exchange` copies."""
    vectors, runs, _, shares = words[:4].tolist()
    return int(vectors * runs * shares * VECTOR_BYTES)


def shift_of(largest: float, algebra: Algebra) -> float:
    """Return the exponent of the power of two that readers multiply with, or the whole number added to logarithms.

    largest: entry of the first task.
    algebra: of the table.
    """
    if not algebra.zero < largest < np.inf:
        return 0
    if algebra.logs:
        return -float(np.rint(largest))
    return -min(math.frexp(float(largest))[1], _most_shift(algebra.dtype))


@cache
def _most_shift(dtype: np.dtype[Any]) -> int:
    # Two to the power of more would be beyond the format, or below what it holds exactly.
    return 1 - int(np.finfo(dtype).minexp) - 1


def scale_of(shift: float, algebra: Algebra) -> int:
    """Return the bits of what entries are combined with for a shift as of `shift_of`."""
    return bits_of(shift if algebra.logs else 2.0**shift)


def extremes_of(words: Integers, algebra: Algebra) -> tuple[Integers, Integers]:
    """Return the largest entries, and the smallest above zero, 1 where there is none (and of logarithms).

    words: [..., 2], as kernels leave them.
    algebra: of the tables.
    """
    largest, least = np.ascontiguousarray(words[..., 0]), np.ascontiguousarray(~words[..., 1])
    if algebra.logs:
        entries = np.where(largest >> 63 != 0, largest & ~SIGN, ~largest).view(algebra.dtype)
        return entries, np.ones_like(entries)
    return largest.view(algebra.dtype), np.where(words[..., 1] > 0, least.view(algebra.dtype), 1)


def bits_of(number: float) -> int:
    """Return the bits of a double as an integer."""
    return int(np.float64(number).view(np.int64))
