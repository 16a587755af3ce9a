"""The Prefect server of a command without another one: `python -m junctor_flows.server DESCRIPTOR`.

Main function: `main`, called in a process of its own by the command line.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

import uvicorn
from prefect.server.api.server import create_app


def main(descriptor: int) -> None:
    """Serve on the listening socket `descriptor` until standard input ends."""
    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))

    # The socket is the parent's, so that no port can be taken meanwhile and clients wait instead of polling. Standard
    # input ends when the parent does, however that ends.
    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    # Service managers send SIGTERM to all processes of a command, terminals SIGHUP: this one has to hear how the flow
    # ended.
    server.handle_exit = lambda *_: None
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
    if not server.started:
        raise SystemExit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
