"""Queue locks of orderly consumers: 41 and 42.

Source: remoting/…/protocol/body/LockBatchRequestBody.java, LockBatchResponseBody.java.
"""

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LockRequest(JsonBody):
    """Lock (41) or unlock (42) these queues for one client of a group."""

    consumer_group: str
    client_id: str
    queues: list[MessageQueue] = attrs.field(factory=list, metadata=named("mqSet"))
    only_this_broker: bool = False


@attrs.frozen(eq=False, repr=False)
class LockResponse(JsonBody):
    """The queues that the client holds now."""

    queues: list[MessageQueue] = attrs.field(factory=list, metadata=named("lockOKMQSet"))
