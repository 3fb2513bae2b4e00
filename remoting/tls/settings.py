"""The settings of a server that concern TLS and load balancers, under Java's names, and what they come to with ``tls.properties``.

Java reads these keys as JVM properties; here they are lines of the configuration file or ``-D`` options.  The file that
``tls.config.file`` names wins over them, as in Java, except for the mode and for ``tls.enable``.  Nothing here imports `ssl`.
Source: remoting/…/netty/TlsSystemConfig.java, TlsHelper.java.
"""

# ruff: noqa: RUF009  (setting() is an attrs field specifier)
from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.remoting.settings import BOOLEAN, OPTIONAL_TEXT, ConfigError, choice, render, setting, settings_of
from triomq.remoting.tls.client import DEFAULT_TLS_FILE, Tls, client_tls, read_flag, read_tls_file


class TlsMode(enum.Enum):
    """What the first byte of a connection may be."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether the server asks for a client certificate."""

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
    """What a server shows and demands. Without `certificate_file` (test mode) it makes a certificate for itself."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = attrs.field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca_file: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read again when they change."""
        return tuple(path for path in (self.certificate_file, self.key_file, self.client_ca_file) if path is not None)


@attrs.frozen(kw_only=True)
class SecuritySettings:
    """The group of settings that broker and name server share."""

    mode: TlsMode = setting(
        "tls.server.mode",
        choice(TlsMode),
        TlsMode.PERMISSIVE,
        "TLS on the listening ports: never, if the client begins with it, or always",
    )
    config_file: str = setting(
        "tls.config.file",
        OPTIONAL_TEXT,
        str(DEFAULT_TLS_FILE),
        "tls.properties file; where it exists, it wins over the tls.* settings here",
    )
    test_mode: bool = setting(
        "tls.test.mode.enable",
        BOOLEAN,
        False,
        "for tests only: the server makes a certificate for itself, the client trusts everybody (Java's default is true)",
    )
    certificate: str = setting(
        "tls.server.certPath",
        OPTIONAL_TEXT,
        "",
        "PEM file of the server's certificate, followed by its intermediate ones; read again when it changes",
    )
    key: str = setting(
        "tls.server.keyPath", OPTIONAL_TEXT, "", "PEM file of the private key; read again when it changes"
    )
    key_password: str = setting(
        "tls.server.keyPassword", OPTIONAL_TEXT, "", "password of the private key, if it is encrypted", secret=True
    )
    client_auth: ClientAuth = setting(
        "tls.server.need.client.auth",
        choice(ClientAuth),
        ClientAuth.NONE,
        "whether clients are asked for a certificate",
    )
    verify_clients: bool = setting(
        "tls.server.authClient",
        BOOLEAN,
        False,
        "verify the certificates of clients; must be true where they are asked for",
    )
    client_ca: str = setting(
        "tls.server.trustCertPath",
        OPTIONAL_TEXT,
        "",
        "PEM file of the authorities of client certificates; empty: the system's",
    )
    enable: bool = setting("tls.enable", BOOLEAN, False, "use TLS for connections to other servers")
    use_tls: bool = setting("useTLS", BOOLEAN, False, "another name of tls.enable")
    own_certificate: str = setting(
        "tls.client.certPath", OPTIONAL_TEXT, "", "PEM file of the certificate shown to other servers"
    )
    own_key: str = setting("tls.client.keyPath", OPTIONAL_TEXT, "", "PEM file of its private key")
    own_key_password: str = setting(
        "tls.client.keyPassword", OPTIONAL_TEXT, "", "password of that key, if it is encrypted", secret=True
    )
    verify_servers: bool = setting(
        "tls.client.authServer", BOOLEAN, True, "verify the certificates of other servers (Java's default is false)"
    )
    server_ca: str = setting(
        "tls.client.trustCertPath",
        OPTIONAL_TEXT,
        "",
        "PEM file of the authorities of other servers; empty: the system's",
    )
    check_host_name: bool = setting(
        "tls.client.checkHostName",
        BOOLEAN,
        True,
        "the certificate of another server must name its host",
        own=True,
    )
    socks_proxies: str = setting(
        "socksProxyConfig",
        OPTIONAL_TEXT,
        "{}",
        "SOCKS5 proxies that lead to other servers, as JSON: address range -> addr, username, password",
        secret=True,
    )
    proxy_protocol: ProxyMode = setting(
        "proxyProtocol",
        choice(ProxyMode),
        ProxyMode.OFF,
        "PROXY header of a load balancer before the first byte; optional lets every client claim any address",
        own=True,
    )


