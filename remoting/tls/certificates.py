"""What is wrong with a certificate before anybody meets it: dates, key, chain, names.

The same examination serves the start of a server (the first error ends it) and ``mqadmin tls check`` (everything is shown).
Brings `cryptography`: imported only where TLS is on.
"""

from __future__ import annotations

import enum
import ipaddress
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

from triomq.remoting.settings import ConfigError

_T = TypeVar("_T")

EXPIRES_SOON = timedelta(days=30)
_MAKE_NEW = "make a new certificate (`mqadmin tls init` for development)"


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Finding:
    """One result: *check* names what was looked at, *fix* is empty where all is well."""

    level: Level
    check: str
    text: str
    fix: str = ""


@attrs.frozen(kw_only=True)
class Identity:
    """A certificate with its key, and who must trust it. `server` tells the two uses of certificates apart."""

    certificate_file: Path
    key_file: Path
    key_password: str | None = attrs.field(default=None, repr=False)
    trust_file: Path | None = None
    server: bool = True
    host_names: Sequence[str] = ()


def examine(identity: Identity, now: datetime | None = None) -> list[Finding]:
    """Look at files, dates, key, chain and names; findings in that order. What depends on a failed step is left out."""
    now = now or datetime.now(UTC)
    findings: list[Finding] = []
    chain = _read(findings, "certificate", identity.certificate_file, load_certificates)
    key = _read(findings, "key", identity.key_file, lambda path: load_key(path, identity.key_password))
    trusted = (
        _read(findings, "authorities", identity.trust_file, load_certificates)
        if identity.trust_file is not None
        else None
    )
    if chain:
        findings += _dates(chain, now)
        if key is not None:
            findings.append(_key_match(chain[0], key, identity))
        findings += _chain(chain, trusted)
        findings += _names(chain[0], identity)
    return findings


def examine_authorities(path: Path, now: datetime | None = None) -> list[Finding]:
    """Look at a file of certificate authorities alone."""
    findings: list[Finding] = []
    chain = _read(findings, "authorities", path, load_certificates)
    if chain:
        findings += _dates(chain, now or datetime.now(UTC))
    return findings


def first_error(findings: Sequence[Finding]) -> Finding | None:
    """The finding that must keep a server from starting."""
    return next((finding for finding in findings if finding.level is Level.ERROR), None)


def load_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file; ConfigError if there is none."""
    data = _bytes_of(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        what = (
            "holds a private key, not a certificate"
            if b"PRIVATE KEY-----" in data
            else "holds no certificate in PEM form"
        )
        raise ConfigError(str(path), what, "name a file that begins with -----BEGIN CERTIFICATE-----") from None


def load_key(path: Path, password: str | None) -> PrivateKeyTypes:
    """The private key of a PEM file, PKCS#8 or the older forms; ConfigError if it cannot be read."""
    data = _bytes_of(path)
    encrypted = b"ENCRYPTED" in data
    try:
        return serialization.load_pem_private_key(data, password.encode() if password and encrypted else None)
    except TypeError:
        raise ConfigError(
            str(path),
            "the private key is encrypted",
            "set its password (tls.server.keyPassword or tls.client.keyPassword)",
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        if encrypted:
            raise ConfigError(str(path), "the private key cannot be decrypted", "check the password") from None
        if b"PRIVATE KEY-----" in data:
            raise ConfigError(
                str(path), f"the private key cannot be read ({' '.join(str(error).split())[:120]})", _MAKE_NEW
            ) from None
        raise ConfigError(
            str(path), "holds no private key in PEM form", "name a file that begins with -----BEGIN PRIVATE KEY-----"
        ) from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Host names and addresses that a certificate is good for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def covers(names: Sequence[str], host: str) -> bool:
    """Whether one of a certificate's names is this host; a leading ``*.`` stands for one label."""
    host = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        labels = host.partition(".")[2]
        return any(name.lower() in (host, f"*.{labels}" if labels else host) for name in names)
    return str(address) in names


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read ({reason})", "name a PEM file that this user may read") from None


def _read(findings: list[Finding], check: str, path: Path, load: Callable[[Path], _T]) -> _T | None:
    try:
        loaded = load(path)
    except ConfigError as error:
        findings.append(Finding(Level.ERROR, check, f"{error.where}: {error.problem}", error.fix))
        return None
    findings.append(Finding(Level.OK, check, str(path)))
    return loaded


def _label(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or f"serial number {certificate.serial_number:x}"


def _dates(chain: Sequence[x509.Certificate], now: datetime) -> Iterator[Finding]:
    for certificate in chain:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        label = _label(certificate)
        if now > end:
            yield Finding(
                Level.ERROR, "dates", f"the certificate {label} expired on {end:%Y-%m-%d %H:%M} UTC", _MAKE_NEW
            )
        elif now < begin:
            yield Finding(
                Level.ERROR,
                "dates",
                f"the certificate {label} is valid only from {begin:%Y-%m-%d %H:%M} UTC",
                f"check the clock of this machine (now {now:%Y-%m-%d %H:%M} UTC)",
            )
        elif end - now < EXPIRES_SOON:
            yield Finding(
                Level.WARNING,
                "dates",
                f"the certificate {label} expires in {(end - now).days} days, on {end:%Y-%m-%d %H:%M} UTC",
                _MAKE_NEW,
            )
        else:
            yield Finding(Level.OK, "dates", f"{label}: {begin:%Y-%m-%d} to {end:%Y-%m-%d}")


def _key_match(leaf: x509.Certificate, key: PrivateKeyTypes, identity: Identity) -> Finding:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if leaf.public_key().public_bytes(*form) == key.public_key().public_bytes(*form):
        return Finding(Level.OK, "key match", "the private key belongs to the certificate")
    return Finding(
        Level.ERROR,
        "key match",
        f"{identity.key_file} is not the private key of {identity.certificate_file}",
        "name the two files that were made together; the server's own certificate comes first in its file",
    )


def _chain(chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate] | None) -> Iterator[Finding]:
    for lower, upper in pairwise(chain):
        if not _issued(lower, upper):
            yield Finding(
                Level.ERROR,
                "chain",
                f"{_label(lower)} is not issued by {_label(upper)}, which follows it",
                "put the server's certificate first, then the one that issued it, and so on",
            )
            return
    top = chain[-1]
    if trusted is None:
        yield Finding(Level.OK, "chain", f"{len(chain)} certificates, up to {top.issuer.rfc4514_string()}")
    elif top in trusted or any(_issued(top, authority) for authority in trusted):
        yield Finding(Level.OK, "chain", f"trusted through {top.issuer.rfc4514_string()}")
    else:
        yield Finding(
            Level.ERROR,
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
        yield Finding(
            Level.ERROR,
            "purpose",
            f"{_label(leaf)} may not be used by a {'server' if identity.server else 'client'}",
            _MAKE_NEW,
        )
    if not identity.server:
        return
    names = names_of(leaf)
    if not names:
        yield Finding(
            Level.WARNING,
            "names",
            "the certificate has no subject alternative name: clients that check host names refuse it",
            _MAKE_NEW,
        )
        return
    missing = [host for host in identity.host_names if not covers(names, host)]
    if missing:
        yield Finding(
            Level.WARNING,
            "names",
            f"clients connect to {', '.join(missing)}, and the certificate names only {', '.join(names)}",
            "make a certificate with that name (`mqadmin tls init --hosts ...`)",
        )
    else:
        yield Finding(Level.OK, "names", ", ".join(names))
