"""The repr of everything that users hold is short, shows no bodies and no secrets.

That holds with 2,000 messages, too.
"""

from __future__ import annotations

import enum
import inspect
import random
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio

import triomq
import triomq.testing
from triomq import (
    Admin,
    AssignmentChange,
    Attempt,
    BusyBackoff,
    CheckedMessage,
    ClientSettings,
    ConsumeContext,
    ConsumerSettings,
    ConsumerStatistics,
    Credentials,
    LeasedMessage,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    SendReceipt,
    SendStatus,
    SimpleConsumer,
    Sql,
    Tls,
    TopicRates,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    TrioMQError,
    aio,
    sync,
)
from triomq.client.core.errors import broker_error
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.pop.lease_times import Lease
from triomq.client.receiving.process_queue import ProcessQueue
from triomq.in_process import InProcessBroker, InProcessCluster, InProcessNameServer, _Running
from triomq.remoting.client.access import Access
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.protocol.receipt_handle import ReceiptHandle
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.simulated.simulate import Simulation, Trace

BODY = b"the body of somebody else " * 4_000
SECRETS = {"access_key": "AKIDACCESSKEY", "secret_key": "SECRETKEY", "security_token": "TOKEN"}
LONG = "x" * 5_000
QUEUE = MessageQueue("Orders", "broker-a", 0)
QUEUES = tuple(MessageQueue("Orders", "broker-a", number) for number in range(2_000))
CREDENTIALS = Credentials(**SECRETS)
PROXIES = '{"0.0.0.0/0": {"addr": "host:1080", "username": "u", "password": "SOCKSPASSWORD"}}'
CLIENT = ClientSettings(credentials=CREDENTIALS, socks_proxies=PROXIES)


def stored(offset: int = 0) -> StoredMessage:
    properties = (
        f"TAGS\x01{LONG}\x02UNIQ_KEY\x01{'7F' * 16}\x02card\x01{BODY[:50].decode()}\x02".encode()
    )
    return StoredMessage(
        "Orders", 0, offset, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, BODY, 0, properties
    )


def received() -> ReceivedMessage:
    """Return one of 2,000 messages that a queue holds."""
    held: ProcessQueue = ProcessQueue(0)
    assignment = Assignment(QUEUE, held, None, None)  # type: ignore[arg-type]
    messages = [ReceivedMessage(stored(number), assignment) for number in range(2_000)]
    held.put(messages, len(messages))
    assert (len(held), len(repr(assignment)) < 100) == (2_000, True)
    return messages[7]


def leased() -> LeasedMessage:
    lease = Lease("Orders", ReceiptHandle(0, 1, 60_000, 0, 0, "broker-a", 0, 7), 60.0)
    return LeasedMessage(stored(7), lease, None, None, None)  # type: ignore[arg-type]


def network() -> triomq.testing.SimulatedNetwork:
    current: ContextVar[triomq.testing.Machine] = ContextVar("current")
    return triomq.testing.SimulatedNetwork(random.Random(7), current, len)


def event() -> triomq.TraceEvent:
    return triomq.TraceEvent(
        kind="Pub", message_id="7F" * 16, group="g", client_host="a", timestamp=0, tag=LONG
    )


MANY = triomq.Answers({f"broker-{number}": [stored()] for number in range(2_000)}, {})
PROXY = '{"addr": "host:1080", "username": "u", "password": "SOCKSPASSWORD"}'
MANY_PROXIES = SocksProxies.parse(
    "{" + ", ".join(f'"10.0.{number}.0/24": {PROXY}' for number in range(200)) + "}"
)
BROKER_CONF = {
    "accessKey": "AKIDACCESSKEY",
    "secretKey": "SECRETKEY",
    **{f"key{number}": LONG for number in range(9)},
}


def running(server: InProcessBroker | InProcessNameServer) -> object:
    server._running = _Running([BODY] * 9, LONG, LONG)  # type: ignore[arg-type]
    return server


