"""The settings of a server for TLS and load balancers, under Java's names.

Java reads these keys as JVM properties; here they are lines of the configuration file or ``-D``
options. The file that ``tls.config.file`` names completes them; where both say something and it
differs, the server does not start, except for the mode and ``tls.enable``, where the settings win
(in Java the file wins without a word). This module does not import ``ssl``.

Source: remoting/…/netty/TlsSystemConfig.java, TlsHelper.java.
"""

# ruff: noqa: RUF009  (setting() is an attrs field specifier)
from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triomq.remoting.core.settings import (
    ConfigError,
    choice,
    flag,
    optional_text,
    read_value,
    render,
    setting,
    settings_of,
)
from triomq.remoting.tls.client import DEFAULT_TLS_FILE, Tls, client_tls, read_flag, read_tls_file


class TlsMode(enum.Enum):
    """Whether connections use TLS: never, as the client chooses, always."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether the server requests a client certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class ProxyMode(enum.Enum):
    """Whether connections begin with a PROXY header."""

    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


@attrs.frozen(kw_only=True)
class ServerTls:
    """A server's certificate, and whether it requests those of clients.

    Without ``certificate_file`` (test mode) the server makes a certificate for itself.
    """

    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = attrs.field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca_file: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are reloaded when they change."""
        return tuple(
            path
            for path in (self.certificate_file, self.key_file, self.client_ca_file)
            if path is not None
        )


@attrs.frozen(kw_only=True)
class SecuritySettings:
    """The settings that broker and name server share.

    mode: TLS on the listening ports: never, if the client begins with it, or always
    config_file: tls.properties file; where it exists, it completes the tls.* settings here
    test_mode: for tests only: the server makes a certificate for itself, the client trusts every
        server (Java's default is true)
    certificate: PEM file of the server's certificate, followed by its intermediate ones; read again
        when it changes
    key: PEM file of the private key; read again when it changes
    key_password: password of the private key, if it is encrypted
    client_auth: whether clients are asked for a certificate
    verify_clients: verify the certificates of clients; must be true where they are asked for
    client_ca: PEM file of the authorities of client certificates; empty: the system's
    enable: use TLS for connections to other servers
    use_tls: another name of tls.enable
    own_certificate: PEM file of the certificate shown to other servers
    own_key: PEM file of its private key
    own_key_password: password of that key, if it is encrypted
    verify_servers: verify the certificates of other servers (Java's default is false)
    server_ca: PEM file of the authorities of other servers; empty: the system's
    check_host_name: the certificate of another server must name its host
    socks_proxies: SOCKS5 proxies that lead to other servers, as JSON: address range -> addr,
        username, password
    proxy_protocol: PROXY header of a load balancer before the first byte; optional lets every
        client claim any address
    """

    mode: TlsMode = setting("tls.server.mode", choice(TlsMode), TlsMode.PERMISSIVE)
    config_file: str = optional_text("tls.config.file", default=str(DEFAULT_TLS_FILE))
    test_mode: bool = flag("tls.test.mode.enable", False)
    certificate: str = optional_text("tls.server.certPath")
    key: str = optional_text("tls.server.keyPath")
    key_password: str = optional_text("tls.server.keyPassword", secret=True)
    client_auth: ClientAuth = setting(
        "tls.server.need.client.auth", choice(ClientAuth), ClientAuth.NONE
    )
    verify_clients: bool = flag("tls.server.authClient", False)
    client_ca: str = optional_text("tls.server.trustCertPath")
    enable: bool = flag("tls.enable", False)
    use_tls: bool = flag("useTLS", False)
    own_certificate: str = optional_text("tls.client.certPath")
    own_key: str = optional_text("tls.client.keyPath")
    own_key_password: str = optional_text("tls.client.keyPassword", secret=True)
    verify_servers: bool = flag("tls.client.authServer", True)
    server_ca: str = optional_text("tls.client.trustCertPath")
    check_host_name: bool = flag("tls.client.checkHostName", True, own=True)
    socks_proxies: str = optional_text("socksProxyConfig", default="{}", secret=True)
    proxy_protocol: ProxyMode = setting("proxyProtocol", choice(ProxyMode), ProxyMode.OFF, own=True)


TLS_KEYS = {
    described.java: described
    for _, _, described in settings_of(SecuritySettings)
    if described.java.startswith("tls.")
}
"""every key that a tls.properties file may contain, with its setting"""


