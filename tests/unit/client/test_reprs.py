"""The repr of everything that users hold: short, without other people's bodies, without secrets, also with 2,000 messages in hand."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import triomq
from triomq import (
    Admin,
    AssignmentChange,
    Attempt,
    BusyBackoff,
    ClientSettings,
    ConsumeContext,
    ConsumerSettings,
    ConsumerStatistics,
    Credentials,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    SendReceipt,
    SendStatus,
    Sql,
    Tls,
    TopicRates,
    TrioMQError,
)
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.process_queue import ProcessQueue
from triomq.remoting.protocol.record import StoredMessage

BODY = b"the body of somebody else " * 4_000
SECRETS = {"access_key": "AKIDACCESSKEY", "secret_key": "SECRETKEY", "security_token": "TOKEN"}
LONG = "x" * 5_000
QUEUE = MessageQueue("Orders", "broker-a", 0)
QUEUES = tuple(MessageQueue("Orders", "broker-a", number) for number in range(2_000))
CREDENTIALS = Credentials(**SECRETS)
PROXIES = '{"0.0.0.0/0": {"addr": "host:1080", "username": "u", "password": "SOCKSPASSWORD"}}'
CLIENT = ClientSettings(credentials=CREDENTIALS, socks_proxies=PROXIES)


def stored(offset: int = 0) -> StoredMessage:
    properties = f"TAGS\x01{LONG}\x02UNIQ_KEY\x01{'7F' * 16}\x02card\x01{BODY[:50].decode()}\x02".encode()
    return StoredMessage("Orders", 0, offset, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, BODY, 0, properties)


def received() -> ReceivedMessage:
    """One of 2,000 messages that a queue holds."""
    held: ProcessQueue[ReceivedMessage] = ProcessQueue(0)
    assignment = Assignment(QUEUE, held, None, None)  # type: ignore[arg-type]
    messages = [ReceivedMessage(stored(number), assignment) for number in range(2_000)]
    held.put(messages, len(messages))
    assert (len(held), len(repr(assignment)) < 100) == (2_000, True)
    return messages[7]


EXAMPLES: dict[type, Callable[[], Any]] = {
    Admin: lambda: Admin("a:1", credentials=CREDENTIALS),
    Attempt: lambda: Attempt(broker="broker-a (a:1)", seconds=0.1, error=TrioMQError("it is away")),
    AssignmentChange: lambda: AssignmentChange(topic="Orders", gained=QUEUES, lost=QUEUES, owned=QUEUES, queues=QUEUES),
    BusyBackoff: BusyBackoff,
    ClientSettings: lambda: CLIENT,
    ConsumeContext: lambda: ConsumeContext(group="g", messages=[received()] * 2_000),
    ConsumerSettings: lambda: ConsumerSettings(client=CLIENT),
    ConsumerStatistics: lambda: ConsumerStatistics(queues=1, unsettled=2, waiting=1, set_aside=0, topics={f"T{number}": TopicRates() for number in range(2_000)}),
    Credentials: lambda: CREDENTIALS,
    Message: lambda: Message(topic="Orders", body=BODY, tag=LONG, keys=[LONG] * 9, properties={LONG: BODY.decode()}),
    MessageQueue: lambda: QUEUE,
    Producer: lambda: Producer("a:1", group="g", settings=ProducerSettings(client=CLIENT)),
    ProducerSettings: lambda: ProducerSettings(client=CLIENT),
    PullConsumer: lambda: PullConsumer("a:1", group="g", settings=ConsumerSettings(client=CLIENT)),
    PushConsumer: lambda: PushConsumer("a:1", group="g", subscriptions="T", settings=ConsumerSettings(client=CLIENT)),
    ReceivedMessage: received,
    SendContext: lambda: SendContext(group="g", topic="T", queue=QUEUE, address="a:1", message_id="7F", body=BODY, batch=False, oneway=False, properties_text=LONG),
    SendReceipt: lambda: SendReceipt("7F" * 16, "7F" * 16, QUEUE, 3, SendStatus.STORED, "DefaultRegion", None),
    Sql: lambda: Sql("price > 30"),
    Tls: lambda: Tls(key_password="SECRETKEY"),
    TopicRates: TopicRates,
    StoredMessage: stored,
}


def public_classes() -> list[type]:
    found = [value for name in triomq.__all__ if inspect.isclass(value := getattr(triomq, name))]
    return [kind for kind in found if not issubclass(kind, BaseException | enum.Enum) and not getattr(kind, "_is_protocol", False)]


def test_every_public_class_is_looked_at() -> None:
    assert set(public_classes()) <= EXAMPLES.keys()


@pytest.mark.parametrize("kind", list(EXAMPLES), ids=lambda kind: kind.__name__)
def test_a_repr_is_short_and_keeps_secrets(kind: type) -> None:
    text = repr(EXAMPLES[kind]())
    assert len(text) < (3_000 if "Settings" in kind.__name__ else 700), len(text)
    assert "somebody else" not in text
    for secret in (*SECRETS.values(), "SOCKSPASSWORD"):
        assert secret not in text
