"""Routes and assignments in the form of the service. PURE.

Source: proxy/grpc/v2/route/RouteActivity.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

from triomq.remoting.core.address import bare_host
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)

WHOLE_BROKER = -1
"""The queue id of an assignment that stands for all queues of a broker."""
EndpointsOf = Callable[[str, int], pb.Endpoints]
"""Returns where clients reach the service of a broker: by its name and its id."""

_TYPES = {
    "NORMAL": (pb.MessageType.NORMAL,),
    "FIFO": (pb.MessageType.FIFO,),
    "DELAY": (pb.MessageType.DELAY,),
    "TRANSACTION": (pb.MessageType.TRANSACTION,),
    "MIXED": (
        pb.MessageType.NORMAL,
        pb.MessageType.FIFO,
        pb.MessageType.DELAY,
        pb.MessageType.TRANSACTION,
    ),
}
_PERMISSIONS = {
    0: pb.Permission.NONE,
    PERM_READ: pb.Permission.READ,
    PERM_WRITE: pb.Permission.WRITE,
    PERM_READ | PERM_WRITE: pb.Permission.READ_WRITE,
}


def accepted_types(message_type_attribute: str | None) -> tuple[pb.MessageType, ...]:
    """Return the types that a topic takes, by its attribute ``message.type``; NORMAL without."""
    if message_type_attribute is None:
        return _TYPES["NORMAL"]
    return _TYPES.get(message_type_attribute, (pb.MessageType.MESSAGE_TYPE_UNSPECIFIED,))


def message_queues(
    topic: pb.Resource,
    route: TopicRoute,
    accepted: Sequence[pb.MessageType],
    endpoints_of: EndpointsOf,
) -> list[pb.MessageQueue]:
    """Return the answer to QueryRoute: each queue once for each broker id, slaves included.

    ``topic``: as the client named it.
    """
    return [
        pb.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=permission,
            broker=broker,
            accept_message_types=accepted,
        )
        for queues, data in _brokers(route)
        for broker_id in sorted(data.broker_addrs)
        for broker in (_broker(data.broker_name, broker_id, endpoints_of),)
        for queue_id, permission in enumerate(_permissions(queues))
    ]


def _permissions(queues: QueueData) -> Iterator[pb.Permission]:
    """Yield the permission of each queue id: those only to read, only to write, then for both.

    A topic without permissions has at least one queue, so that clients see why it fails.
    """
    reads, writes = max(queues.read_queue_count, 0), max(queues.write_queue_count, 0)
    permission = queues.perm & (PERM_READ | PERM_WRITE)
    if not permission:
        yield from [pb.Permission.NONE] * max(1, reads, writes)
        return
    if not permission & PERM_READ:
        reads = 0
    if not permission & PERM_WRITE:
        writes = 0
    both = min(reads, writes)
    yield from [pb.Permission.READ] * (reads - both)
    yield from [pb.Permission.WRITE] * (writes - both)
    yield from [pb.Permission.READ_WRITE] * both


def assignments(
    topic: pb.Resource, route: TopicRoute, endpoints_of: EndpointsOf, *, fifo: bool
) -> list[pb.Assignment]:
    """Return the answer to QueryAssignment: the masters of which the topic can be read.

    ``fifo``: whether the group consumes in order, and gets each queue by itself.

    Raises: Refused (FORBIDDEN) if no queue can be read.
    """
    found = [
        pb.Assignment(
            message_queue=pb.MessageQueue(
                topic=topic,
                id=queue_id,
                permission=_PERMISSIONS[queues.perm & (PERM_READ | PERM_WRITE)],
                broker=broker,
            )
        )
        for queues, data in _brokers(route)
        if queues.perm & PERM_READ and queues.read_queue_count > 0
        if MASTER_ID in data.broker_addrs
        for broker in (_broker(data.broker_name, MASTER_ID, endpoints_of),)
        for queue_id in (range(queues.read_queue_count) if fifo else (WHOLE_BROKER,))
    ]
    if not found:
        raise Refused(
            pb.Code.FORBIDDEN,
            f"no readable queue of topic {topic.name}: its permission (mqadmin topic permission) or"
            " the permission of its brokers forbids it, or no master is there",
        )
    return found


def endpoints(host: str, port: int) -> pb.Endpoints:
    """Return an address with the scheme of its form; an IPv6 address may have brackets."""
    host = bare_host(host)
    try:
        version = ip_address(host).version
    except ValueError:
        scheme = pb.AddressScheme.DOMAIN_NAME
    else:
        scheme = pb.AddressScheme.IPv6 if version == 6 else pb.AddressScheme.IPv4
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])


def _brokers(route: TopicRoute) -> Iterator[tuple[QueueData, BrokerData]]:
    """Yield each broker name of a route with its queues."""
    brokers = {data.broker_name: data for data in route.broker_datas}
    for queues in route.queue_datas:
        if (data := brokers.get(queues.broker_name)) is not None:
            yield queues, data


def _broker(name: str, broker_id: int, endpoints_of: EndpointsOf) -> pb.Broker:
    return pb.Broker(name=name, id=broker_id, endpoints=endpoints_of(name, broker_id))
