"""The console script ``mqcontroller``: a controller in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.namesrv.command_line import controller_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a controller; return the exit code of the process (docs/operations.md)."""
    try:
        parsed = controller_parser().parse_args(arguments)
        # Not for --help, --version and wrong options: start-up time.
        from triomq.namesrv.serve import serve_controller

        return serve_controller(parsed)
    except KeyboardInterrupt:  # before the server runs; later Ctrl-C is an orderly stop
        return 0


if __name__ == "__main__":
    sys.exit(main())
