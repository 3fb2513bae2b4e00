"""Where the servers are, and how to connect to them.

Name servers are given, found in the environment or listed by an address server; TLS, signing and
proxies are given or found in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from triomq.client.core.errors import NoNameServer, SettingsError
from triomq.remoting.client.access import Access
from triomq.remoting.client.discovery import (
    DEFAULT_SUBGROUP,
    FETCH_SECONDS,
    address_server_url,
    fetch_addresses,
    is_address_server,
)
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.core.address import parse_address_list
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

NAMESRV_VARIABLE = "NAMESRV_ADDR"
DOMAIN_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN"
SUBGROUP_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP"


def namesrv_addresses(
    value: str | Iterable[str] | None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the addresses of the name servers: the given ones, otherwise the environment's.

    ``value`` is ``"a:9876;b:9876"`` or an iterable of such texts. A web address,
    ``"http://host:8080/rocketmq/nsaddr"``, stands for the list that it answers with; the session
    requests it. Without ``value``, ``NAMESRV_ADDR`` has the same form; without that,
    ``ROCKETMQ_NAMESRV_DOMAIN`` (and ``ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP``) name a web address.

    Raises: ``NoNameServer`` if there are none; ``SettingsError`` if one is not ``host:port``.
    """
    if value is None:
        variables = os.environ if environment is None else environment
        value = variables.get(NAMESRV_VARIABLE, "")
        if not value.strip() and variables.get(DOMAIN_VARIABLE, "").strip():
            value = address_server_url(
                variables[DOMAIN_VARIABLE], variables.get(SUBGROUP_VARIABLE) or DEFAULT_SUBGROUP
            )
    if isinstance(value, str) and is_address_server(value):
        return (value.strip(),)
    if not isinstance(value, str):
        given = value
        value = (
            None
            if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable)
            else tuple(given)
        )
        if value is None or not all(isinstance(part, str) for part in value):
            raise SettingsError(
                f"name server addresses must be a text or a list of texts, not {given!r}; write"
                " 'host:port', several separated by ';'"
            )
    text = value if isinstance(value, str) else ";".join(value)
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise NoNameServer({})
    try:
        parse_address_list(";".join(addresses))
    except ValueError as error:
        raise SettingsError(
            f"name server addresses {text!r}: {error}; write 'host:port', several separated by ';'"
        ) from None
    return tuple(dict.fromkeys(addresses))


async def listed_name_servers(url: str, timeout: float = FETCH_SECONDS) -> tuple[str, ...]:
    """Return the name servers that an address server lists. Raises: ``NoNameServer``."""
    try:
        return await fetch_addresses(url, timeout)
    except RemotingError as error:
        raise NoNameServer({url: str(error)}) from error


def checked_access(
    tls: Tls | None,
    credentials: Credentials | None,
    serialize: SerializeType | None = None,
    socks_proxies: str = "",
) -> Access:
    """Return the given access settings, completed from the environment, with their files loaded.

    Raises: ``SettingsError``.
    """
    try:
        socks = SocksProxies.parse(socks_proxies)
        access = Access(
            tls=tls, credentials=credentials, serialize=serialize, socks=socks
        ).or_environment()
        access.check()
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    return access
