"""Choose the SOCKS5 proxy for a server from Java's ``socksProxyConfig``.

::

    {
        "10.0.0.0/8": {"addr": "proxy:1080", "username": "me", "password": "secret"},
        "0.0.0.0/0": {"addr": "[::1]:1080"}
    }

The first range that contains the server's address is used; ``0.0.0.0/0`` stands for every server,
including host names. An empty object: no proxies.

Source: remoting/…/netty/NettyRemotingClient.java (getProxy), proxy/SocksProxyConfig.java.
"""

from __future__ import annotations

import ipaddress
import socket

import attrs

from triomq.remoting.core.address import parse_address
from triomq.remoting.core.config_error import ConfigError
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.short_repr import short_count
from triomq.remoting.protocol.socks import SocksDialogue
from triomq.remoting.protocol.structs import msgspec

EVERY_SERVER = "0.0.0.0/0"
_EXAMPLE = 'write {"0.0.0.0/0":{"addr":"host:1080"}}'


@attrs.frozen
class SocksProxy:
    """One proxy; ``username`` is empty if the proxy needs none."""

    address: str
    username: str = ""
    password: str = attrs.field(default="", repr=False)


@attrs.frozen
class SocksProxies:
    """(range, proxy) in the order in which they are tried."""

    ranges: tuple[tuple[str, SocksProxy], ...] = attrs.field(default=(), repr=short_count)

    @classmethod
    def parse(cls, text: str) -> SocksProxies:
        """Read Java's JSON text. Raises: ConfigError."""
        try:
            document = msgspec.json.decode(text or "{}")
        except msgspec.DecodeError as error:
            raise ConfigError("socksProxyConfig", f"is not JSON ({error})", _EXAMPLE) from None
        if not isinstance(document, dict):
            raise ConfigError("socksProxyConfig", "is not a JSON object", _EXAMPLE)
        return cls(tuple((cidr, _proxy(cidr, entry)) for cidr, entry in document.items()))

    def for_host(self, host: str) -> SocksProxy | None:
        """Return the proxy to a server, None for a direct connection."""
        for cidr, proxy in self.ranges:
            if cidr == EVERY_SERVER or _holds(cidr, host):
                return proxy
        return None


def _proxy(cidr: str, entry: object) -> SocksProxy:
    try:
        ipaddress.ip_network(cidr, strict=False)
        if not isinstance(entry, dict) or not isinstance(entry.get("addr"), str):
            raise ValueError("has no addr")
        parse_address(entry["addr"])
        texts = [entry.get(name) or "" for name in ("username", "password")]
        return SocksProxy(entry["addr"], *map(str, texts))
    except ValueError as error:
        raise ConfigError("socksProxyConfig", f"{cidr}: {error}", _EXAMPLE) from None


def _holds(cidr: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]) in ipaddress.ip_network(
            cidr, strict=False
        )
    except ValueError:
        return False  # a host name: only the range of every server contains it


def dial_through_blocking(proxy: SocksProxy, host: str, port: int, timeout: float) -> socket.socket:
    """Return a socket that is connected through a proxy, which looks the host up.

    Raises: OSError, RemoteProtocolError.
    """
    dialogue = SocksDialogue(host, port, proxy.username, proxy.password)
    sock = socket.create_connection(parse_address(proxy.address), timeout)
    try:
        sock.sendall(dialogue.start())
        while not dialogue.done:
            got = sock.recv(dialogue.wanted())
            if not got:
                raise proxy_left(proxy)
            sock.sendall(dialogue.received(got))
    except BaseException:
        sock.close()
        raise
    return sock


def proxy_left(proxy: SocksProxy) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the SOCKS proxy {proxy.address} closed the connection",
        "check socksProxyConfig and the proxy",
    )
