"""The console script ``mqnamesrv``: read the command line, then import and run ``serve.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.namesrv.command_line import namesrv_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server; return the exit code of the process (docs/operations.md)."""
    try:
        parsed = namesrv_parser().parse_args(arguments)
        # Not for --help, --version and wrong options: start-up time.
        from triomq.namesrv.serve import serve

        return serve(parsed)
    except KeyboardInterrupt:  # before the server runs; later Ctrl-C is an orderly stop
        return 0


if __name__ == "__main__":
    sys.exit(main())
