"""What ``mqbroker`` does with a parsed command line: configuration -> logging -> serve."""

from __future__ import annotations

import argparse
import os
from functools import partial

from triomq.broker.app import run_broker
from triomq.broker.command_line import PROGRAM
from triomq.broker.options import read_options
from triomq.broker.roles.second_master import SecondMaster
from triomq.broker.services.persisted import DamagedTable
from triomq.broker.store.core.errors import (
    FullAtStart,
    NoFilesLeft,
    NoStorePath,
    StoreDamaged,
    StoreDenied,
    StoreLocked,
)
from triomq.remoting.core.process import ExitCode, ExitCodes, run_program

EXIT_CODES: ExitCodes = {
    StoreLocked: ExitCode.STORE_LOCKED,
    StoreDamaged: ExitCode.STORE_DAMAGED,
    DamagedTable: ExitCode.STORE_DAMAGED,
    StoreDenied: ExitCode.CONFIGURATION,
    NoStorePath: ExitCode.CONFIGURATION,
    FullAtStart: ExitCode.FAILED,  # a service manager starts it again
    NoFilesLeft: ExitCode.FAILED,
    SecondMaster: ExitCode.FAILED,
}


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a broker; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(read_options, parsed, os.environ),
        lambda config: partial(run_broker, config),
        exit_codes=EXIT_CODES,
    )
