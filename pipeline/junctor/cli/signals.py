"""SIGTERM, the wish of service managers that a command end, and SIGHUP, that of a terminal that goes: as after Ctrl-C,
and within seconds whatever it is at.

Main function: `end_on_sigterm`, called where the command line begins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

# Kubernetes kills after 30 seconds, systemd after 90, impatient people after ten.
GRACE_SECONDS = 8.0
# Until an interrupt that came to nothing is told again.
AGAIN_SECONDS = 0.05
# For killing child processes.
KILL_SECONDS = 1.0
# What is said of an interrupted command that leaves what it has done.
GO_ON = "run the same command again to go on"
# As shells have them: 128 and the number of the signal.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
# After both a command ends in the same way, and with the same code.
ENDING = signal.SIGTERM, signal.SIGHUP


class Terminated(KeyboardInterrupt):
    """The wish of a service manager, or of a terminal that goes, that this process end."""


def end_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP raise `Terminated` in the main thread, and end this process if that has not after a while.

    A SIGHUP that is ignored, as by nohup, stays so.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)

    def again(number: int) -> None:
        timer = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    def try_no_more() -> None:
        # Imported by whoever asks a store; without, there is none to wait for.
        if (remote := sys.modules.get("junctor.runtime.remote")) is not None:
            remote.ending.set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            again(number)
            return
        try_no_more()
        signal.default_int_handler(number, frame)

    def terminate(number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            again(number)
            return
        # Once: another one must not stop what is being cleared away.
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        os.write(tell, bytes([number]))
        try_no_more()
        raise Terminated

    usual = sys.unraisablehook

    def tell_again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            usual(lost)
            return
        # Raised inside a callback of compiled code, which passes no exceptions on: LLVM's when a function is compiled.
        # This function is part of that callback, so the signal has to come later.
        number = signal.SIGINT
        if isinstance(lost.exc_value, Terminated):
            number = signal.SIGTERM
            signal.signal(number, terminate)
        again(number)

    signal.signal(signal.SIGTERM, terminate)
    if is_heard(signal.SIGHUP):
        signal.signal(signal.SIGHUP, terminate)
    # Of a command in the background a shell lets it be ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = tell_again
    # The handler waits for compiled code of the main thread; the descriptor tells at once.
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_end_late, args=(told,), name="junctor-signals", daemon=True).start()


def is_heard(number: int) -> bool:
    """Return True unless whoever started this process lets it ignore a signal."""
    return signal.getsignal(number) is not signal.SIG_IGN


def _imports(frame: FrameType | None) -> bool:
    """Return True if a frame, or one that it was called from, is of the import system."""
    # An exception between two of its steps leaves its lock locked, and other threads wait for it. One within a module
    # leaves half of it, and is lost where the import is of compiled code that goes on without: Arrow's of pandas.
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_late(told: int) -> None:
    """End this process and its children some seconds after one of the signals was told."""
    while os.read(told, 1)[0] not in ENDING:
        pass
    time.sleep(GRACE_SECONDS)
    # In a thread of its own: imports may wait for what has gone wrong.
    killer = threading.Thread(target=_kill_children, daemon=True)
    killer.start()
    killer.join(KILL_SECONDS)
    # On a full disk.
    with suppress(OSError):
        os.write(2, f"error: terminated before all was cleared away: {GO_ON}\n".encode())
    os._exit(TERMINATED)


def _kill_children() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