@attrs.frozen(kw_only=True)
class Security:
    """The resolved settings.

    ``server`` is None without a certificate, ``client`` is None if connections to other servers use
    no TLS.
    """

    mode: TlsMode
    server: ServerTls | None
    client: Tls | None
    proxy_protocol: ProxyMode

    @property
    def plain_only(self) -> bool:
        """Whether connections begin with plain frames, without TLS and PROXY headers."""
        return self.server is None and self.proxy_protocol is ProxyMode.OFF


def resolve(settings: SecuritySettings) -> Security:
    """Join settings and file.

    Raises: ConfigError for contradictory settings, and for settings less safe than they promise.
    """
    entries, where = _entries(settings)
    mode = _choice(entries, "tls.server.mode", where)
    server = None if mode is TlsMode.DISABLED else _server(entries, where)
    if server is None and mode is TlsMode.ENFORCING:
        raise ConfigError(
            where,
            "tls.server.mode=enforcing without a certificate",
            "set tls.server.certPath and tls.server.keyPath (`mqadmin tls init` makes both)",
        )
    use_client = read_flag(entries, "tls.enable", False, where) or settings.use_tls
    return Security(
        mode=mode,
        server=server,
        client=client_tls(entries, where) if use_client else None,
        proxy_protocol=settings.proxy_protocol,
    )


def resolve_replication(settings: SecuritySettings) -> tuple[ServerTls | None, Tls]:
    """Return what a master shows its slaves (None: no certificate), and a slave its master.

    Raises: ConfigError.
    """
    entries, where = _entries(settings)
    return _server(entries, where), client_tls(entries, where)


def _entries(settings: SecuritySettings) -> tuple[Mapping[str, str], str]:
    """Return the effective tls.* entries, and where they were read."""
    own = {key: text for key, text in render(settings, secrets=True).items() if key in TLS_KEYS}
    path = Path(settings.config_file).expanduser() if settings.config_file else None
    if path is None or (path == DEFAULT_TLS_FILE and not path.is_file()):
        return own, "tls"
    file = read_tls_file(path)
    unknown = sorted(key for key in file if key.startswith("tls.") and key not in TLS_KEYS)
    if unknown:
        raise ConfigError(
            str(path),
            f"unknown key {unknown[0]}",
            "docs/security.md lists the keys of tls.properties",
        )
    if settings.mode is not TlsMode.PERMISSIVE:
        file.pop("tls.server.mode", None)
    if settings.enable:
        file.pop("tls.enable", None)
    _refuse_contradictions(own, file, str(path))
    joined = {**own, **{key: text for key, text in file.items() if key in TLS_KEYS and text}}
    return joined, str(path)


def _refuse_contradictions(own: Mapping[str, str], file: Mapping[str, str], where: str) -> None:
    """An operator who asks for one thing here must not get another from the file without a word."""
    defaults = render(SecuritySettings(), secrets=True)
    for key in sorted(TLS_KEYS.keys() & file.keys()):
        if not file[key] or own[key] in (defaults[key], file[key]):
            continue
        if read_value(TLS_KEYS[key], file[key], where) != read_value(
            TLS_KEYS[key], own[key], "tls"
        ):
            shown = "is set otherwise" if TLS_KEYS[key].secret else f"is {own[key]}"
            raise ConfigError(
                where,
                f"{key} contradicts the setting of this server, where it {shown}",
                "remove one of the two",
            )


def _choice(entries: Mapping[str, str], key: str, where: str) -> Any:
    return read_value(TLS_KEYS[key], entries[key], where)


def _server(entries: Mapping[str, str], where: str) -> ServerTls | None:
    client_auth = _choice(entries, "tls.server.need.client.auth", where)
    if read_flag(entries, "tls.test.mode.enable", False, where):
        return ServerTls()
    certificate, key = entries["tls.server.certPath"], entries["tls.server.keyPath"]
    if bool(certificate) != bool(key):
        raise ConfigError(
            where, "tls.server.certPath and tls.server.keyPath belong together", "set both, or none"
        )
    if not certificate:
        return None
    if client_auth is not ClientAuth.NONE and not read_flag(
        entries, "tls.server.authClient", False, where
    ):
        raise ConfigError(
            where,
            f"tls.server.need.client.auth={client_auth.value} with tls.server.authClient=false"
            " would accept any certificate",
            "set tls.server.authClient=true and tls.server.trustCertPath, or do not ask for"
            " certificates",
        )
    authorities = entries["tls.server.trustCertPath"]
    return ServerTls(
        certificate_file=Path(certificate).expanduser(),
        key_file=Path(key).expanduser(),
        key_password=entries["tls.server.keyPassword"] or None,
        client_auth=client_auth,
        client_ca_file=Path(authorities).expanduser() if authorities else None,
    )
