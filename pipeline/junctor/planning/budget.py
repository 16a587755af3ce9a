"""Memory budgets in bytes: allowed (by the user), reserved (taken before planning), projected (by a plan).

Main class: Budget; called by everything that allocates tables. Sizes are parsed and printed here as well, and so are
durations: time is a budget too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from junctor.model.errors import BudgetError

# Decimal and binary units; K, M, G and T alone are binary, as in most tools for memory.
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Bytes below which a number that a person writes has a unit.
LEAST_PLAIN = 1000

# Units of durations, and what people call them, the longest last.
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_SPANS = ((1, "s"), (60, "min"), (3600, "h"), (86400, "days"), (365 * 86400, "years"))
# Seconds that a row may be forecast to take: the least limit, the default, and three years, in which a core counts to
# 2^62, as far as kernels do.
LEAST_LIMIT, DAY, FOREVER = 1.0, 86_400.0, 1e8

# Memory from which on there is some for what goes beside propagation.
PLENTY_BYTES = 1 << 31
# Batches whose impossible rows get reasons while the next ones are answered, where memory is plenty, a thread each;
# and bytes for a search.
EXPLAINED_AT_ONCE, EXPLAINING_BYTES = 3, 1 << 27


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of propagation, in bytes.

    allowed: by the user.
    reserved: of that, taken by evidence and answers of the batch.
    passing: of `reserved`, taken only temporarily by other work.
    """

    allowed: int
    reserved: int = 0
    passing: int = 0

    @property
    def free(self) -> int:
        """Bytes left for a plan."""
        return self.allowed - self.reserved

    def refuse(self, needed: int, where: str, advice: str) -> BudgetError:
        """Return the error for work beyond the budget.

        needed: bytes in addition to the reserved ones.
        where: the work, as subject of the message.
        advice: the next move.
        """
        needed += self.reserved
        return BudgetError(f"{where} needs {exact_bytes(needed)}, allowed are {exact_bytes(self.allowed)}; {advice}")


def approximate(count: int) -> str:
    """Return an integer of any size for people: all its digits up to 10^15, beyond that as 1.2e+345."""
    if abs(count) < 10**15:
        return f"{count:,}"
    if abs(count) < 10**300:
        return f"{count:.2e}"
    # math.log10 of the leading 64 bits: larger integers exceed the range of doubles.
    digits = math.log10(count >> (count.bit_length() - 64)) + (count.bit_length() - 64) * math.log10(2)
    return f"{10 ** (digits % 1):.1f}e+{math.floor(digits)}"


def format_bytes(count: int) -> str:
    """Return `count` in the largest binary unit that keeps at least one digit before the point."""
    # Beyond 1024 EiB there is no larger unit, and plans in error messages may be of any size.
    if count >= 2**70:
        return f"{approximate(count >> 60)} EiB"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} EiB"


def exact_bytes(count: int) -> str:
    """Return `count` as `format_bytes` does, and in bytes: a rounded size that a refusal names may not be enough."""
    return f"{format_bytes(count)} ({approximate(count)} bytes)"


def parse_bytes(text: str) -> int:
    """Return the number of bytes that "4GiB", "500 MB" or "1e9" mean; raises BudgetError for anything else."""
    # Only letters are taken off the end, so that the e of 1e9 stays with its digits.
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = stripped[len(number) :].upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise BudgetError(f"found the size {text!r}, expected a number and a unit such as 500MB or 4GiB") from None
    if size <= 0:
        raise BudgetError(f"found the size {text!r}, expected more than nothing")
    return size


def parse_told_bytes(text: str) -> int:
    """Return the same of what a person wrote: so few bytes that nothing fits them have a unit, or another is meant."""
    size, number = parse_bytes(text), text.strip()
    if size < LEAST_PLAIN and not number[-1].isalpha():
        raise BudgetError(f"found the size {text!r}, which is as many bytes; was {number}GiB meant?")
    return size


def parse_seconds(text: str) -> float:
    """Return the seconds that "90s", "5min", "2h" or "1d" mean; raises BudgetError for anything else."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(number) * _SECONDS[text.strip()[len(number) :]]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise BudgetError(f"found the time {text!r}, expected a number and a unit such as 90s, 5min or 2h")
    return seconds


def parse_time_limit(text: str) -> float:
    """Return the seconds of a limit of a row's time, "none" for as good as none; raises BudgetError."""
    if text.strip().lower() == "none":
        return FOREVER
    seconds = parse_seconds(text)
    if seconds < LEAST_LIMIT:
        # Rows that take less are not forecast at all.
        raise BudgetError(f"found the time {text!r}, expected {LEAST_LIMIT:g}s or more, or none")
    return seconds


def row_seconds(limit: float | None) -> float:
    """Return the seconds that a row may be forecast to take; limit: as given, None for the default."""
    return min(DAY if limit is None else limit, FOREVER)


def format_seconds(seconds: float) -> str:
    """Return seconds in the largest unit of which there are two, as 12 s, 3.5 h or 1e+20 years."""
    size, unit = next((span for span in reversed(_SPANS) if seconds >= 2 * span[0]), _SPANS[0])
    return f"{seconds / size:.2g} {unit}"


def traded(variables: int, again: int, slower: float, names: str = "") -> str:
    """Return what is done in place of keeping tables, for people; nothing for nothing.

    variables: that are held constant; names: of these.
    again: messages that are made again.
    slower: times the operations that this takes.
    """
    done = [f"sliced over {variables} variable{'s' * (variables > 1)}{names}"] * bool(variables)
    done += [f"{again:,} message{'s' * (again > 1)} made again"] * bool(again)
    return f"{' and '.join(done)}, {slower:.2g} x the operations" if done else ""


def too_long(seconds: float, allowed: float, where: str, advice: str) -> BudgetError:
    """Return the error for work that is forecast to take longer than allowed.

    seconds, allowed: forecast, and limit.
    where: the work, as subject of the message.
    advice: the next move.
    """
    return BudgetError(
        f"{where} is forecast to take {format_seconds(seconds)}, allowed are {format_seconds(allowed)} "
        f"(--time-limit); {advice}"
    )
