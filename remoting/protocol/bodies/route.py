"""The route of a topic, the answer to GET_ROUTEINFO_BY_TOPIC (105), and the name of one queue.

Source: remoting/…/protocol/route/TopicRouteData.java, QueueData.java, BrokerData.java,
common/…/MessageQueue.java.
"""

from collections.abc import Iterable
from typing import Any, Self

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody, escape_non_ascii, json_name
from triomq.remoting.protocol.fastjson import JsonLimits

MASTER_ID = 0

QUEUES_MAX = 65_535
"""Queues of one topic on one broker. A client makes an object of each queue."""
ROUTE_QUEUES_MAX = 1_000_000
"""Queues of one topic on all brokers."""

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4


@attrs.frozen(order=True)
class MessageQueue(JsonBody):
    """One queue of one broker; sorts by topic, broker and number, as allocation needs."""

    topic: str
    broker_name: str
    queue_id: int


@attrs.frozen(eq=False, repr=False)
class QueueData(JsonBody):
    """The number of queues of the topic that a broker has; queue numbers begin at 0."""

    broker_name: str
    read_queue_count: int = attrs.field(metadata=json_name("readQueueNums"))
    write_queue_count: int = attrs.field(metadata=json_name("writeQueueNums"))
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
    def decode(cls, data: bytes | memoryview, limits: JsonLimits | None = None) -> Self:
        """Return the route in a body.

        Raises: RemoteProtocolError if the body is not a route, or has too many queues.
        """
        route = super().decode(data, limits)
        check_queue_counts(route.queue_datas)
        return route

    @property
    def masters(self) -> dict[str, str]:
        """Broker name -> ``ip:port`` of its master; names without a master are left out."""
        return {
            broker.broker_name: broker.broker_addrs[MASTER_ID]
            for broker in self.broker_datas
            if MASTER_ID in broker.broker_addrs
        }

    def encode_standard(self) -> bytes:
        """Return standard JSON: quoted ids, ASCII only.

        For peers of version 401 or later, and for those that ask for it.
        """
        return escape_non_ascii(self.encode())

    def encode_legacy(self) -> bytes:
        """Return JSON whose ids have no quotes, for older peers."""
        return self.encode(bare_keys=True)


def check_queue_counts(queue_datas: Iterable[QueueData]) -> None:
    """Check the number of queues of a route.

    Raises: RemoteProtocolError with the broker, the count, the limit and the fix.
    """
    total = 0
    for data in queue_datas:
        count = max(data.read_queue_count, data.write_queue_count)
        total += max(count, 0)
        if count > QUEUES_MAX:
            raise RemoteProtocolError(
                f"a route has {count:,} queues of the topic on broker {data.broker_name}, and"
                f" {QUEUES_MAX:,} is the limit",
                "create the topic there with fewer (mqadmin topic create -b … -r … -w …), or delete"
                f" it on {data.broker_name}",
            )
    if total > ROUTE_QUEUES_MAX:
        raise RemoteProtocolError(
            f"a route has {total:,} queues on all brokers, and {ROUTE_QUEUES_MAX:,} is the limit",
            "create the topic with fewer queues, or on fewer brokers",
        )
