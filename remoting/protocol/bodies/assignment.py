"""Rebalance by the broker: 400, 401, 402.

Source: remoting/…/protocol/body/QueryAssignmentRequestBody.java, SetMessageRequestModeRequestBody.java and their neighbours.
"""

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueryAssignmentRequest(JsonBody):
    """400. Strategies: ``AVG``, ``AVG_BY_CIRCLE``."""

    topic: str
    consumer_group: str
    client_id: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueAssignment(JsonBody):
    """A queue (number -1: any of the broker) and how to read it, ``PULL`` or ``POP``."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


@attrs.frozen(eq=False, repr=False)
class QueryAssignmentResponse(JsonBody):
    """Absent assignments mean "keep what you have", an empty list "drop everything"."""

    assignments: list[QueueAssignment] | None = attrs.field(default=None, metadata=named("messageQueueAssignments"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MessageRequestMode(JsonBody):
    """401."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_count: int = attrs.field(default=0, metadata=named("popShareQueueNum"))


@attrs.frozen(eq=False, repr=False)
class MessageRequestModeTable(JsonBody):
    """402: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = attrs.field(factory=dict)
