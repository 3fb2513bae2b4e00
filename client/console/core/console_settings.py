"""What a console is started with, checked once."""

from __future__ import annotations

import argparse
from pathlib import Path

import attrs

from triomq.client.console.core.command_line import DEFAULT_HOST, DEFAULT_PORT
from triomq.remoting.client.access import read_credentials
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 1.0, 3600.0


@attrs.frozen(kw_only=True)
class ConsoleSettings:
    """The settings of one console."""

    namesrv: str | None = None
    """None: the environment variable NAMESRV_ADDR"""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    users_file: Path | None = None
    """None: users of the cluster's access control log in"""
    allow_changes: bool = False
    audit_file: Path | None = None
    tls: Tls | None = None
    credentials: Credentials | None = None
    certificate: Path | None = None
    key: Path | None = None
    secure_cookies: bool = False
    poll_seconds: float = 5.0


def read_settings_of(parsed: argparse.Namespace) -> ConsoleSettings:
    """Check what the options of ``console_parser()`` say. Raises: ConfigError."""
    if (parsed.users is None) != parsed.cluster_login:
        raise ConfigError(
            "option --users",
            "nobody can log in" if parsed.users is None else "--cluster-login is given too",
            "give one of --users FILE (made by `mqconsole user add NAME --users FILE`) and"
            " --cluster-login",
        )
    if parsed.allow_changes and parsed.audit is None:
        raise ConfigError(
            "option --allow-changes",
            "changes need an audit file",
            "add --audit FILE, to which every change is written",
        )
    if (parsed.certificate is None) != (parsed.key is None):
        raise ConfigError(
            "option --certificate", "certificate and key belong together", "give both, or none"
        )
    for option in ("users", "certificate", "key"):
        path = getattr(parsed, option)
        if path is not None and not path.is_file():
            raise ConfigError(f"option --{option}", f"{path} does not exist", "name a file")
    if not POLL_SECONDS_MIN <= parsed.poll <= POLL_SECONDS_MAX:
        raise ConfigError(
            "option --poll",
            f"{parsed.poll} is out of range",
            f"give {POLL_SECONDS_MIN:.0f} to {POLL_SECONDS_MAX:.0f} seconds",
        )
    if not 0 <= parsed.port <= 65_535:
        raise ConfigError("option --port", f"{parsed.port} is not a port", "give 0 to 65535")
    return ConsoleSettings(
        namesrv=parsed.namesrvAddr,
        host=parsed.host,
        port=parsed.port,
        users_file=parsed.users,
        allow_changes=parsed.allow_changes,
        audit_file=parsed.audit,
        tls=None if parsed.tls is None else Tls.from_file(parsed.tls),
        credentials=None if parsed.credentials is None else read_credentials(parsed.credentials),
        certificate=parsed.certificate,
        key=parsed.key,
        secure_cookies=parsed.certificate is not None or parsed.behind_https,
        poll_seconds=parsed.poll,
    )
