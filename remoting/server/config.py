"""What one server is made with. The defaults are those of the benchmarks."""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs
from attrs import validators

from triomq.remoting.server.connection import BytesFilter, Connection
from triomq.remoting.server.poller import Poller, open_poller
from triomq.remoting.server.request_hooks import RequestHook


@attrs.frozen(kw_only=True)
class PoolConfig:
    """Limits of one business pool.

    ``workers``: how many batches may wait at once, for durability or for another server; more
    workers are not faster. ``wait_ms_max``: how long a request may be in the queue before it is
    refused as Java does (0: without limit).
    """

    workers: int = attrs.field(default=1, validator=validators.ge(1))
    queue_requests_max: int = attrs.field(default=10_000, validator=validators.ge(1))
    queue_bytes_max: int = attrs.field(default=64 * 1024 * 1024, validator=validators.ge(1))
    wait_ms_max: int = attrs.field(default=0, validator=validators.ge(0))


@attrs.frozen(kw_only=True)
class SidePort:
    """A second port with the same handlers and pools, but without ``exclude_codes``.

    ``setting``: named in the error when the port cannot be opened.
    """

    name: str
    port: int = attrs.field(validator=[validators.ge(0), validators.le(65535)])
    exclude_codes: frozenset[int] = frozenset()
    setting: str = ""


@attrs.frozen(kw_only=True)
class ServerConfig:
    """One listening server.

    ``pools``: every pool that the handler table uses. ``selector_count`` and ``codec_count`` affect
    fairness, not speed. ``filter_factory`` may give each connection a ``BytesFilter``, such as TLS.
    ``request_hooks`` see every request before its pool does, in this order; a hook that raises
    ``Rejected`` answers in the handler's place. Requests that take longer than ``slow_seconds`` are
    logged.
    """

    host: str = "0.0.0.0"
    port: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(65535)])
    side_ports: Sequence[SidePort] = ()
    port_setting: str = ""  # named in the error when the port cannot be opened
    backlog: int = attrs.field(default=1024, validator=validators.ge(1))
    selector_count: int = attrs.field(default=1, validator=validators.ge(1))
    codec_count: int = attrs.field(default=1, validator=validators.ge(1))
    pools: Mapping[str, PoolConfig] = attrs.Factory(lambda: {"default": PoolConfig()})
    frame_max_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=validators.ge(64))
    connections_max: int = attrs.field(default=50_000, validator=validators.ge(1))
    address_connections_max: int = 0
    """0: only ``connections_max`` limits."""
    idle_seconds: float = attrs.field(default=120.0, validator=validators.gt(0))
    outbox_high_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=validators.ge(1))
    outbox_hard_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=validators.ge(1))
    buffers_max_bytes: int = attrs.field(default=1024 * 1024 * 1024, validator=validators.ge(1))
    drain_seconds: float = attrs.field(default=5.0, validator=validators.ge(0))
    slow_seconds: float = math.inf
    poller_factory: Callable[[], Poller] = open_poller
    filter_factory: Callable[[Connection], BytesFilter | None] | None = None
    request_hooks: Sequence[RequestHook] = ()
    checks_callers: bool = attrs.field(
        default=attrs.Factory(lambda self: bool(self.request_hooks), takes_self=True)
    )
    """Whether hooks refuse strangers; otherwise the start warns of an open port."""
