"""The console script ``mqpipeline``: read the command line, then import and run ``commands.py``.

PySpark is imported by the commands that need it, so that ``--help``, ``init`` and the check of a
file start in a moment.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from triomq.client.pipeline.command_line import EXIT_OK, PROGRAM, pipeline_parser
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code of the process."""
    try:
        parsed = pipeline_parser().parse_args(arguments)
        # Not for --help, --version and wrong options: start-up time.
        from triomq.client.pipeline.commands import perform

        return perform(parsed)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
