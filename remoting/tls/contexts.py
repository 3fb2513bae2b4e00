"""Make contexts of ``ssl`` from checked files: TLS 1.2 at least, ALPN offered, never required."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from triomq.remoting.core.open_files import explained
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.client import Tls, read_pem
from triomq.remoting.tls.reload import ReloadingContext
from triomq.remoting.tls.security_settings import ClientAuth, ServerTls

ALPN = ("rocketmq",)
"""peers do not need it; a proxy in front of a server may"""


def server_context(settings: ServerTls, alpn: Sequence[str] = ALPN) -> ssl.SSLContext:
    """Return the context of a listening server. ``alpn``: the protocols that it offers.

    Raises: ConfigError if its files cannot be used, OSError when too many files are open.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, alpn)
    # Connections live for hours: resumption would only keep old keys alive.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    if settings.certificate_file is None or settings.key_file is None:
        _load_test_identity(context)
    else:
        _load_identity(context, settings.certificate_file, settings.key_file, settings.key_password)
    if settings.client_auth is not ClientAuth.NONE:
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRE else ssl.CERT_OPTIONAL
        )
        _load_authorities(context, settings.client_ca_file, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client.

    Raises: ConfigError if its files cannot be used, OSError when too many files are open.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = tls.verify and tls.check_host_name
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.verify:
        _load_authorities(context, tls.ca_file, ssl.Purpose.SERVER_AUTH)
    if tls.certificate_file is not None and tls.key_file is not None:
        _load_identity(context, tls.certificate_file, tls.key_file, tls.key_password)
    return context


_client_contexts: dict[Tls, ReloadingContext] = {}


def current_client_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client, made again when one of its files has changed.

    Raises: ConfigError if there never was a usable context.
    """
    known = _client_contexts.get(tls)
    if known is not None:
        known.reload(settled=False)
        return known.context
    files = [path for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path is not None]
    try:
        made = ReloadingContext(files, partial(client_context, tls))
    except OSError as error:
        raise ConfigError(
            "TLS",
            f"its files cannot be read ({explained(error)})",
            "try again when descriptors are free",
        ) from None
    _client_contexts[tls] = made
    return made.context


def _harden(context: ssl.SSLContext, alpn: Sequence[str] = ALPN) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(alpn))


def _load_identity(
    context: ssl.SSLContext, certificate: Path, key: Path, password: str | None
) -> None:
    for path in (certificate, key):
        read_pem(path)  # for a message that names the file
    try:
        # Never None: OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                str(key),
                f"is not the private key of {certificate}",
                "name the two files that were made together",
            ) from None
        raise ConfigError(
            str(key),
            f"certificate {certificate} and key cannot be loaded ({_reason(error)})",
            "check that both are PEM files, and the key's password",
        ) from None


def _load_authorities(context: ssl.SSLContext, path: Path | None, purpose: ssl.Purpose) -> None:
    if path is None:
        context.load_default_certs(purpose)
        return
    read_pem(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            str(path),
            f"holds no certificate authority ({_reason(error)})",
            "name a PEM file with -----BEGIN CERTIFICATE-----",
        ) from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _load_test_identity(context: ssl.SSLContext) -> None:
    """Load a certificate made for this process, which clients cannot verify: Java's test mode."""
    # cryptography, for the test mode only
    from triomq.remoting.tls.authority import issue, make_authority

    pair = issue(
        make_authority("TrioMQ test mode", 365),
        "localhost",
        ["localhost", "127.0.0.1", "::1"],
        365,
        server=True,
    )
    with tempfile.TemporaryDirectory(prefix="triomq-tls-") as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_bytes(pair.certificate_pem())
        key.write_bytes(pair.key_pem())
        _load_identity(context, certificate, key, None)
