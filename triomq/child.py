"""Run a name server or a broker as a child process that ends with its parent.

    python -m triomq.child broker -c broker.conf

The parent keeps the write end of a pipe whose read end is this process's standard input, and never
writes. When the parent ends, in whatever way, the pipe reports end of file and this process sends
itself SIGTERM, so that it stops as usual, and SIGKILL after ``STOP_SECONDS_MAX``. That needs only
pipes from the operating system, works on Linux and macOS, and cannot hit the wrong process.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

STOP_SECONDS_MAX = 20
SERVICES = ("namesrv", "broker")


def _stop_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Start the thread that watches the parent, then become the service."""
    service = sys.argv[1] if len(sys.argv) > 1 else ""
    if service not in SERVICES:
        sys.exit(f"mqlocal child: the first argument must be one of {', '.join(SERVICES)}")
    threading.Thread(target=_stop_with_parent, name="parent-watch", daemon=True).start()
    del sys.argv[1]
    runpy.run_module(f"triomq.{service}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
