"""The console script ``mqconsole``: read the command line, then import and run what it asks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triomq.client.console.core.command_line import console_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console or change its users file; return the exit code of the process."""
    try:
        parsed = console_parser().parse_args(arguments)
        if parsed.command == "user":
            # Not for --help and --version: start-up time.
            from triomq.client.console.core.user_commands import run_user_command

            return run_user_command(parsed)
        # Likewise, and the packages of the extra may be missing.
        from triomq.client.console.serve import serve

        return serve(parsed)
    except KeyboardInterrupt:  # before the server runs; later Ctrl-C is an orderly stop
        return 0


if __name__ == "__main__":
    sys.exit(main())
