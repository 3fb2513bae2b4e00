"""Write development certificates (authority, server, client) and their ``tls.properties``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import attrs

from triomq.remoting.core.atomic_file import swap_file
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.tls.authority import Pair, issue, load_authority, make_authority

AUTHORITY_DAYS = 3650


@attrs.frozen(kw_only=True)
class Development:
    """The result: ``config`` is the ``tls.properties`` file."""

    config: Path
    valid_until: datetime
    new_authority: bool


def initialise(
    folder: Path,
    hosts: Sequence[str],
    *,
    days: int = 365,
    password: str | None = None,
    mutual: bool = False,
) -> Development:
    """Write all files; an existing authority issues the new certificates.

    Raises: ConfigError, OSError, ValueError for an invalid host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, known = _authority(folder)
    server = issue(authority, hosts[0], hosts, days, server=True)
    client = issue(authority, "client", (), days, server=False)
    for name, pair in (("server", server), ("client", client)):
        swap_file(folder / f"{name}-key.pem", pair.key_pem(password), private=True)
        swap_file(folder / f"{name}.pem", pair.certificate_pem())
    config = folder / "tls.properties"
    swap_file(
        config, _properties(folder, password, mutual=mutual).encode(), private=password is not None
    )
    return Development(
        config=config, valid_until=server.certificate.not_valid_after_utc, new_authority=not known
    )


def _authority(folder: Path) -> tuple[Pair, bool]:
    certificate, key = folder / "ca.pem", folder / "ca-key.pem"
    if certificate.exists() or key.exists():
        return load_authority(certificate, key), True
    made = make_authority("TrioMQ development authority", AUTHORITY_DAYS)
    swap_file(key, made.key_pem(), private=True)
    swap_file(certificate, made.certificate_pem())
    return made, False


def _properties(folder: Path, password: str | None, *, mutual: bool) -> str:
    lines = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(folder / "server.pem"),
        "tls.server.keyPath": str(folder / "server-key.pem"),
        "tls.server.keyPassword": password,
        "tls.server.need.client.auth": "require" if mutual else "none",
        "tls.server.authClient": "true" if mutual else "false",
        "tls.server.trustCertPath": str(folder / "ca.pem"),
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(folder / "ca.pem"),
        "tls.client.certPath": str(folder / "client.pem"),
        "tls.client.keyPath": str(folder / "client-key.pem"),
        "tls.client.keyPassword": password,
    }
    head = (
        "# Written by `mqadmin tls init`. Java reads tls.server.mode and tls.enable from its"
        " command line only.\n"
    )
    return head + format_properties({key: text for key, text in lines.items() if text is not None})
