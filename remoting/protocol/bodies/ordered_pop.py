"""What is in flight of orderly POP groups: the file consumerOrderInfo.json.

Source: broker/offset/ConsumerOrderInfoManager.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OrderedPopBody(JsonBody):
    """The last pop of one queue by one group."""

    pop_time: int = 0
    invisible_ms: int = attrs.field(default=0, metadata=json_name("i"))
    offsets: list[int] = named("o", factory=list)
    """The first one, then what each lies behind the first."""
    visible_at: dict[int, int] = named("ot", factory=dict)
    """Offset -> when it is visible again (ms), if not with the others."""
    counts: dict[int, int] = named("oc", factory=dict)
    """Offset -> how often it was popped before."""
    last_ms: int = attrs.field(default=0, metadata=json_name("l"))
    bits: int = attrs.field(default=0, metadata=json_name("cm"))
    """Bit i: the i-th message is acknowledged."""
    attempt_id: str | None = named("a", default=None)
    done: list[int] | None = named("done", default=None)
    """Ours, Java ignores it: acknowledged offsets that the last pop did not read."""


@attrs.frozen(eq=False, repr=False)
class OrderedPopTable(JsonBody):
    """``topic@group`` -> queue id -> its last pop."""

    table: dict[str, dict[int, OrderedPopBody]] = attrs.field(factory=dict)
