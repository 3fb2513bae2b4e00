"""What a connector is made with."""

from collections.abc import Sequence

import attrs
from attrs import validators

from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.client.rpc_hooks import RpcHook
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.tls.client import Tls


@attrs.frozen(kw_only=True)
class ConnectorConfig:
    """The settings of one connector.

    ``peer_requests_max``: how many requests of servers are answered at once. ``tls``: every
    connection uses TLS; None: no connection does. ``socks``: the proxies that lead to servers.
    ``hooks`` see every request, in this order. ``busy_poll``: ask the sockets for up to 150 µs
    whether an answer has come before the loop sleeps (``remoting/busy_poll``).
    """

    connect_seconds: float = attrs.field(default=3.0, validator=validators.gt(0))
    idle_seconds: float = attrs.field(default=120.0, validator=validators.gt(0))
    frame_max_bytes: int = attrs.field(default=FRAME_BYTES_MAX, validator=validators.ge(64))
    outbox_high_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=validators.ge(1))
    peer_requests_max: int = attrs.field(default=64, validator=validators.ge(1))
    tls: Tls | None = None
    socks: SocksProxies = attrs.field(factory=SocksProxies)
    hooks: Sequence[RpcHook] = ()
    busy_poll: bool = True
