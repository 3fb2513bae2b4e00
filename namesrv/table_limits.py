"""The limits of what brokers and operators may store in a name server.

A name server has no login, so any peer may register anything; the limits keep a flood from using up
its memory and time.
"""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import number
from triomq.remoting.protocol.limits import Limits

_MOST = 100_000_000


@attrs.frozen(kw_only=True)
class NamesrvTableLimits:
    """The limits of a name server's tables.

    brokers_max: broker processes that may be registered at once
    topics_max: topics in the routes; a registration with more is taken without the rest
    filter_servers_max: filter servers of one broker, which every route names
    kv_bytes_max: bytes of the key-value table, which is written as a whole at each change
    """

    brokers_max: int = number("brokersMax", 10_000, high=_MOST, own=True)
    topics_max: int = number("topicsMax", 200_000, high=_MOST, own=True)
    filter_servers_max: int = number("filterServersMax", 100, high=_MOST, own=True)
    kv_bytes_max: int = number("kvConfigBytesMax", 4 * 1024 * 1024, high=_MOST, own=True)


def namesrv_limits(settings: NamesrvTableLimits | None = None) -> Limits:
    """Return the limits of one name server, with their counters."""
    return Limits(settings or NamesrvTableLimits(), "name server")
