"""Run ``mqnamesrv`` or ``mqcontroller`` after its command line is read: configuration, server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from triomq.namesrv.app import run_namesrv
from triomq.namesrv.command_line import CONTROLLER_PROGRAM, PROGRAM
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.namesrv.kv import KvFileError
from triomq.remoting.access.access_settings import check_admin_addresses
from triomq.remoting.core.command_line import defined_entries, file_source
from triomq.remoting.core.process import ExitCode, ExitCodes, run_program
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.saved_settings import load_with_saved
from triomq.remoting.core.settings import Loaded, Source
from triomq.remoting.tls.security_settings import ProxyMode

EXIT_CODES: ExitCodes = {KvFileError: ExitCode.STORE_DAMAGED}


def read_options(parsed: argparse.Namespace) -> Loaded[NamesrvConfig]:
    """Load the files, the settings that requests changed, and the options; later sources win.

    ``parsed`` comes from ``namesrv_parser()``.

    Raises: ConfigError.
    """
    sources = [file_source(file) for file in parsed.config]
    given = [Source("option -D", defined_entries(parsed.define))]
    if parsed.port is not None:
        given.append(Source("option -p", (Entry("listenPort", parsed.port),)))
    return _checked(sources, given)


def read_controller_options(parsed: argparse.Namespace) -> Loaded[NamesrvConfig]:
    """The same for a controller alone. ``parsed`` comes from ``controller_parser()``.

    Raises: ConfigError.
    """
    folder = Path.home() / CONTROLLER_PROGRAM
    own = Source(
        CONTROLLER_PROGRAM,
        (
            Entry("enableControllerInNamesrv", "true"),
            # Beside it are the settings that requests changed; a name server has its own.
            Entry("kvConfigPath", str(folder / "kvConfig.json")),
        ),
    )
    sources = [own, *(file_source(file) for file in parsed.config)]
    given = [
        Source("option -D", defined_entries(parsed.define)),
        Source(CONTROLLER_PROGRAM, own.entries[:1]),
    ]
    return _checked(sources, given)


def _checked(sources: Sequence[Source], given: Sequence[Source]) -> Loaded[NamesrvConfig]:
    loaded = load_with_saved(NamesrvConfig, sources, given, NAMESRV_KEYS)
    claimed = loaded.config.security.proxy_protocol is ProxyMode.OPTIONAL
    check_admin_addresses(loaded.config.access, loaded.origins, claimed=claimed)
    return loaded


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a name server; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(read_options, parsed),
        lambda config: partial(run_namesrv, config),
        exit_codes=EXIT_CODES,
    )


def serve_controller(parsed: argparse.Namespace) -> ExitCode:
    """Run a controller without a name server; return the exit code of the process."""
    return run_program(
        CONTROLLER_PROGRAM,
        parsed,
        partial(read_controller_options, parsed),
        lambda config: partial(run_namesrv, config, routes_too=False),
        exit_codes=EXIT_CODES,
    )
