"""A broker inside the test's own loop, and a peer that speaks to it over a real socket."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from triomq.broker.app import BrokerReady, run_broker
from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import Source, load
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.consuming.tag_expressions import subscription
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    SUSPEND,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader
from triomq.remoting.protocol.message_properties import properties_text
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

SMALL_STORE = {
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


def broker_config(folder: Path, **settings: object) -> BrokerConfig:
    """Settings under Java's names; a port of its own, small store files."""
    lines = {
        "brokerName": "broker-a",
        "brokerClusterName": "TestCluster",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": folder,
        **SMALL_STORE,
        **settings,
    }
    entries = [
        Entry(key, str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in lines.items()
    ]
    return load(BrokerConfig, [Source("test", tuple(entries))], BROKER_KEYS).config


@asynccontextmanager
async def running_broker(folder: Path, **settings: object) -> AsyncIterator[BrokerReady]:
    """Run a broker for the block, stop it in order at its end."""
    async with trio.open_nursery() as nursery:
        ready: BrokerReady = await nursery.start(run_broker, broker_config(folder, **settings))
        yield ready
        ready.stop()


async def crashed_broker(folder: Path, work: Any, **settings: object) -> Any:
    """Run ``work(ready)`` against a broker, then cancel the broker as a crash would; return what
    ``work`` did.
    """
    async with trio.open_nursery() as nursery:
        ready: BrokerReady = await nursery.start(run_broker, broker_config(folder, **settings))
        result = await work(ready)
        nursery.cancel_scope.cancel()
    return result


@attrs.define(eq=False)
class Sent:
    """The place of a stored message."""

    message_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None


@attrs.define(eq=False)
class Pulled:
    """The answer to a pull, decoded."""

    code: int
    remark: str | None
    header: PullMessageResponseHeader
    messages: list[StoredMessage]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@attrs.define(eq=False)
class BrokerPeer:
    """One client connection with the requests that tests need."""

    connector: Connector
    address: str
    notices: list[Command] = attrs.field(factory=list)

    async def call(
        self, code: int, header: object | None = None, body: bytes = b"", *, timeout: float = 10
    ) -> Command:
        return await self.connector.invoke(
            self.address, request(code, header, body), timeout=timeout
        )

    async def create_topic(
        self, topic: str, queues: int = 4, perm: int = 6, **more: Any
    ) -> Command:
        return await self.call(
            Code.UPDATE_AND_CREATE_TOPIC,
            CreateTopicHeader(topic, "TBW102", queues, queues, perm, **more),
        )

    async def send_raw(
        self,
        topic: str,
        body: bytes = b"x",
        *,
        queue_id: int = 0,
        properties: dict[str, str] | str | None = None,
        code: int = Code.SEND_MESSAGE_V2,
        **more: Any,
    ) -> Command:
        """Send; ``properties`` as text may be what no client of ours writes."""
        values: dict[str, Any] = {
            "producer_group": "P",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_count": 4,
            "queue_id": queue_id,
            "sys_flag": 0,
            "born_timestamp": int(time.time() * 1000),
            "flag": 0,
            "properties": properties
            if isinstance(properties, str)
            else properties_text(properties or {}),
            **more,
        }
        return await self.call(code, SendMessageHeader(**values), body)

    async def send(self, topic: str, body: bytes = b"x", **more: Any) -> Sent:
        answer = await self.send_raw(topic, body, **more)
        assert answer.code == 0, (answer.code, answer.remark)
        header = answer.header(SendMessageResponseHeader)
        return Sent(header.message_id, header.queue_id, header.queue_offset, header.transaction_id)

    async def pull(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        *,
        group: str = "G",
        count: int = 32,
        hold_ms: int = 0,
        expression: str | None = "*",
        code: int = Code.PULL_MESSAGE,
        flags: int = 0,
        **more: Any,
    ) -> Pulled:
        """Pull; ``expression`` None relies on the group's heartbeat."""
        answer = await self.pull_raw(
            topic,
            queue_id,
            offset,
            group=group,
            count=count,
            hold_ms=hold_ms,
            expression=expression,
            code=code,
            flags=flags,
            **more,
        )
        header = answer.header(PullMessageResponseHeader)
        return Pulled(
            answer.code,
            answer.remark,
            header,
            decode_records(bytes(answer.body)) if answer.code == 0 else [],
        )

    async def pull_raw(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        *,
        group: str = "G",
        count: int = 32,
        hold_ms: int = 0,
        expression: str | None = "*",
        code: int = Code.PULL_MESSAGE,
        flags: int = 0,
        sub_version: int = 0,
        commit_offset: int = 0,
        **more: Any,
    ) -> Command:
        flags |= (SUSPEND if hold_ms else 0) | (SUBSCRIPTION if expression is not None else 0)
        header = PullMessageHeader(
            group,
            topic,
            queue_id,
            offset,
            count,
            flags,
            commit_offset,
            hold_ms,
            sub_version,
            expression,
            **more,
        )
        return await self.call(code, header, timeout=30)

    async def next_bodies(self, topic: str, count: int, queue_id: int = 0) -> list[bytes]:
        """The first ``count`` messages of a queue, waiting for those that have not come yet."""
        found: list[bytes] = []
        offset = 0
        while len(found) < count:
            pulled = await self.pull(topic, queue_id, offset, hold_ms=5_000)
            assert pulled.code == 0, f"{len(found)} of {count} messages came"
            found += pulled.bodies
            offset = pulled.header.next_begin_offset
        return found

    async def heartbeat(
        self,
        client_id: str = "client",
        *,
        group: str | None = None,
        producers: tuple[str, ...] = (),
        **more: Any,
    ) -> Command:
        """As consumer of ``group`` (with ``subscriptions={topic: expression}``, ``version``) and as
        producer.
        """
        version = more.pop("version", 1)
        subscriptions: list[SubscriptionData] = [
            subscription(topic, text, version)
            for topic, text in more.pop("subscriptions", {}).items()
        ]
        consumers = (
            [ConsumerData(group=group, subscriptions=subscriptions, **more)]
            if group is not None
            else []
        )
        body = HeartbeatData(
            client_id=client_id,
            consumers=consumers,
            producers=[ProducerData(name) for name in producers],
        )
        answer = await self.call(Code.HEART_BEAT, None, body.encode())
        assert answer.code == 0, answer.remark
        return answer

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> Command:
        return await self.call(
            Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, topic, queue_id, offset)
        )

    async def all_bodies(self, topic: str, queues: int) -> list[bytes]:
        """Every message of a topic, queue by queue."""
        found: list[bytes] = []
        for queue_id in range(queues):
            offset = 0
            while (pulled := await self.pull(topic, queue_id, offset)).code in (0, 20):
                found += pulled.bodies
                offset = pulled.header.next_begin_offset
        return found


@asynccontextmanager
async def peer_of(ready: BrokerReady) -> AsyncIterator[BrokerPeer]:
    """A client with one connection to the broker; what the broker asks it is kept in
    ``notices``.
    """
    notices: list[Command] = []

    async def note(address: str, command: Command) -> None:
        notices.append(command)

    asked = (
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.CHECK_TRANSACTION_STATE,
    )
    handlers = dict.fromkeys(asked, note)
    async with Connector(ConnectorConfig(), handlers=handlers) as connector:
        yield BrokerPeer(connector, f"127.0.0.1:{ready.port}", notices)
