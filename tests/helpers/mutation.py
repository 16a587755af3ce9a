"""Damage to files, as editors, transfers and disks do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random

from junctor.model.errors import ModelError

# Marks that mean something in some format, besides any byte.
MARKS = '{}()[]<>"|;,=%/*\\&#-+.eE0123456789 \t\n\r\0\xa0\u2028'


def check_damaged(read: Callable[[str], object], texts: Sequence[str], name: str) -> None:
    """Damaged files give a network each, or an error of ours that names the file."""
    for seed in range(150):
        random = Random(seed)
        message = error_in_time(read, mutated(random.choice(texts), random))
        if message is not None:
            assert name in message, seed
            assert "__" not in message, seed


def error_in_time(read: Callable[[str], object], text: str) -> str | None:
    """Return what reading says is wrong, None where nothing is; fails where that takes seconds."""
    # Of this thread: others may have the cores.
    started, message = time.thread_time(), None
    try:
        read(text)
    except ModelError as caught:
        message = str(caught)
    assert time.thread_time() - started < 5
    return message


def mutated(text: str, random: Random) -> str:
    """Return the text with one to four pieces changed, deleted, inserted, repeated, moved, or with its end cut off."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        text = _mutated_once(text, random)
    return text if random.random() < 0.95 else text[: random.randrange(len(text) + 1)]


def _mutated_once(text: str, random: Random) -> str:
    start, other = random.randrange(len(text) + 1), random.randrange(len(text) + 1)
    end = start + random.choice((1, 1, 1, 2, 5, 20, 100))
    piece = text[start:end]
    mark = random.choice(MARKS) if random.random() < 0.7 else chr(random.randrange(256))
    changes = (
        text[:start] + mark + text[start + 1 :],
        text[:start] + text[end:],
        text[:start] + mark * random.choice((1, 2, 50)) + text[start:],
        text[:start] + piece * random.choice((2, 3, 30)) + text[end:],
        text[:other] + piece + text[other:],
    )
    return random.choice(changes)
