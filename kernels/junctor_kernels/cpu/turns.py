"""Turns of processes at a function: one compiles it, the others wait, and load what that one has saved.

Main class: `Turn`, taken by `cpu.jit`. A turn is a lock on a file, which ends with the process that holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

# Seconds that a process waits for another one: some times what the largest function takes. Waiting cannot come to a
# circle, because a process that compiles waits only for what its function calls, and no function calls itself; a
# process that was stopped while it compiled is why there is an end nevertheless.
PATIENCE = 60.0
PAUSE = 0.02
_TAKEN = (errno.EACCES, errno.EAGAIN)


class Turn:
    """The turn at one function.

    path: of the lock, a file without content that stays.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def take(self, patience: float = PATIENCE) -> bool:
        """Wait for the turn; returns False where another process still has it after `patience` seconds.

        Where files cannot be made or locked there are no turns: it is True at once.
        """
        until = time.monotonic() + patience
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            while True:
                try:
                    # Of the process, not of the open file: a child that is forked meanwhile does not keep it.
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except OSError as error:
                    if error.errno not in _TAKEN:
                        return True
                if time.monotonic() >= until:
                    return False
                time.sleep(PAUSE)
        except OSError:
            return True

    def end(self) -> None:
        """Let others have the turn."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
