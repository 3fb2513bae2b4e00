"""A certificate authority for development.

Keys are P-256 in PKCS#8, which Java, OpenSSL and Go read. Imports ``cryptography``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.certificates import load_certificates, load_key

_CLOCK_TOLERANCE = timedelta(hours=1)
"""A certificate begins in the past, because the clocks of machines differ."""


@attrs.frozen
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = attrs.field(repr=False)

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self, password: str | None = None) -> bytes:
        """Return the key as PKCS#8, encrypted (PBES2, AES-256) if there is a password."""
        encryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )


def make_authority(name: str, days: int, now: datetime | None = None) -> Pair:
    """Make an authority that signs its own certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key, days, now, authority=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate: Path, key: Path) -> Pair:
    """Read an authority from its two files. Raises: ConfigError."""
    loaded, private = load_certificates(certificate)[0], load_key(key, None)
    if (
        not isinstance(private, ec.EllipticCurvePrivateKey)
        or private.public_key() != loaded.public_key()
    ):
        raise ConfigError(
            str(key),
            f"is not the P-256 key of {certificate}",
            "move both files away to begin with a new authority",
        )
    if loaded.not_valid_after_utc < datetime.now(UTC):
        raise ConfigError(
            str(certificate),
            "has expired",
            "move it and ca-key.pem away to begin with a new authority",
        )
    return Pair(loaded, private)


def issue(
    authority: Pair,
    name: str,
    hosts: Sequence[str],
    days: int,
    *,
    server: bool,
    now: datetime | None = None,
) -> Pair:
    """Make a certificate for a server (with *hosts*, names or addresses) or for a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = (
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        if server
        else [ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    builder = (
        _builder(subject, authority.certificate.subject, key, days, now, authority=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime | None,
    *,
    authority: bool,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    begin = (now or datetime.now(UTC)) - _CLOCK_TOLERANCE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.BasicConstraints(authority, path_length=0 if authority else None), critical=True
        )
        .add_extension(usage, critical=True)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)
