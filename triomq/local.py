"""``mqlocal``: a whole cluster on this machine, as child processes, with one command.

``local_processes.py``, imported only to start a cluster, does all but reading the command line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from triomq import __version__
from triomq.client.admin.arguments import UsageError
from triomq.local_options import EXIT_OK, EXIT_USAGE, help_text, read_options
from triomq.remoting.core.interrupt import interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``mqlocal``; return the exit code."""
    begun = time.monotonic()
    try:
        options, settings = read_options(sys.argv[1:] if arguments is None else arguments)
        if options.flag("help"):
            print(help_text())
            return EXIT_OK
        if options.flag("version"):
            print(f"mqlocal (TrioMQ {__version__})")
            return EXIT_OK
        from triomq.local_processes import run_cluster  # the answers above do not need it

        return run_cluster(options, settings, begun)
    except UsageError as error:
        print(f"mqlocal: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BaseException as error:
        if interrupted(error):  # before signals are handled: nothing was started
            return EXIT_OK
        raise


if __name__ == "__main__":
    sys.exit(main())
