"""The console script `mqnamesrv`: options and file -> configuration -> serve."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial

import attrs

from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.namesrv.errors import EXIT_CODES
from triomq.remoting.command_line import add_shared_options, defined_entries, file_source, log_settings
from triomq.remoting.process import LogSettings, report_fatal, run_service, set_up_logging
from triomq.remoting.properties import Entry, format_properties
from triomq.remoting.saved_settings import overruled, read_saved
from triomq.remoting.settings import ConfigError, Loaded, Source, load, render

PROGRAM = "mqnamesrv"
_log = logging.getLogger(__name__)


@attrs.frozen
class NamesrvOptions:
    """What the command line of one run asks for."""

    loaded: Loaded[NamesrvConfig]
    log: LogSettings
    print_config: bool


def parse_options(arguments: Sequence[str]) -> NamesrvOptions:
    """Read file, what was changed at run time, and options, the last winning; raise ConfigError, or SystemExit(2) for an unknown option."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="TrioMQ's name server", allow_abbrev=False)
    parser.add_argument("-p", "--port", metavar="PORT", help="port to listen on (default 9876; Java's -p is --print-config here)")
    parser.add_argument("--print-config", "--printConfigItem", action="store_true", help="print the effective configuration and exit")
    add_shared_options(parser)
    parsed = parser.parse_args(arguments)
    sources = [file_source(parsed.config)] if parsed.config is not None else []
    given = [Source("option -D", defined_entries(parsed.define))]
    if parsed.port is not None:
        given.append(Source("option -p", (Entry("listenPort", parsed.port),)))
    saved = read_saved(load(NamesrvConfig, [*sources, *given], NAMESRV_KEYS).config.saved_settings_path())
    loaded = load(NamesrvConfig, [*sources, saved, *given], NAMESRV_KEYS)
    loaded = attrs.evolve(loaded, warnings=(*loaded.warnings, *overruled(saved, sources, loaded.origins)))
    return NamesrvOptions(loaded, log_settings(parsed), parsed.print_config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server; return the exit code of the process (docs/operations.md)."""
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
    return run_service(PROGRAM, partial(run_namesrv, options.loaded.config), exit_codes=EXIT_CODES)


if __name__ == "__main__":
    sys.exit(main())
