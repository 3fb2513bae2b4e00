"""Routes and assignments for 5.x clients."""

from __future__ import annotations

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.route_answers import (
    accepted_types,
    assignments,
    endpoints,
    message_queues,
)
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute

Permission = pb.Permission
TOPIC = pb.Resource(resource_namespace="tenant", name="orders")


def where(broker_name: str, broker_id: int) -> pb.Endpoints:
    return endpoints(f"{broker_name}.example", 8081 + broker_id)


def route(*queues: QueueData, ids: tuple[int, ...] = (0,)) -> TopicRoute:
    addresses = dict.fromkeys(ids, "127.0.0.1:1")
    return TopicRoute(
        list(queues), [BrokerData("c", data.broker_name, addresses) for data in queues]
    )


@pytest.mark.parametrize(
    ("reads", "writes", "perm", "expected"),
    [
        (2, 2, 6, ["READ_WRITE"] * 2),
        (3, 2, 6, ["READ"] + ["READ_WRITE"] * 2),
        (1, 3, 6, ["WRITE"] * 2 + ["READ_WRITE"]),
        (1, 3, 4, ["READ"]),
        (1, 3, 2, ["WRITE"] * 3),
        (1, 3, 0, ["NONE"] * 3),
        (0, 0, 0, ["NONE"]),
        (0, 0, 6, []),
        (2, 2, 6 | 8 | 1, ["READ_WRITE"] * 2),  # bits of other meaning
        (2, 2, 8, ["NONE"] * 2),
        (-1, 2, 6, ["WRITE"] * 2),
    ],
)
def test_queues_are_numbered_by_permission(
    reads: int, writes: int, perm: int, expected: list[str]
) -> None:
    queues = message_queues(
        TOPIC, route(QueueData("broker-a", reads, writes, perm)), accepted_types(None), where
    )
    assert [queue.id for queue in queues] == list(range(len(expected)))
    assert [Permission.Name(queue.permission) for queue in queues] == expected


def test_every_field_of_a_queue() -> None:
    found = message_queues(TOPIC, route(QueueData("broker-a", 1, 1)), accepted_types("FIFO"), where)
    assert found == [
        pb.MessageQueue(
            topic=TOPIC,
            id=0,
            permission=Permission.READ_WRITE,
            broker=pb.Broker(
                name="broker-a",
                id=0,
                endpoints=pb.Endpoints(
                    scheme=pb.AddressScheme.DOMAIN_NAME,
                    addresses=[pb.Address(host="broker-a.example", port=8081)],
                ),
            ),
            accept_message_types=[pb.MessageType.FIFO],
        )
    ]


def test_slaves_and_brokers_without_an_address() -> None:
    found = route(QueueData("broker-a", 1, 1), QueueData("broker-b", 2, 2), ids=(2, 0))
    found.queue_datas.append(QueueData("gone", 4, 4))
    queues = message_queues(TOPIC, found, accepted_types(None), where)
    assert [(queue.broker.name, queue.broker.id, queue.id) for queue in queues] == [
        ("broker-a", 0, 0),
        ("broker-a", 2, 0),
        ("broker-b", 0, 0),
        ("broker-b", 0, 1),
        ("broker-b", 2, 0),
        ("broker-b", 2, 1),
    ]
    assert {queue.broker.endpoints.addresses[0].port for queue in queues} == {8081, 8083}


def test_assignments_of_a_group_are_whole_brokers() -> None:
    found = route(QueueData("broker-a", 4, 4), QueueData("broker-b", 2, 2, 4), ids=(0, 1))
    made = assignments(TOPIC, found, where, fifo=False)
    queues = [assignment.message_queue for assignment in made]
    assert [(queue.broker.name, queue.broker.id, queue.id) for queue in queues] == [
        ("broker-a", 0, -1),
        ("broker-b", 0, -1),
    ]
    assert [queue.permission for queue in queues] == [Permission.READ_WRITE, Permission.READ]
    assert queues[0].topic == TOPIC


def test_assignments_of_a_group_in_order_are_queues() -> None:
    found = route(QueueData("broker-a", 3, 1), QueueData("broker-b", 1, 1))
    queues = [
        assignment.message_queue for assignment in assignments(TOPIC, found, where, fifo=True)
    ]
    assert [(queue.broker.name, queue.id) for queue in queues] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-a", 2),
        ("broker-b", 0),
    ]


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize(
    "found",
    [
        route(QueueData("broker-a", 4, 4, 2)),
        route(QueueData("broker-a", 0, 4)),
        route(QueueData("broker-a", 4, 4), ids=(1, 2)),
        TopicRoute(),
    ],
)
def test_nothing_to_read(found: TopicRoute, fifo: bool) -> None:
    with pytest.raises(Refused, match="no readable queue of topic orders") as refused:
        assignments(TOPIC, found, where, fifo=fifo)
    assert refused.value.code == pb.Code.FORBIDDEN


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        (None, ["NORMAL"]),
        ("NORMAL", ["NORMAL"]),
        ("FIFO", ["FIFO"]),
        ("DELAY", ["DELAY"]),
        ("TRANSACTION", ["TRANSACTION"]),
        ("MIXED", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]),
        ("UNSPECIFIED", ["MESSAGE_TYPE_UNSPECIFIED"]),
        ("LITE", ["MESSAGE_TYPE_UNSPECIFIED"]),
    ],
)
def test_types_that_a_topic_takes(attribute: str | None, expected: list[str]) -> None:
    assert [pb.MessageType.Name(kind) for kind in accepted_types(attribute)] == expected


@pytest.mark.parametrize(
    ("host", "plain", "scheme"),
    [
        ("192.0.2.7", "192.0.2.7", "IPv4"),
        ("2001:db8::7", "2001:db8::7", "IPv6"),
        ("[2001:db8::7]", "2001:db8::7", "IPv6"),
        ("fe80::1%eth0", "fe80::1%eth0", "IPv6"),
        ("broker_a.example", "broker_a.example", "DOMAIN_NAME"),
        ("localhost", "localhost", "DOMAIN_NAME"),
        ("1.2.3", "1.2.3", "DOMAIN_NAME"),
    ],
)
def test_endpoints(host: str, plain: str, scheme: str) -> None:
    made = endpoints(host, 8081)
    assert pb.AddressScheme.Name(made.scheme) == scheme
    assert list(made.addresses) == [pb.Address(host=plain, port=8081)]
