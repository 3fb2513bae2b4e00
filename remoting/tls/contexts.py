"""From settings to contexts of the `ssl` module: TLS 1.2 at least, ALPN offered and never required, everything checked before use."""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
from pathlib import Path

from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.settings import ClientAuth, ServerTls

_log = logging.getLogger(__name__)

ALPN = ["rocketmq"]
"""no peer of ours needs it; a proxy in front may look at it"""


def server_context(settings: ServerTls) -> ssl.SSLContext:
    """The context of a listening server. Raises ConfigError if its files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    # Connections live for hours: resumption would only keep keys of the past alive.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    if settings.certificate_file is None or settings.key_file is None:
        _load_test_identity(context)
    else:
        _load_identity(context, settings.certificate_file, settings.key_file, settings.key_password)
    if settings.client_auth is not ClientAuth.NONE:
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRE else ssl.CERT_OPTIONAL
        _load_authorities(context, settings.client_ca_file, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """The context of a client. Raises ConfigError if its files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = tls.verify and tls.check_host_name
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.verify:
        _load_authorities(context, tls.ca_file, ssl.Purpose.SERVER_AUTH)
    if tls.certificate_file is not None and tls.key_file is not None:
        _load_identity(context, tls.certificate_file, tls.key_file, tls.key_password)
    return context


_client_contexts: dict[Tls, tuple[tuple[int, ...], ssl.SSLContext]] = {}


def current_client_context(tls: Tls) -> ssl.SSLContext:
    """The context of a client, made again when one of its files has changed. ConfigError if there never was a good one."""
    stamp = tuple(_stamp(path) for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path is not None)
    known = _client_contexts.get(tls)
    if known is not None and known[0] == stamp:
        return known[1]
    try:
        context = client_context(tls)
    except ConfigError as error:
        if known is None:
            raise
        _log.error("the changed TLS files are not used, what was loaded before stays in force: %s", error)
        context = known[1]
    _client_contexts[tls] = stamp, context
    return context


def _stamp(path: Path) -> int:
    try:
        facts = path.stat()
    except OSError:
        return 0
    return hash((facts.st_mtime_ns, facts.st_size, facts.st_ino))


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN)


def _load_identity(context: ssl.SSLContext, certificate: Path, key: Path, password: str | None) -> None:
    for path in (certificate, key):
        _check_readable(path)
    try:
        # Never None: OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                str(key), f"is not the private key of {certificate}", "name the two files that were made together"
            ) from None
        problem, fix = (
            f"certificate {certificate} and key cannot be loaded ({_reason(error)})",
            "check that both are PEM files, and the key's password",
        )
        raise ConfigError(str(key), problem, fix) from None
    except OSError as error:
        raise ConfigError(
            str(key),
            f"certificate {certificate} and key cannot be loaded ({error})",
            "name PEM files that this user may read",
        ) from None


def _load_authorities(context: ssl.SSLContext, path: Path | None, purpose: ssl.Purpose) -> None:
    if path is None:
        context.load_default_certs(purpose)
        return
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        reason = _reason(error) if isinstance(error, ssl.SSLError) else str(error)
        raise ConfigError(
            str(path), f"holds no certificate authority ({reason})", "name a PEM file with -----BEGIN CERTIFICATE-----"
        ) from None


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read ({reason})", "name a PEM file that this user may read") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _load_test_identity(context: ssl.SSLContext) -> None:
    """Java's test mode: a certificate that nobody can verify, made for this process."""
    from triomq.remoting.tls.authority import issue, make_authority  # cryptography, for the test mode only

    pair = issue(
        make_authority("TrioMQ test mode", 365), "localhost", ["localhost", "127.0.0.1", "::1"], 365, server=True
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triomq-tls-")))
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        certificate.write_bytes(pair.certificate_pem())
        key.write_bytes(pair.key_pem())
        _load_identity(context, certificate, key, None)
