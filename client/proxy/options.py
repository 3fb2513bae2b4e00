"""Make a checked ProxyConfig from the command line of ``mqproxy`` and the other sources.

Later sources win: environment (``NAMESRV_ADDR``, only the default of ``namesrvAddr``), the
properties files (``-c``), Java's JSON file (``-pc``), options.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from triomq.client.proxy.proxy_config import PROXY_KEYS, ProxyConfig
from triomq.remoting.access.access_settings import check_access
from triomq.remoting.core.command_line import defined_entries, file_source
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError, Loaded, Source, load


def read_options(parsed: argparse.Namespace, environment: Mapping[str, str]) -> Loaded[ProxyConfig]:
    """Load what the options of ``proxy_parser()`` and the environment say. Raises: ConfigError."""
    sources = []
    if environment.get("NAMESRV_ADDR", "").strip():
        entry = Entry("namesrvAddr", environment["NAMESRV_ADDR"])
        sources.append(Source("environment NAMESRV_ADDR", (entry,)))
    sources += [file_source(file) for file in parsed.config]
    if parsed.proxyConfigPath is not None:
        sources.append(json_source(parsed.proxyConfigPath))
    sources.append(Source("option -D", defined_entries(parsed.define)))
    if parsed.namesrvAddr is not None:
        sources.append(Source("option -n", (Entry("namesrvAddr", parsed.namesrvAddr),)))
    if parsed.proxyMode is not None:
        sources.append(Source("option -pm", (Entry("proxyMode", parsed.proxyMode),)))
    loaded = load(ProxyConfig, sources, PROXY_KEYS)
    check_access(loaded.config.access, loaded.origins)
    return loaded


def json_source(path: Path) -> Source:
    """Read a file like Java's ``rmq-proxy.json``: one object of texts, numbers and truth values.

    Raises: ConfigError.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            "option -pc", f"cannot read {path}: {reason}", "name an existing JSON file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(path.name, f"is not JSON ({error})", "correct it") from None
    if not isinstance(table, dict):
        raise ConfigError(path.name, "is not a JSON object", 'write {"key": "value", …}')
    entries = []
    for key, value in table.items():
        if isinstance(value, bool):
            value = str(value).lower()
        elif not isinstance(value, str | int):
            raise ConfigError(
                path.name, f"{key} is {json.dumps(value)[:60]}", "give it a text or a number"
            )
        entries.append(Entry(key, str(value)))
    return Source.of_file(path, entries)
