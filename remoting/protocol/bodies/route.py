"""Where a topic lives: the answer to GET_ROUTEINFO_BY_TOPIC (105), and the name of one queue.

Source: remoting/…/protocol/route/TopicRouteData.java, QueueData.java, BrokerData.java, common/…/MessageQueue.java.
"""

from collections.abc import Iterable
from typing import Any, Self

import attrs

from triomq.remoting.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody, escape_non_ascii, named

MASTER_ID = 0

QUEUES_MAX = 65_535
"""Of one topic on one broker.  A client makes an object of each queue."""
ROUTE_QUEUES_MAX = 1_000_000
"""Of one topic on all brokers together."""

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_PRIORITY = 8


@attrs.frozen(order=True)
class MessageQueue(JsonBody):
    """One queue of one broker; sorts by topic, broker, number, as allocation needs it."""

    topic: str
    broker_name: str
    queue_id: int


@attrs.frozen(eq=False, repr=False)
class QueueData(JsonBody):
    """How many queues of the topic a broker has. Queue numbers run from 0."""

    broker_name: str
    read_queue_count: int = attrs.field(metadata=named("readQueueNums"))
    write_queue_count: int = attrs.field(metadata=named("writeQueueNums"))
    perm: int = 6
    topic_sys_flag: int = 0


@attrs.frozen(eq=False, repr=False)
class BrokerData(JsonBody):
    """The processes behind one broker name: id -> ``ip:port``; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None


@attrs.frozen(eq=False, repr=False)
class TopicRoute(JsonBody):
    queue_datas: list[QueueData] = attrs.field(factory=list)
    broker_datas: list[BrokerData] = attrs.field(factory=list)
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = attrs.field(factory=dict)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None

    @classmethod
    def decode(cls, data: bytes | memoryview, loose_bytes_max: int | None = None) -> Self:
        """Read a body; RemoteProtocolError if it is not a route, or has more queues than the limits."""
        route = super().decode(data, loose_bytes_max)
        check_queue_counts(route.queue_datas)
        return route

    def encode_standard(self) -> bytes:
        """Standard JSON: quoted ids, ASCII only; for peers of version 401 or above, and who ask for it."""
        return escape_non_ascii(self.encode())

    def encode_legacy(self) -> bytes:
        """Ids without quotes, for older peers."""
        return self.encode(bare_keys=True)


def check_queue_counts(queue_datas: Iterable[QueueData]) -> None:
    """Refuse a route with too many queues: RemoteProtocolError names the broker, the count, the limit and the fix."""
    total = 0
    for data in queue_datas:
        count = max(data.read_queue_count, data.write_queue_count)
        total += max(count, 0)
        if count > QUEUES_MAX:
            raise RemoteProtocolError(
                f"a route has {count:,} queues of the topic on broker {data.broker_name}, and {QUEUES_MAX:,} is the most",
                f"create the topic there with fewer (mqadmin updateTopic -b … -r … -w …), or delete it on {data.broker_name}",
            )
    if total > ROUTE_QUEUES_MAX:
        raise RemoteProtocolError(f"a route has {total:,} queues on all brokers, and {ROUTE_QUEUES_MAX:,} is the most", "create the topic with fewer queues, or on fewer brokers")