EXAMPLES: dict[type, Callable[[], Any]] = {
    Access: lambda: Access(
        tls=Tls(key_password="SECRETKEY"), credentials=CREDENTIALS, socks=MANY_PROXIES
    ),
    Admin: lambda: Admin("a:1", credentials=CREDENTIALS),
    **{
        module.Probes: lambda module=module: module.Probes(
            module.PushConsumer("a:1", group="g", subscriptions="T"), port=8081
        )
        for module in (triomq, sync, aio)
    },
    Attempt: lambda: Attempt(broker="broker-a (a:1)", seconds=0.1, error=TrioMQError("it is away")),
    AssignmentChange: lambda: AssignmentChange(
        topic="Orders", gained=QUEUES, lost=QUEUES, owned=QUEUES, queues=QUEUES
    ),
    BusyBackoff: BusyBackoff,
    ClientSettings: lambda: CLIENT,
    ConsumeContext: lambda: ConsumeContext(group="g", messages=[received()] * 2_000),
    ConsumerSettings: lambda: ConsumerSettings(client=CLIENT),
    InProcessBroker: lambda: running(InProcessBroker("broker-a", Path("store"), BROKER_CONF)),
    InProcessCluster: lambda: InProcessCluster(None, Path("stores"), "DefaultCluster"),  # type: ignore[arg-type]
    InProcessNameServer: lambda: running(InProcessNameServer("namesrv-1", Path("kvConfig.json"))),
    ConsumerStatistics: lambda: ConsumerStatistics(
        queues=1,
        unsettled=2,
        waiting=1,
        set_aside=0,
        topics={f"T{number}": TopicRates() for number in range(2_000)},
    ),
    Credentials: lambda: CREDENTIALS,
    Message: lambda: Message(
        topic="Orders", body=BODY, tag=LONG, keys=[LONG] * 9, properties={LONG: BODY.decode()}
    ),
    MessageQueue: lambda: QUEUE,
    MessageView: received,
    Producer: lambda: Producer("a:1", group="g", settings=ProducerSettings(client=CLIENT)),
    ProducerSettings: lambda: ProducerSettings(client=CLIENT),
    PullConsumer: lambda: PullConsumer("a:1", group="g", settings=ConsumerSettings(client=CLIENT)),
    PushConsumer: lambda: PushConsumer(
        "a:1", group="g", subscriptions="T", settings=ConsumerSettings(client=CLIENT)
    ),
    ReceivedMessage: received,
    SendContext: lambda: SendContext(
        group="g",
        topic="T",
        queue=QUEUE,
        address="a:1",
        message_id="7F",
        body=BODY,
        batch=False,
        oneway=False,
        properties_text=LONG,
    ),
    SendReceipt: lambda: SendReceipt(
        "7F" * 16, "7F" * 16, QUEUE, 3, SendStatus.STORED, "DefaultRegion", None
    ),
    triomq.ReplyMessage: lambda: triomq.ReplyMessage(stored(), "g", "broker-a"),
    triomq.RequestStatistics: lambda: triomq.RequestStatistics(
        waiting=1, answered=2, timed_out=3, unmatched=4
    ),
    Simulation: lambda: Simulation(7, random.Random(7), [BODY] * 9, Trace()),  # type: ignore[arg-type]
    SocksProxies: lambda: MANY_PROXIES,
    Sql: lambda: Sql("price > 30"),
    CheckedMessage: lambda: CheckedMessage(stored(), "g", "broker-a"),
    Transaction: lambda: Producer("a:1", group="g").transaction("Orders", BODY, keys=[LONG]),
    TransactionResult: lambda: TransactionResult(RECEIPT, TransactionOutcome.COMMIT, True),
    Tls: lambda: Tls(key_password="SECRETKEY"),
    TopicRates: TopicRates,
    StoredMessage: stored,
    **{
        kind: lambda kind=kind, more=more: kind("a:1", **more)  # type: ignore[misc]
        for interface in (sync, aio)
        for kind, more in (
            (interface.Admin, {"credentials": CREDENTIALS}),
            (interface.Producer, {"group": "g", "settings": ProducerSettings(client=CLIENT)}),
            (interface.PullConsumer, {"group": "g", "settings": ConsumerSettings(client=CLIENT)}),
            (
                interface.PushConsumer,
                {"group": "g", "subscriptions": "T", "settings": ConsumerSettings(client=CLIENT)},
            ),
        )
    },
    **{kind: kind for kind in (triomq.Busy, triomq.Done, Trace)},
    triomq.Answers: lambda: MANY,
    triomq.BrokerAddress: lambda: triomq.BrokerAddress("DefaultCluster", "broker-a", 0, "a:1"),
    triomq.MissingBroker: lambda: triomq.MissingBroker("C", "broker-a", 0, "a:1", "silent", 60),
    triomq.ClusterTable: lambda: triomq.ClusterTable(
        cluster_addr_table={str(queue): [] for queue in QUEUES}
    ),
    triomq.Command: lambda: triomq.Command(
        code=310, ext={"accessKey": SECRETS["access_key"]}, body=BODY
    ),
    triomq.ConsumeStats: lambda: triomq.ConsumeStats(dict.fromkeys(QUEUES)),  # type: ignore[arg-type]
    triomq.ConsumerConnection: lambda: triomq.ConsumerConnection(connections=[LONG] * 9),  # type: ignore[list-item]
    triomq.MessageHistory: lambda: triomq.MessageHistory([event()] * 9, MANY),
    triomq.ProducerConnection: lambda: triomq.ProducerConnection([LONG] * 9),  # type: ignore[list-item]
    triomq.SubscriptionGroupConfig: lambda: triomq.SubscriptionGroupConfig(group_name=LONG),
    triomq.TopicConfig: lambda: triomq.TopicConfig(topic_name=LONG),
    triomq.TopicRoute: lambda: triomq.TopicRoute([LONG] * 9, [LONG] * 9),  # type: ignore[list-item]
    triomq.TopicStats: lambda: triomq.TopicStats(dict.fromkeys(QUEUES)),  # type: ignore[arg-type]
    triomq.TraceEvent: lambda: event(),
    triomq.testing.Machine: lambda: triomq.testing.Machine(network(), "broker", "10.0.0.1"),
    triomq.testing.SimulatedNetwork: lambda: network(),
    triomq.BodyCodec: lambda: triomq.json_codec,
    triomq.OnceStatistics: lambda: triomq.OnceStatistics(1, 2, 3, 4, 5),
    triomq.SqliteOnceStore: lambda: triomq.SqliteOnceStore("once.db"),
    triomq.PostgresqlOnceStore: lambda: triomq.PostgresqlOnceStore(
        "host=db dbname=shop password=SECRETKEY"
    ),
    triomq.RedisOnceStore: lambda: triomq.RedisOnceStore("redis://:SECRETKEY@db"),
    **{
        interface.OnceHandler: lambda once=interface.once: once(triomq.SqliteOnceStore("once.db"))(
            len if once is sync.once else trio.sleep
        )
        for interface in (triomq, sync, aio)
    },
    triomq.OnceTransaction: lambda: triomq.OnceTransaction("connection", trio.CapacityLimiter(1)),
    sync.OnceTransaction: lambda: sync.OnceTransaction("connection"),
    aio.OnceTransaction: lambda: aio.OnceTransaction("connection", None),  # type: ignore[arg-type]
    LeasedMessage: leased,
    sync.LeasedMessage: lambda: sync.LeasedMessage(leased(), None),  # type: ignore[arg-type]
    aio.LeasedMessage: lambda: aio.LeasedMessage(leased(), None),  # type: ignore[arg-type]
    **{
        kind: lambda kind=kind: kind(  # type: ignore[misc]
            "a:1", group="g", subscriptions="T", settings=ConsumerSettings(client=CLIENT)
        )
        for kind in (SimpleConsumer, sync.SimpleConsumer, aio.SimpleConsumer)
    },
    sync.ReceivedMessage: lambda: sync.ReceivedMessage(received(), None),  # type: ignore[arg-type]
    aio.ReceivedMessage: lambda: aio.ReceivedMessage(received(), None),  # type: ignore[arg-type]
    **{
        interface.Transaction: lambda interface=interface: interface.Producer(  # type: ignore[misc]
            "a:1", group="g"
        ).transaction("Orders", BODY)
        for interface in (sync, aio)
    },
}
RECEIPT = SendReceipt("7F" * 16, "7F" * 16, QUEUE, 3, SendStatus.STORED, "DefaultRegion", None)
ATTEMPTS = [
    Attempt(broker=f"broker-{number}", seconds=0.1, error=TrioMQError(LONG)) for number in range(16)
]
ERRORS = [
    TrioMQError(LONG),
    triomq.BatchIncomplete([RECEIPT] * 2_000, 3),
    triomq.ConnectionFailed("a:1", LONG),
    triomq.NoNameServer({f"a:{number}": LONG for number in range(9)}),
    triomq.NotARequest("7F" * 16, LONG, ["CORRELATION_ID"]),
    triomq.ReceiptExpired("7F" * 16, LONG, 30.0),
    triomq.ReplyNotDelivered("a@1", "id", [TrioMQError(LONG)] * 9),
    triomq.ReplyTimeout(LONG, "id", 3.0, RECEIPT),
    triomq.SendFailed(LONG, ATTEMPTS),
    triomq.SendTimeout("Orders", ATTEMPTS),
    broker_error(1, LONG, "broker-a", "SEND_MESSAGE_V2"),
]


def public_classes() -> list[type]:
    modules = (triomq, sync, aio, triomq.testing)
    found = [
        value
        for module in modules
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name))
    ]
    return [
        kind
        for kind in found
        if not issubclass(kind, BaseException | enum.Enum)
        and not getattr(kind, "_is_protocol", False)
    ]


def test_every_public_class_has_an_example_here() -> None:
    assert set(public_classes()) <= EXAMPLES.keys()


@pytest.mark.parametrize(
    "kind", list(EXAMPLES), ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_a_repr_is_short_and_keeps_secrets(kind: type) -> None:
    text = repr(EXAMPLES[kind]())
    assert len(text) < (3_000 if "Settings" in kind.__name__ else 700), len(text)
    assert "somebody else" not in text
    for secret in (*SECRETS.values(), "SOCKSPASSWORD"):
        assert secret not in text


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_repr_of_an_error_is_short(error: TrioMQError) -> None:
    assert type(error).__name__ in repr(error)
    assert len(repr(error)) < 500
