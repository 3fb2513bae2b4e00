"""Certificates for tests: one authority for a whole run, and identities that it issued, as
files.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import attrs

from triomq.remoting.tls.authority import Pair, issue, make_authority
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.security_settings import ClientAuth, ServerTls

LOCAL = ("localhost", "127.0.0.1", "::1")


@functools.cache
def authority(name: str = "Test authority") -> Pair:
    return make_authority(name, 30)


@attrs.frozen
class Files:
    """An identity in a folder: ``ca``, ``certificate``, ``key``."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    def server(
        self, client_auth: ClientAuth = ClientAuth.NONE, password: str | None = None
    ) -> ServerTls:
        trust = self.ca if client_auth is not ClientAuth.NONE else None
        return ServerTls(
            certificate_file=self.certificate,
            key_file=self.key,
            key_password=password,
            client_auth=client_auth,
            client_ca_file=trust,
        )

    def client(self, *, identity: bool = False, **more: bool) -> Tls:
        pair = {"certificate_file": self.certificate, "key_file": self.key} if identity else {}
        return Tls(ca_file=self.ca, **pair, **more)


def write(
    folder: Path,
    name: str = "server",
    hosts: Sequence[str] = LOCAL,
    *,
    server: bool = True,
    issuer: str = "Test authority",
    password: str | None = None,
    days: int = 30,
    now: datetime | None = None,
) -> Files:
    """Issue an identity and write it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder)
    pair = issue(authority(issuer), name, hosts, days, server=server, now=now)
    files.ca.write_bytes(authority(issuer).certificate_pem())
    files.certificate.write_bytes(pair.certificate_pem())
    files.key.write_bytes(pair.key_pem(password))
    return files
