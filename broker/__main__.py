"""The console script `mqbroker`: options, environment and file -> configuration -> serve."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial

from triomq.broker.app import run_broker
from triomq.broker.errors import EXIT_CODES
from triomq.broker.options import parse_options
from triomq.remoting.process import report_fatal, run_service, set_up_logging
from triomq.remoting.properties import format_properties
from triomq.remoting.settings import ConfigError, render

PROGRAM = "mqbroker"
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker; return the exit code of the process (docs/operations.md)."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments)
        if options.print_config:
            print(format_properties(render(options.loaded.config)), end="")
            return 0
        set_up_logging(PROGRAM, options.log)
    except ConfigError as error:
        return report_fatal(PROGRAM, error)
    for warning in options.loaded.warnings:
        _log.warning("%s", warning)
    return run_service(PROGRAM, partial(run_broker, options.loaded.config), exit_codes=EXIT_CODES)


if __name__ == "__main__":
    sys.exit(main())
