"""Static topics: which broker has which part of a logical queue (513, 351; inside 21, 103, 105).

Source: remoting/…/protocol/statictopic/TopicQueueMappingInfo.java, TopicQueueMappingDetail.java,
LogicQueueMappingItem.java, TopicConfigAndQueueMapping.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named
from triomq.remoting.protocol.bodies.topics import TopicConfig

GLOBAL_SCOPE = "__global__"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueuePart(JsonBody):
    """One part of a logical queue; its offset 0 on this broker is ``logic_offset`` for clients."""

    gen: int
    queue_id: int
    broker_name: str = attrs.field(metadata=json_name("bname"))
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueMapping(JsonBody):
    """The short form, in registrations and routes: logical queue -> queue of this broker."""

    topic: str
    broker_name: str = attrs.field(metadata=json_name("bname"))
    total_queues: int
    epoch: int = 0
    scope: str = GLOBAL_SCOPE
    dirty: bool = False
    queues: dict[int, int] | None = named("currIdMap", default=None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueMappingDetail(QueueMapping):
    """The body of 513: logical queue -> its parts, oldest first."""

    parts: dict[int, list[QueuePart]] = named("hostedQueues", factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TopicConfigAndMapping(TopicConfig):
    """The answer to 351."""

    mapping_detail: QueueMappingDetail | None = None
