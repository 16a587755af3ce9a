"""SIGTERM, the wish of service managers that a command end: as after Ctrl-C, and within seconds whatever it is at.

Main function: `end_on_sigterm`, called where the command line begins.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

# Kubernetes kills after 30 seconds, systemd after 90, impatient people after ten.
GRACE_SECONDS = 8.0
# As shells have them: 128 and the number of the signal.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """The wish of a service manager that this process end."""


def end_on_sigterm() -> None:
    """Let SIGTERM raise `Terminated` in the main thread, and end this process if that has not after a while."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)

    def terminate(number: int, _frame: FrameType | None) -> None:
        # Once: another one must not stop what is being cleared away.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, bytes([number]))
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    # The handler waits for compiled code of the main thread; the descriptor tells at once.
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_end_late, args=(told,), name="junctor-signals", daemon=True).start()


def _end_late(told: int) -> None:
    """End this process and its children some seconds after SIGTERM was told."""
    while signal.SIGTERM not in os.read(told, 1):
        pass
    time.sleep(GRACE_SECONDS)
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
    os.write(2, b"error: terminated before all was cleared away: run the same command again to go on\n")
    os._exit(TERMINATED)