TLS_KEYS = frozenset(
    described.java for _, _, described in settings_of(SecuritySettings) if described.java.startswith("tls.")
)
"""every key that a tls.properties file may hold"""


@attrs.frozen(kw_only=True)
class Security:
    """The outcome: `server` is None where there is nothing to answer TLS with, `client` where other servers are spoken to in plain."""

    mode: TlsMode
    server: ServerTls | None
    client: Tls | None
    proxy_protocol: ProxyMode

    @property
    def open_door(self) -> bool:
        """Connections are taken as they come: there is neither TLS nor a PROXY header to look for."""
        return self.server is None and self.proxy_protocol is ProxyMode.OFF


def resolve(settings: SecuritySettings) -> Security:
    """Join settings and file. Raises ConfigError for what contradicts itself or promises safety that is not there."""
    entries, where = _entries(settings)
    mode = TlsMode(entries["tls.server.mode"])
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


def _entries(settings: SecuritySettings) -> tuple[Mapping[str, str], str]:
    """The effective tls.* entries, and where they were read."""
    own = {key: text for key, text in render(settings, secrets=True).items() if key in TLS_KEYS}
    path = Path(settings.config_file).expanduser() if settings.config_file else None
    if path is None or (path == DEFAULT_TLS_FILE and not path.is_file()):
        return own, "tls"
    file = read_tls_file(path)
    unknown = sorted(key for key in file if key.startswith("tls.") and key not in TLS_KEYS)
    if unknown:
        raise ConfigError(str(path), f"unknown key {unknown[0]}", "docs/security.md lists the keys of tls.properties")
    if settings.mode is not TlsMode.PERMISSIVE:
        file.pop("tls.server.mode", None)
    if settings.enable:
        file.pop("tls.enable", None)
    joined = {**own, **{key: text for key, text in file.items() if key in TLS_KEYS and text}}
    joined["tls.server.mode"] = joined["tls.server.mode"].lower()
    if joined["tls.server.mode"] not in {mode.value for mode in TlsMode}:
        raise ConfigError(
            str(path),
            f"tls.server.mode={joined['tls.server.mode']}: not one of its values",
            "write disabled, permissive or enforcing",
        )
    return joined, str(path)


def _server(entries: Mapping[str, str], where: str) -> ServerTls | None:
    try:
        client_auth = ClientAuth(entries["tls.server.need.client.auth"].lower())
    except ValueError:
        raise ConfigError(
            where,
            f"tls.server.need.client.auth={entries['tls.server.need.client.auth']}: not one of its values",
            "write none, optional or require",
        ) from None
    if read_flag(entries, "tls.test.mode.enable", False, where):
        return ServerTls()
    certificate, key = entries["tls.server.certPath"], entries["tls.server.keyPath"]
    if bool(certificate) != bool(key):
        raise ConfigError(where, "tls.server.certPath and tls.server.keyPath belong together", "set both, or none")
    if not certificate:
        return None
    if client_auth is not ClientAuth.NONE and not read_flag(entries, "tls.server.authClient", False, where):
        raise ConfigError(
            where,
            f"tls.server.need.client.auth={client_auth.value} with tls.server.authClient=false would accept any certificate",
            "set tls.server.authClient=true and tls.server.trustCertPath, or do not ask for certificates",
        )
    return ServerTls(
        certificate_file=Path(certificate).expanduser(),
        key_file=Path(key).expanduser(),
        key_password=entries["tls.server.keyPassword"] or None,
        client_auth=client_auth,
        client_ca_file=Path(entries["tls.server.trustCertPath"]).expanduser()
        if entries["tls.server.trustCertPath"]
        else None,
    )
