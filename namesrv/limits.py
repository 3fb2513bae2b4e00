"""How much brokers and operators may make a name server keep.

Nobody logs in to a name server, so anything may be registered; the limits keep a flood from taking its memory and its time.
"""

from __future__ import annotations

import attrs

from triomq.remoting.limits import Limits
from triomq.remoting.settings import INTEGER, setting

_MOST = 100_000_000


@attrs.frozen(kw_only=True)
class LimitSettings:
    """The limits of a name server's tables."""

    brokers_max: int = setting("brokersMax", INTEGER, 10_000, "broker processes that may be registered at once", low=1, high=_MOST, own=True)
    topics_max: int = setting("topicsMax", INTEGER, 200_000, "topics in the routes; a registration with more is taken without the rest", low=1, high=_MOST, own=True)
    filter_servers_max: int = setting("filterServersMax", INTEGER, 100, "filter servers of one broker, which every route names", low=1, high=_MOST, own=True)
    kv_bytes_max: int = setting(
        "kvConfigBytesMax", INTEGER, 4 * 1024 * 1024, "bytes of the key-value table, which is written as a whole at each change", low=1, high=_MOST, own=True
    )


def namesrv_limits(settings: LimitSettings | None = None) -> Limits:
    """Return the limits of one name server, with their counters."""
    return Limits(settings or LimitSettings(), "name server")
