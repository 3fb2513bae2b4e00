"""Bodies for assigning queues to consumers in the broker: requests 400, 401 and 402.

Source: remoting/…/protocol/body/QueryAssignmentRequestBody.java,
SetMessageRequestModeRequestBody.java and the classes beside them.
"""

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueryAssignmentRequest(JsonBody):
    """The body of QUERY_ASSIGNMENT (400). The strategy is ``AVG`` or ``AVG_BY_CIRCLE``."""

    topic: str
    consumer_group: str
    client_id: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueAssignment(JsonBody):
    """A queue of a consumer, and how it reads the queue: ``PULL`` or ``POP``.

    Queue id -1 stands for all queues of the broker.
    """

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


@attrs.frozen(eq=False, repr=False)
class QueryAssignmentResponse(JsonBody):
    """The answer to 400. None: the consumer keeps its queues; an empty list: it loses them all."""

    assignments: list[QueueAssignment] | None = named("messageQueueAssignments", default=None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MessageRequestMode(JsonBody):
    """The body of SET_MESSAGE_REQUEST_MODE (401): how a group reads a topic."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_count: int = named("popShareQueueNum", default=0)


@attrs.frozen(eq=False, repr=False)
class MessageRequestModeTable(JsonBody):
    """The answer to GET_ALL_MESSAGE_REQUEST_MODE (402): topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = attrs.field(factory=dict)
