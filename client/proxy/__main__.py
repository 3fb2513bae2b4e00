"""The console script ``mqproxy``: read the command line, then import and run ``serve.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.client.proxy.command_line import proxy_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy; return the exit code of the process (docs/operations.md)."""
    try:
        parsed = proxy_parser().parse_args(arguments)
        # Not for --help, --version and wrong options: start-up time.
        from triomq.client.proxy.serve import serve

        return serve(parsed)
    except KeyboardInterrupt:  # before the server runs; later Ctrl-C is an orderly stop
        return 0


if __name__ == "__main__":
    sys.exit(main())
