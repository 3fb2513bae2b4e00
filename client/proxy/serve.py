"""Run ``mqproxy`` after its command line is read: configuration, logging, server."""

from __future__ import annotations

import argparse
import importlib.util
import os
from functools import partial

from triomq.client.core.errors import NoNameServer, SettingsError
from triomq.client.proxy.command_line import PROGRAM
from triomq.client.proxy.options import read_options
from triomq.client.proxy.proxy_config import ProxyConfig
from triomq.remoting.core.process import ExitCode, ServiceCall, run_program
from triomq.remoting.core.settings import ConfigError, Loaded


def serve(parsed: argparse.Namespace) -> ExitCode:
    """Run a proxy; return the exit code of the process (docs/operations.md)."""
    return run_program(
        PROGRAM,
        parsed,
        partial(_load, parsed),
        _service,
        exit_codes={
            SettingsError: ExitCode.CONFIGURATION,
            NoNameServer: ExitCode.FAILED,  # a service manager starts it again
        },
    )


def _load(parsed: argparse.Namespace) -> Loaded[ProxyConfig]:
    """Load the configuration. Raises: ConfigError, also if the packages for gRPC are missing."""
    loaded = read_options(parsed, os.environ)
    for name in ("hpack", "google.protobuf"):
        if not _installed(name):
            raise ConfigError(
                "", f"the package {name} is missing", "install it: pip install 'triomq[grpc]'"
            )
    return loaded


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _service(config: ProxyConfig) -> ServiceCall:
    # Optional packages: hpack and protobuf are in an extra.
    from triomq.client.proxy.app import run_proxy

    return partial(run_proxy, config)
