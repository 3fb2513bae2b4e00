"""Commands about certificates: tlsInit, tlsCheck. Neither needs a cluster; tlsCheck can shake hands with a server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import trio
from cryptography import x509

from triomq.client.admin.arguments import Option, UsageError, Values, filled, whole
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.errors import SettingsError
from triomq.remoting.address import parse_address
from triomq.remoting.client.dial import dial
from triomq.remoting.client.secure import secure
from triomq.remoting.errors import TlsFailed
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.certificates import (
    Finding,
    Identity,
    Level,
    examine,
    examine_authorities,
    names_of,
)
from triomq.remoting.tls.client import DEFAULT_TLS_FILE, TLS_FILE_VARIABLE, Tls, read_tls_file
from triomq.remoting.tls.contexts import client_context
from triomq.remoting.tls.development import initialise

HANDSHAKE_SECONDS = 5


def _hosts(text: str) -> list[str]:
    hosts = [host.strip().strip("[]") for host in text.replace(";", ",").split(",") if host.strip()]
    if not hosts:
        raise ValueError("name at least one host")
    return hosts


def own_hosts() -> list[str]:
    """Return the names and addresses by which clients may know this machine."""
    name = socket.gethostname()
    hosts = {"localhost": None, "127.0.0.1": None, "::1": None, name: None}
    try:
        for *_, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            hosts[str(where[0]).partition("%")[0]] = None
    except OSError:
        return list(hosts)  # a machine that cannot look itself up is known by its name alone
    return list(hosts)


async def tls_init(values: Values) -> Result:
    """Make certificates, or new ones of an authority that is there already."""
    return _initialised(values)


def _initialised(values: Values) -> Result:
    folder = Path(values.text("dir")).expanduser().resolve()
    hosts: Sequence[str] = values.value("hosts") or own_hosts()
    days, password, mutual = values.number("days"), values.maybe_text("password"), values.flag("mutual")
    try:
        made = initialise(folder, hosts, days=days, password=password, mutual=mutual)
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
    authority_text = (
        "a new authority (ca.pem); keep ca-key.pem secret"
        if made.new_authority
        else "the authority that was there already"
    )
    text = (
        f"Certificates of {authority_text}, in {folder}, valid until {ends:%Y-%m-%d}, for {', '.join(hosts)}.\n"
        f"Servers:  mqbroker -D tls.config.file={folder}/tls.properties -D tls.server.mode=enforcing -D tls.enable=true\n"
        f"Clients:  Tls.from_file('{folder}/tls.properties'), mqadmin --tls, or export {TLS_FILE_VARIABLE}={folder}/tls.properties\n"
        f"Java:     -Dtls.config.file={folder}/tls.properties -Dtls.enable=true"
    )
    return Result(
        document=document,
        blocks=[text],
    )


# --- tlsCheck --------------------------------------------------------------------------------------------------------------------------


async def tls_check(values: Values) -> Result:
    """Look at the files of a tls.properties file, and shake hands with a server if one is named."""
    path = _config_path(values)
    try:
        entries = read_tls_file(path)
        tls = Tls.from_file(path)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    findings = [
        (subject, finding) for subject, found in _examined(entries, values.value("hosts") or ()) for finding in found
    ]
    target = values.maybe_text("connect")
    if target is not None:
        findings.append(("server", await _handshake(target, tls)))
    if not findings:
        raise SettingsError(f"{path} names no certificate: set tls.server.certPath or tls.client.trustCertPath")
    rows = [[subject, finding.check, finding.level.value, _sentence(finding)] for subject, finding in findings]
    document = {
        "config": str(path),
        "ok": all(finding.level is not Level.ERROR for _, finding in findings),
        "findings": [
            {
                "subject": subject,
                "check": finding.check,
                "level": finding.level.value,
                "text": finding.text,
                "fix": finding.fix or None,
            }
            for subject, finding in findings
        ],
    }
    columns = (Column("Subject"), Column("Check"), Column("Level"), Column("Finding"))
    return Result(document=document, blocks=[Table(columns, rows)], bad_news=not document["ok"])


def _config_path(values: Values) -> Path:
    given = values.maybe_text("tls") or os.environ.get(TLS_FILE_VARIABLE, "").strip()
    if given:
        return Path(given).expanduser()
    if not DEFAULT_TLS_FILE.exists():
        raise UsageError(
            f"no tls.properties file: name one with --tls or {TLS_FILE_VARIABLE} ({DEFAULT_TLS_FILE} does not exist)"
        )
    return DEFAULT_TLS_FILE


def _sentence(finding: Finding) -> str:
    return f"{finding.text}; {finding.fix}" if finding.fix else finding.text


def _examined(entries: dict[str, str], hosts: Sequence[str]) -> Iterator[tuple[str, list[Finding]]]:
    for side in ("server", "client"):
        certificate, key = entries.get(f"tls.{side}.certPath"), entries.get(f"tls.{side}.keyPath")
        if certificate or key:
            # The other side's authorities are those that must have issued it.
            trust = entries.get(f"tls.{'client' if side == 'server' else 'server'}.trustCertPath")
            identity = Identity(
                certificate_file=Path(certificate or ""),
                key_file=Path(key or ""),
                key_password=entries.get(f"tls.{side}.keyPassword") or None,
                trust_file=Path(trust) if trust else None,
                server=side == "server",
                host_names=hosts if side == "server" else (),
            )
            # Whoever asks for a name wants to know that it is there; at a server's start a warning will do.
            yield (
                side,
                [
                    attrs.evolve(found, level=Level.ERROR) if found.check == "names" and hosts and found.fix else found
                    for found in examine(identity)
                ],
            )
    for side in ("server", "client"):
        trust = entries.get(f"tls.{side}.trustCertPath")
        if trust:
            yield f"{side} trust", examine_authorities(Path(trust))


async def _handshake(address: str, tls: Tls) -> Finding:
    try:
        host, port = parse_address(address)
        context = client_context(tls)
        with trio.fail_after(HANDSHAKE_SECONDS):
            sock = await dial(host, port)
            stream = await secure(sock, context, host)
            sock.close()
    except trio.TooSlowError:
        return Finding(
            Level.ERROR,
            "connect",
            f"{address} did not answer within {HANDSHAKE_SECONDS} s",
            "check the address and the network",
        )
    except OSError as error:
        return Finding(
            Level.ERROR,
            "connect",
            f"{address}: {error.strerror or error}",
            "check the address, and that the server runs",
        )
    except TlsFailed as error:
        return Finding(Level.ERROR, "connect", f"{address}: {error.reason}", error.fix)
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from None
    shown = stream.peer_certificate()
    text = f"{address} speaks {stream.version}"
    if shown is not None:
        certificate = x509.load_der_x509_certificate(shown)
        text += f" as {', '.join(names_of(certificate)) or certificate.subject.rfc4514_string()}, valid until {certificate.not_valid_after_utc:%Y-%m-%d}"
        if certificate.not_valid_after_utc < datetime.now(UTC):
            return Finding(Level.ERROR, "connect", text, "make a new certificate")
    return Finding(Level.OK, "connect", text)


COMMANDS: Sequence[Command] = (
    Command(
        name="tlsInit",
        group="security",
        summary="make a development authority, certificates for servers and clients, and a tls.properties file",
        local=tls_init,
        options=(
            Option("", "dir", "folder of the files", filled, default="tls", placeholder="FOLDER", ours=True),
            Option(
                "",
                "hosts",
                "names and addresses that clients connect to, comma-separated (default: those of this machine)",
                _hosts,
                placeholder="HOSTS",
                ours=True,
            ),
            Option(
                "",
                "days",
                "how long the certificates are valid",
                whole(1, 36500),
                default=365,
                placeholder="DAYS",
                ours=True,
            ),
            Option("", "password", "encrypt the private keys (PKCS#8, AES-256)", filled, ours=True),
            Option("", "mutual", "servers demand a client certificate", None, ours=True),
        ),
        examples=("tlsInit --dir ~/tls --hosts broker.example.com,10.0.0.7", "tls init --dir ~/tls --mutual"),
        document='{"dir", "config", "hosts": [host], "validUntil", "newAuthority"}',
        remarks=(
            "An authority that is in the folder already is used again, so that clients go on trusting; running servers pick up the new files by themselves.",
            "The certificates are for development and tests: in production the keys belong to your own authority.",
        ),
    ),
    Command(
        name="tlsCheck",
        group="security",
        summary="check the certificates of a tls.properties file: dates, key, chain, names; and shake hands with a server",
        local=tls_check,
        options=(
            Option(
                "",
                "hosts",
                "names that the server's certificate must have, comma-separated",
                _hosts,
                placeholder="HOSTS",
                ours=True,
            ),
            Option(
                "",
                "connect",
                "server to shake hands with, as a client with this file would",
                filled,
                placeholder="HOST:PORT",
                ours=True,
            ),
        ),
        examples=(
            "tlsCheck --tls ~/tls/tls.properties --hosts broker.example.com",
            "tls check --tls ~/tls/tls.properties --connect broker.example.com:10911",
        ),
        document='{"config", "ok", "findings": [{"subject", "check", "level": "ok"|"warning"|"error", "text", "fix"}]}',
        remarks=("The exit code is 1 when there is an error among the findings.",),
    ),
)
