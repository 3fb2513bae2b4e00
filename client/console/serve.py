"""Run ``mqconsole`` after its command line is read: check the options, then run the console."""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial

from triomq.client.console.core.audit import AuditLog
from triomq.client.console.core.command_line import PROGRAM
from triomq.client.console.core.console_settings import read_settings_of
from triomq.client.core.errors import NoNameServer, SettingsError
from triomq.remoting.core.process import ExitCode, report_fatal, run_service, set_up_logging
from triomq.remoting.core.settings import ConfigError

PACKAGES = ("starlette", "hypercorn", "jinja2")


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a console; return the exit code of the process (docs/operations.md)."""
    try:
        settings = read_settings_of(parsed)
        for name in PACKAGES:
            if importlib.util.find_spec(name) is None:
                raise ConfigError(
                    "",
                    f"the package {name} is missing",
                    "install it: pip install 'triomq[console]'",
                )
        AuditLog(settings.audit_file).check()
        set_up_logging(PROGRAM, parsed.log_dir, parsed.log_level, parsed.log_format)
    except ConfigError as error:
        return report_fatal(PROGRAM, error)
    # The packages of the extra.
    from triomq.client.console.run import run_console

    return run_service(
        PROGRAM,
        partial(run_console, settings),
        exit_codes={SettingsError: ExitCode.CONFIGURATION, NoNameServer: ExitCode.FAILED},
    )
