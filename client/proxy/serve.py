"""Run ``mqproxy`` after its command line is read: configuration, logging, server."""

from __future__ import annotations

import argparse
import os
from functools import partial

from triomq.client.errors import NoNameServer, SettingsError
from triomq.client.proxy.app import run_proxy
from triomq.client.proxy.command_line import PROGRAM
from triomq.client.proxy.options import read_options
from triomq.remoting.process import ExitCode, run_program


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a proxy; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(read_options, parsed, os.environ),
        lambda config: partial(run_proxy, config),
        exit_codes={
            SettingsError: ExitCode.CONFIGURATION,
            NoNameServer: ExitCode.FAILED,  # a service manager starts it again
        },
    )
