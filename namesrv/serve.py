"""Run ``mqnamesrv`` after its command line is read: configuration, logging, server."""

from __future__ import annotations

import argparse
from functools import partial

from triomq.namesrv.app import run_namesrv
from triomq.namesrv.command_line import PROGRAM
from triomq.namesrv.errors import EXIT_CODES
from triomq.namesrv.options import read_options
from triomq.remoting.core.process import ExitCode, run_program


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a name server; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(read_options, parsed),
        lambda config: partial(run_namesrv, config),
        exit_codes=EXIT_CODES,
    )
