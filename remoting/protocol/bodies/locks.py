"""Queue locks of orderly consumers: 41 and 42.

Source: remoting/…/protocol/body/LockBatchRequestBody.java, LockBatchResponseBody.java.
"""

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LockRequest(JsonBody):
    """The queues to lock (41) or to unlock (42) for one client of a group."""

    consumer_group: str
    client_id: str
    queues: list[MessageQueue] = named("mqSet", factory=list)
    only_this_broker: bool = False


@attrs.frozen(eq=False, repr=False)
class LockResponse(JsonBody):
    """Answer to 41: the queues whose locks the client holds."""

    queues: list[MessageQueue] = named("lockOKMQSet", factory=list)
