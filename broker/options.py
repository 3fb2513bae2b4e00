"""From the command line of `mqbroker` to a checked BrokerConfig: environment, file, what was changed at run time, options, later ones winning.

The order is Java's: ``NAMESRV_ADDR`` is only the default of ``namesrvAddr``, the file comes next, ``-n`` wins.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from triomq.broker.config import BrokerConfig, check_role
from triomq.broker.java_keys import BROKER_KEYS
from triomq.remoting.command_line import add_shared_options, defined_entries, file_source, log_settings
from triomq.remoting.process import LogSettings
from triomq.remoting.properties import Entry
from triomq.remoting.saved_settings import overruled, read_saved
from triomq.remoting.settings import Loaded, Source, load


@attrs.frozen
class BrokerOptions:
    """What the command line of one run asks for."""

    loaded: Loaded[BrokerConfig]
    log: LogSettings
    print_config: bool


def parse_options(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> BrokerOptions:
    """Read options, environment and file; raise ConfigError, or SystemExit(2) for an unknown option."""
    parser = argparse.ArgumentParser(prog="mqbroker", description="TrioMQ's broker", allow_abbrev=False)
    parser.add_argument("-n", "--namesrvAddr", metavar="HOST:PORT;...", help="name servers to register with")
    parser.add_argument("-p", "--print-config", "--printConfigItem", action="store_true", help="print the effective configuration and exit")
    add_shared_options(parser)
    parsed = parser.parse_args(arguments)
    given = [Entry("namesrvAddr", parsed.namesrvAddr)] if parsed.namesrvAddr is not None else []
    loaded = load_broker_config(
        parsed.config,
        environment=os.environ if environment is None else environment,
        definitions=defined_entries(parsed.define),
        options=given,
    )
    return BrokerOptions(loaded, log_settings(parsed), parsed.print_config)


def load_broker_config(
    file: Path | None,
    *,
    environment: Mapping[str, str],
    definitions: Sequence[Entry] = (),
    options: Sequence[Entry] = (),
) -> Loaded[BrokerConfig]:
    """Fill a BrokerConfig from its sources and check what concerns several settings; raise ConfigError."""
    sources = []
    if environment.get("NAMESRV_ADDR", "").strip():
        sources.append(Source("environment NAMESRV_ADDR", (Entry("namesrvAddr", environment["NAMESRV_ADDR"]),)))
    if file is not None:
        sources.append(file_source(file))
    given = [Source("option -D", tuple(definitions)), Source("option -n", tuple(options))]
    # Where the store lies must be known before what was saved there can be read.
    saved = read_saved(load(BrokerConfig, [*sources, *given], BROKER_KEYS).config.saved_settings_path())
    loaded = load(BrokerConfig, [*sources, saved, *given], BROKER_KEYS)
    loaded = attrs.evolve(loaded, warnings=(*loaded.warnings, *overruled(saved, sources, loaded.origins)))
    check_role(loaded.config, loaded.origins)
    return loaded
