"""The console script ``mqstore``: read the command line, then import and run ``commands.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.broker.inspect.options import PROGRAM, store_parser
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code of the process (docs/mqstore.md)."""
    try:
        parsed = store_parser().parse_args(arguments)
        # Not for --help, --version and wrong options: start-up time.
        from triomq.broker.inspect.commands import run

        return run(parsed)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted: not everything has been read", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
