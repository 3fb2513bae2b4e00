"""The console script ``triomq``: read the command line, then import and run what it asks for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from triomq.client.runner.command_line import run_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run consumers; return the exit code of the process (docs/sdk/running.md)."""
    try:
        parsed = run_parser().parse_args(arguments)
        if parsed.child is not None:
            threading.Thread(target=_stop_with_parent, name="parent-watch", daemon=True).start()
        # Not for --help, --version and wrong options: start-up time.
        from triomq.runner.serve import serve

        return serve(parsed)
    except KeyboardInterrupt:  # before consumers run; later Ctrl-C is an orderly stop
        return 130


def _stop_with_parent() -> None:
    """Stop in order when the parent ends: it holds a pipe open, and never writes."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
