"""Settings of authentication and authorization, under the names of Java's AuthConfig."""

# ruff: noqa: RUF009  (setting() is an attrs field specifier)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from triomq.remoting.core.networks import NETWORKS, AddressRange
from triomq.remoting.core.settings import ConfigError, Kind, flag, number, optional_text, setting
from triomq.remoting.protocol.signing import Credentials


class _InitialUser(msgspec.Struct):
    username: str
    password: str


class _InnerCredentials(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str
    security_token: str | None = None


def _credentials(
    shape: type[_InitialUser] | type[_InnerCredentials], example: str, text: str
) -> Credentials | None:
    if not text.strip():
        return None
    try:
        made = msgspec.json.decode(text, type=shape)
        if isinstance(made, _InitialUser):
            return Credentials(access_key=made.username, secret_key=made.password)
        return Credentials(
            access_key=made.access_key,
            secret_key=made.secret_key,
            security_token=made.security_token,
        )
    except (msgspec.DecodeError, ValueError):
        raise ValueError(f"not a user in JSON; write {example}") from None


def _user_text(user: Credentials | None) -> str:
    if user is None:
        return ""
    return msgspec.json.encode(_InitialUser(user.access_key, user.secret_key)).decode()


def _inner_text(user: Credentials | None) -> str:
    if user is None:
        return ""
    made = _InnerCredentials(user.access_key, user.secret_key, user.security_token)
    return msgspec.json.encode(made).decode()


def _codes(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("not a list of request codes; write numbers joined by commas") from None


USER: Kind[Credentials | None] = Kind(
    "a user in JSON, may be empty",
    lambda text: _credentials(_InitialUser, '{"username":"NAME","password":"SECRET"}', text),
    _user_text,
)
INNER: Kind[Credentials | None] = Kind(
    "credentials in JSON, may be empty",
    lambda text: _credentials(_InnerCredentials, '{"accessKey":"NAME","secretKey":"SECRET"}', text),
    _inner_text,
)
CODES: Kind[frozenset[int]] = Kind(
    "request codes joined by commas, may be empty",
    _codes,
    lambda codes: ",".join(map(str, sorted(codes))),
)


def date_window() -> Any:
    """Declare ``grpcSignatureWindowSeconds``, which brokers and proxies have."""
    return number(
        "grpcSignatureWindowSeconds",
        54_000,
        "how far the date that a gRPC client has signed may be from the clock of this server (s);"
        " 0: any date. The default has room for all time zones, since official clients sign their"
        " local time",
        low=0,
        own=True,
    )


def admin_addresses() -> Any:
    """Declare ``adminAddresses``, which brokers and name servers have."""
    return setting(
        "adminAddresses",
        NETWORKS,
        (),
        "addresses and networks from which requests may come that delete topics and groups or"
        " change settings, topics, groups, offsets, users, rules, routes and key-value entries;"
        " empty: any",
        default_text="empty",
        own=True,
    )


@attrs.frozen(kw_only=True)
class WriterSettings:
    """Who may change what a name server knows; a name server of RocketMQ checks nobody.

    authentication: refuse registrations and changes without the signature of one of the two users;
        reading stays open
    initial_user: the user of mqadmin: {"username":"NAME","password":"SECRET"}
    inner: the user of the brokers, the same as in their files:
        {"accessKey":"NAME","secretKey":"SECRET"}
    """

    authentication: bool = flag("authenticationEnabled", False, own=True)
    initial_user: Credentials | None = setting(
        "initAuthenticationUser", USER, None, default_text="empty", secret=True, own=True
    )
    admin_networks: tuple[AddressRange, ...] = admin_addresses()
    inner: Credentials | None = setting(
        "innerClientAuthenticationCredentials",
        INNER,
        None,
        default_text="empty",
        secret=True,
        own=True,
    )


@attrs.frozen(kw_only=True)
class ProxyAccessSettings:
    """The same at a proxy, which copies users and rules from a broker.

    authentication: refuse calls without the signature of a known user
    authorization: refuse what no rule allows the user; needs authenticationEnabled
    inner: the super user as which the proxy signs its requests to brokers:
        {"accessKey":"NAME","secretKey":"SECRET"}
    """

    authentication: bool = flag("authenticationEnabled", False)
    authorization: bool = flag("authorizationEnabled", False)
    date_window_seconds: int = date_window()
    inner: Credentials | None = setting(
        "innerClientAuthenticationCredentials",
        INNER,
        None,
        default_text="environment TRIOMQ_CREDENTIALS",
        secret=True,
    )


@attrs.frozen(kw_only=True)
class AccessSettings:
    """Who may do what; docs/security.md explains it.

    authentication: refuse requests without the signature of a known user (mqadmin user create)
    authorization: refuse what no rule allows the user (mqadmin acl create); needs
        authenticationEnabled
    certificate_users: on a TLS connection with a verified client certificate, the common name of
        its subject is the user of requests without an access key
    unauthenticated_codes: request codes that need no signature
    unauthorized_codes: request codes that every user may send
    initial_user: a super user that is created at the start if it is missing:
        {"username":"NAME","password":"SECRET"}
    inner: the super user as which this broker signs its own requests, the same on all brokers of a
        cluster: {"accessKey":"NAME","secretKey":"SECRET"}
    """

    authentication: bool = flag("authenticationEnabled", False)
    authorization: bool = flag("authorizationEnabled", False)
    date_window_seconds: int = date_window()
    certificate_users: bool = flag("tlsSubjectIsUser", False, own=True)
    unauthenticated_codes: frozenset[int] = setting(
        "authenticationWhitelist", CODES, frozenset(), default_text="empty"
    )
    unauthorized_codes: frozenset[int] = setting(
        "authorizationWhitelist", CODES, frozenset(), default_text="empty"
    )
    initial_user: Credentials | None = setting(
        "initAuthenticationUser", USER, None, default_text="empty", secret=True
    )
    admin_networks: tuple[AddressRange, ...] = admin_addresses()
    inner: Credentials | None = setting(
        "innerClientAuthenticationCredentials", INNER, None, default_text="empty", secret=True
    )


@attrs.frozen(kw_only=True)
class PlainAclSettings:
    """ACL 1.0, as brokers of RocketMQ 4.4 to 5.2 have it.

    enabled: refuse what the accounts of plainAclFile may not do (ACL 1.0); authenticationEnabled is
        its successor, and only one of them can be on
    path: the accounts of ACL 1.0; all .yml files of the folder acl beside it count, too. Empty:
        config/plain_acl.yml in storePathRootDir
    """

    enabled: bool = flag("aclEnable", False)
    path: str = optional_text("plainAclFile", own=True)


def check_plain_acl(
    settings: PlainAclSettings,
    access: AccessSettings,
    origins: Mapping[str, str],
    *,
    slave: bool = False,
) -> None:
    """Refuse both kinds of access control at once, and a slave without a user.

    Raises: ConfigError.
    """
    if settings.enabled and slave and access.inner is None:
        raise ConfigError(
            origins.get("aclEnable", ""),
            "a slave with aclEnable=true has no innerClientAuthenticationCredentials: its master"
            " would refuse to hand over tables",
            "write the same innerClientAuthenticationCredentials as in the master's file",
        )
    if settings.enabled and access.authentication:
        raise ConfigError(
            origins.get("aclEnable", ""),
            "aclEnable=true with authenticationEnabled=true: one request cannot have two users",
            "remove one of them; `mqadmin acl convert` makes users and rules of the accounts",
        )


def check_access(
    settings: AccessSettings | ProxyAccessSettings,
    origins: Mapping[str, str],
    *,
    slave: bool = False,
) -> None:
    """Refuse settings that would leave a door open, or nobody in. Raises: ConfigError."""
    if settings.authorization and not settings.authentication:
        raise ConfigError(
            origins.get("authorizationEnabled", ""),
            "authorizationEnabled=true without authenticationEnabled: rules would be for whoever"
            " the client says it is",
            "write authenticationEnabled=true as well",
        )
    if settings.authentication and slave and settings.inner is None:
        raise ConfigError(
            origins.get("authenticationEnabled", ""),
            "a slave with authenticationEnabled=true has no innerClientAuthenticationCredentials:"
            " its master would refuse to hand over tables, users and rules",
            "write the same innerClientAuthenticationCredentials as in the master's file",
        )


def check_admin_addresses(
    settings: AccessSettings | WriterSettings, origins: Mapping[str, str], *, claimed: bool
) -> None:
    """Refuse ``adminAddresses`` where every client may claim an address. Raises: ConfigError.

    *claimed*: whether a PROXY header is believed, and not needed.
    """
    if settings.admin_networks and claimed:
        raise ConfigError(
            origins.get("adminAddresses", ""),
            "adminAddresses with proxyProtocol=optional: every client can claim any address in a"
            " PROXY header",
            "write proxyProtocol=required, and let only the load balancer reach the port, or off",
        )
