"""What ``mqbroker`` does with a parsed command line: configuration -> logging -> serve."""

from __future__ import annotations

import argparse
import os
from functools import partial

from triomq.broker.app import run_broker
from triomq.broker.command_line import PROGRAM
from triomq.broker.exit_codes import EXIT_CODES
from triomq.broker.options import read_options
from triomq.remoting.core.process import ExitCode, run_program


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a broker; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(read_options, parsed, os.environ),
        lambda config: partial(run_broker, config),
        exit_codes=EXIT_CODES,
    )
