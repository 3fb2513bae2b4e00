"""Run ``triomq run`` after its command line is read: one process, or the parent of several."""

from __future__ import annotations

import argparse
from pathlib import Path

import trio

from triomq.client.core.errors import NoNameServer, SettingsError
from triomq.client.runner.command_line import PROGRAM, RunOptions, read_options
from triomq.client.runner.source_changes import SourceChanges
from triomq.client.runner.supervisor import Supervisor, child_command
from triomq.remoting.core.process import ExitCode, report_fatal, set_up_logging

EXIT_CODES = {
    SettingsError: ExitCode.CONFIGURATION,
    NoNameServer: ExitCode.FAILED,  # a supervisor starts it again
}


def serve(parsed: argparse.Namespace) -> int:
    """Do it; return the exit code of the process."""
    try:
        options = read_options(parsed)
        name = PROGRAM if parsed.child is None else f"{PROGRAM}-{parsed.child}"
        set_up_logging(name, parsed.log_dir, parsed.log_level, parsed.log_format)
        if options.reload or options.processes > 1:
            return _supervise(parsed, options)
        # Not for the parent of several processes: start-up time.
        from triomq.runner.one_process import run_targets

        run_targets(options)
    except Exception as error:  # the outermost frame: every error becomes an exit code
        return report_fatal(PROGRAM, error, EXIT_CODES)
    return ExitCode.OK


def _supervise(parsed: argparse.Namespace, options: RunOptions) -> int:
    changed = SourceChanges(Path.cwd()).wait if options.reload else None
    numbers = range(1, options.processes + 1)
    supervisor = Supervisor(
        [child_command(_arguments(parsed, options, number)) for number in numbers], changed
    )
    return trio.run(supervisor.run)


def _arguments(parsed: argparse.Namespace, options: RunOptions, number: int) -> list[str]:
    """Return the arguments of one child."""
    port = options.port + number - 1 if options.port else 0
    logs = ["--log-level", parsed.log_level, "--log-format", parsed.log_format]
    if parsed.log_dir is not None:
        logs += ["--log-dir", str(parsed.log_dir)]
    one = ["--processes", "1", "--port", str(port), "--host", options.host]
    return ["run", *options.targets, *one, "--child", str(number), *logs]
