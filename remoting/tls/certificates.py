"""Examine a certificate before a peer sees it: dates, key, chain, names.

Used at the start of a server, which the first problem prevents, and by ``mqadmin tls check``, which
shows all findings. Imports ``cryptography``; imported only with TLS.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from triomq.remoting.core.findings import Finding, Level, advice, ok, problem
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.client import read_pem
from triomq.remoting.tls.security_settings import ServerTls

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

EXPIRES_SOON = timedelta(days=30)
_MAKE_NEW = "make a new certificate (`mqadmin tls init` for development)"


@attrs.frozen(kw_only=True)
class Identity:
    """A certificate of a ``server`` or a client, its key, and the issuers that are accepted."""

    certificate_file: Path
    key_file: Path
    key_password: str | None = attrs.field(default=None, repr=False)
    trust_file: Path | None = None
    server: bool = True
    host_names: Sequence[str] = ()

    @property
    def subject(self) -> str:
        """The subject of its findings."""
        return "server" if self.server else "client"


def examine(identity: Identity, now: datetime | None = None) -> list[Finding]:
    """Examine files, dates, key, chain and names; omit checks that depend on a failed check.

    Raises: OSError (too many open files, which is no fault of the certificate).
    """
    now = now or datetime.now(UTC)
    findings: list[Finding] = []
    subject = identity.subject
    chain = _loaded(findings, subject, "certificate", identity.certificate_file, load_certificates)
    key = _loaded(
        findings,
        subject,
        "key",
        identity.key_file,
        lambda path: load_key(path, identity.key_password),
    )
    trusted = (
        _loaded(findings, subject, "authorities", identity.trust_file, load_certificates)
        if identity.trust_file is not None
        else None
    )
    if chain:
        findings += _dates(subject, chain, now)
        if key is not None:
            findings.append(_key_match(chain[0], key, identity))
        findings += _chain(subject, chain, trusted)
        findings += _names(chain[0], identity)
    return findings


def examine_authorities(subject: str, path: Path, now: datetime | None = None) -> list[Finding]:
    """Examine a file of certificate authorities."""
    findings: list[Finding] = []
    chain = _loaded(findings, subject, "authorities", path, load_certificates)
    if chain:
        findings += _dates(subject, chain, now or datetime.now(UTC))
    return findings


def require_usable(settings: ServerTls, host_names: Sequence[str]) -> None:
    """Examine a server's certificate before its first use; log warnings.

    Raises: ConfigError with the first problem, OSError (too many open files).
    """
    if settings.certificate_file is None or settings.key_file is None:
        _log.warning(
            "TLS test mode: clients cannot verify the certificate of this server; set"
            " tls.server.certPath and tls.server.keyPath"
        )
        return
    identity = Identity(
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        key_password=settings.key_password,
        host_names=host_names,
    )
    findings = examine(identity)
    for finding in findings:
        if finding.level is Level.PROBLEM:
            raise ConfigError("TLS", finding.text, finding.fix)
    for finding in findings:
        if finding.level is Level.ADVICE:
            _log.warning("TLS: %s; %s", finding.text, finding.fix)


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Read all certificates of a PEM file. Raises: ConfigError if it has none."""
    data = read_pem(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        what = (
            "holds a private key, not a certificate"
            if b"PRIVATE KEY-----" in data
            else "holds no certificate in PEM form"
        )
        raise ConfigError(
            str(path), what, "name a file that begins with -----BEGIN CERTIFICATE-----"
        ) from None


def load_key(path: Path, password: str | None) -> PrivateKeyTypes:
    """Read the private key of a PEM file, PKCS#8 or the older forms. Raises: ConfigError."""
    data = read_pem(path)
    encrypted = b"ENCRYPTED" in data
    try:
        return serialization.load_pem_private_key(
            data, password.encode() if password and encrypted else None
        )
    except TypeError:
        raise ConfigError(
            str(path),
            "the private key is encrypted",
            "set its password (tls.server.keyPassword or tls.client.keyPassword)",
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        if encrypted:
            raise ConfigError(
                str(path), "the private key cannot be decrypted", "check the password"
            ) from None
        if b"PRIVATE KEY-----" in data:
            raise ConfigError(
                str(path),
                f"the private key cannot be read ({' '.join(str(error).split())[:120]})",
                _MAKE_NEW,
            ) from None
        raise ConfigError(
            str(path),
            "holds no private key in PEM form",
            "name a file that begins with -----BEGIN PRIVATE KEY-----",
        ) from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses that a certificate names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def covers(names: Sequence[str], host: str) -> bool:
    """Return whether the names of a certificate include a host; ``*.`` stands for one label."""
    host = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        labels = host.partition(".")[2]
        return any(name.lower() in (host, f"*.{labels}" if labels else host) for name in names)
    return str(address) in names


def _loaded(
    findings: list[Finding], subject: str, check: str, path: Path, load: Callable[[Path], _T]
) -> _T | None:
    try:
        loaded = load(path)
    except ConfigError as error:
        findings.append(problem(subject, check, f"{error.where}: {error.problem}", error.fix))
        return None
    findings.append(ok(subject, check, str(path)))
    return loaded


def _label(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or f"serial number {certificate.serial_number:x}"


def _dates(subject: str, chain: Sequence[x509.Certificate], now: datetime) -> Iterator[Finding]:
    for certificate in chain:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        label = _label(certificate)
        if now > end:
            yield problem(
                subject,
                "dates",
                f"the certificate {label} expired on {end:%Y-%m-%d %H:%M} UTC",
                _MAKE_NEW,
            )
        elif now < begin:
            yield problem(
                subject,
                "dates",
                f"the certificate {label} is valid only from {begin:%Y-%m-%d %H:%M} UTC",
                f"check the clock of this machine (now {now:%Y-%m-%d %H:%M} UTC)",
            )
        elif end - now < EXPIRES_SOON:
            yield advice(
                subject,
                "dates",
                f"the certificate {label} expires in {(end - now).days} days, on"
                f" {end:%Y-%m-%d %H:%M} UTC",
                _MAKE_NEW,
            )
        else:
            yield ok(subject, "dates", f"{label}: {begin:%Y-%m-%d} to {end:%Y-%m-%d}")


def _key_match(leaf: x509.Certificate, key: PrivateKeyTypes, identity: Identity) -> Finding:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if leaf.public_key().public_bytes(*form) == key.public_key().public_bytes(*form):
        return ok(identity.subject, "key match", "the private key belongs to the certificate")
    return problem(
        identity.subject,
        "key match",
        f"{identity.key_file} is not the private key of {identity.certificate_file}",
        "name the two files that were made together; the server's own certificate comes first in"
        " its file",
    )


def _chain(
    subject: str, chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate] | None
) -> Iterator[Finding]:
    for lower, upper in pairwise(chain):
        if not _issued(lower, upper):
            yield problem(
                subject,
                "chain",
                f"{_label(lower)} is not issued by {_label(upper)}, which follows it",
                "put the server's certificate first, then the one that issued it, and so on",
            )
            return
    top = chain[-1]
    if trusted is None:
        yield ok(
            subject, "chain", f"{len(chain)} certificates, up to {top.issuer.rfc4514_string()}"
        )
    elif top in trusted or any(_issued(top, authority) for authority in trusted):
        yield ok(subject, "chain", f"trusted through {top.issuer.rfc4514_string()}")
    else:
        yield problem(
            subject,
            "chain",
            f"no trusted authority issued {_label(top)}",
            "put the issuing authority's certificate into the trust file",
        )


def _issued(lower: x509.Certificate, upper: x509.Certificate) -> bool:
    try:
        lower.verify_directly_issued_by(upper)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(leaf: x509.Certificate, identity: Identity) -> Iterator[Finding]:
    try:
        purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        purposes = None
    wanted = ExtendedKeyUsageOID.SERVER_AUTH if identity.server else ExtendedKeyUsageOID.CLIENT_AUTH
    if purposes is not None and wanted not in purposes:
        yield problem(
            identity.subject,
            "purpose",
            f"{_label(leaf)} may not be used by a {identity.subject}",
            _MAKE_NEW,
        )
    if not identity.server:
        return
    names = names_of(leaf)
    if not names:
        yield advice(
            identity.subject,
            "names",
            "the certificate has no subject alternative name: clients that check host names"
            " refuse it",
            _MAKE_NEW,
        )
        return
    missing = [host for host in identity.host_names if not covers(names, host)]
    if missing:
        yield advice(
            identity.subject,
            "names",
            f"clients connect to {', '.join(missing)}, and the certificate names only"
            f" {', '.join(names)}",
            "make a certificate with that name (`mqadmin tls init --hosts ...`)",
        )
    else:
        yield ok(identity.subject, "names", ", ".join(names))
