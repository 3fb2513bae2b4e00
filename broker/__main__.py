"""The console script ``mqbroker``: the command line, then ``serve.py``, imported only to serve."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.broker.command_line import broker_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker; return the exit code of the process (docs/operations.md)."""
    try:
        parsed = broker_parser().parse_args(arguments)
        # Start-up time: --help, --version and wrong options do not need it.
        from triomq.broker.serve import serve

        return serve(parsed)
    except KeyboardInterrupt:  # before the broker serves; later it is an orderly stop
        return 0


if __name__ == "__main__":
    sys.exit(main())
