"""Make certificates (tlsInit), and check certificates and a server's handshake (tlsCheck)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import trio
from cryptography import x509

from triomq.client.admin.arguments import UsageError, Values
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.findings_table import findings_table
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.client.dial import dial
from triomq.remoting.client.tls_handshake import secure
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.errors import TlsFailed
from triomq.remoting.core.findings import Finding, Level, count_levels, ok, problem
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.certificates import Identity, examine, examine_authorities, names_of
from triomq.remoting.tls.client import DEFAULT_TLS_FILE, TLS_FILE_VARIABLE, Tls, read_tls_file
from triomq.remoting.tls.contexts import client_context
from triomq.remoting.tls.development import initialise

HANDSHAKE_SECONDS = 5
LEVEL_WORDS = {Level.OK: "ok", Level.ADVICE: "warning", Level.PROBLEM: "error"}


def own_hosts() -> list[str]:
    """Return the names and addresses by which clients may know this machine."""
    name = socket.gethostname()
    hosts = {"localhost": None, "127.0.0.1": None, "::1": None, name: None}
    try:
        for *_, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            hosts[str(where[0]).partition("%")[0]] = None
    except OSError:
        return list(hosts)  # the name cannot be resolved
    return list(hosts)


def make_certificates(values: Values) -> Result:
    """Make certificates of a new authority, or of the authority in the folder."""
    folder = Path(values.text("dir")).expanduser().resolve()
    hosts: Sequence[str] = values.value("hosts") or own_hosts()
    days, password = values.number("days"), values.maybe_text("password")
    try:
        made = initialise(folder, hosts, days=days, password=password, mutual=values.flag("mutual"))
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"certificates cannot be written to {folder}: {error}; name another folder with --dir"
        ) from None
    ends = made.valid_until
    document = {
        "dir": str(folder),
        "config": str(made.config),
        "hosts": list(hosts),
        "validUntil": ends.isoformat(),
        "newAuthority": made.new_authority,
    }
    kept, new = "the authority in the folder", "a new authority (ca.pem); keep ca-key.pem secret"
    authority_text = new if made.new_authority else kept
    text = (
        f"Certificates of {authority_text}, in {folder}, valid until {ends:%Y-%m-%d}, for"
        f" {', '.join(hosts)}.\nServers:  mqbroker -D tls.config.file={folder}/tls.properties -D"
        " tls.server.mode=enforcing -D tls.enable=true\nClients: "
        f" Tls.from_file('{folder}/tls.properties'), mqadmin --tls, or export"
        f" {TLS_FILE_VARIABLE}={folder}/tls.properties\nJava:    "
        f" -Dtls.config.file={folder}/tls.properties -Dtls.enable=true"
    )
    return Result(document=document, blocks=[text])


# --- tlsCheck


async def check_certificates(values: Values) -> Result:
    """Check the files of a tls.properties file, and with --connect the handshake with a server."""
    path = _config_path(values)
    try:
        entries = read_tls_file(path)
        tls = Tls.from_file(path)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    findings = list(_examined(entries, values.value("hosts") or ()))
    address = values.maybe_text("connect")
    if address is not None:
        seconds = min(HANDSHAKE_SECONDS, values.number("timeout"))
        findings.append(await _handshake(address, tls, seconds))
    if not findings:
        raise SettingsError(
            f"{path} names no certificate: set tls.server.certPath or tls.client.trustCertPath"
        )
    failed = count_levels(findings)[Level.PROBLEM] > 0
    document = {
        "config": str(path),
        "ok": not failed,
        "findings": [
            {
                "subject": finding.subject,
                "check": finding.check,
                "level": LEVEL_WORDS[finding.level],
                "text": finding.text,
                "fix": finding.fix or None,
            }
            for finding in findings
        ],
    }
    table = findings_table(findings, LEVEL_WORDS)
    return Result(document=document, blocks=[table], bad_news=failed)


def _config_path(values: Values) -> Path:
    given = values.maybe_text("tls") or os.environ.get(TLS_FILE_VARIABLE, "").strip()
    if given:
        return Path(given).expanduser()
    if not DEFAULT_TLS_FILE.exists():
        raise UsageError(
            f"no tls.properties file: name one with --tls or {TLS_FILE_VARIABLE}"
            f" ({DEFAULT_TLS_FILE} does not exist)"
        )
    return DEFAULT_TLS_FILE


def _examined(entries: dict[str, str], hosts: Sequence[str]) -> Iterator[Finding]:
    for side in ("server", "client"):
        certificate, key = entries.get(f"tls.{side}.certPath"), entries.get(f"tls.{side}.keyPath")
        if certificate or key:
            # The authorities that the other side trusts must have issued it.
            trust = entries.get(f"tls.{'client' if side == 'server' else 'server'}.trustCertPath")
            identity = Identity(
                certificate_file=Path(certificate or ""),
                key_file=Path(key or ""),
                key_password=entries.get(f"tls.{side}.keyPassword") or None,
                trust_file=Path(trust) if trust else None,
                server=side == "server",
                host_names=hosts if side == "server" else (),
            )
            # A name that --hosts asks for must be there; at a server's start advice suffices.
            for found in examine(identity):
                missing = found.check == "names" and hosts and found.level is Level.ADVICE
                yield attrs.evolve(found, level=Level.PROBLEM) if missing else found
    for side in ("server", "client"):
        trust = entries.get(f"tls.{side}.trustCertPath")
        if trust:
            yield from examine_authorities(f"{side} trust", Path(trust))


async def _handshake(address: str, tls: Tls, seconds: int) -> Finding:
    failed = partial(problem, "server", "connect")
    try:
        host, port = parse_address(address)
        context = client_context(tls)
        with trio.fail_after(seconds):
            sock = await dial(host, port)
            stream = await secure(sock, context, host)
            sock.close()
    except trio.TooSlowError:
        silent = f"{address} did not answer within {seconds} s"
        return failed(silent, "check the address and the network")
    except OSError as error:
        refused = f"{address}: {error.strerror or error}"
        return failed(refused, "check the address, and that the server runs")
    except TlsFailed as error:
        return failed(f"{address}: {error.reason}", error.fix)
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from None
    shown = stream.peer_certificate()
    text = f"{address} speaks {stream.version}"
    if shown is not None:
        certificate = x509.load_der_x509_certificate(shown)
        text += (
            f" as {', '.join(names_of(certificate)) or certificate.subject.rfc4514_string()}, valid"
            f" until {certificate.not_valid_after_utc:%Y-%m-%d}"
        )
        if certificate.not_valid_after_utc < datetime.now(UTC):
            return failed(text, "make a new certificate")
    return ok("server", "connect", text)
