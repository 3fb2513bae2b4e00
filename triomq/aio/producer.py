"""A `triomq.Producer` for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_loop
from triomq.client import (
    Message,
    MessageQueue,
    ProducerSettings,
    SendReceipt,
)
from triomq.client.portal import in_loop
from triomq.client.producer.queue_choice import Selector


class Producer(AsyncioLifetime[client.Producer]):
    """A `triomq.Producer` for asyncio."""

    def __init__(
        self, namesrv: str | Iterable[str] | None = None, *, group: str, settings: ProducerSettings | None = None
    ) -> None:
        super().__init__(client.Producer(namesrv, group=group, settings=settings))

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_stored: bool = True,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        message_id: str | None = None,
    ) -> SendReceipt:
        """Send one message; see `triomq.Producer.send`."""
        return await call_in_loop(
            self._portal,
            self._target.send,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            wait_stored=wait_stored,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
            message_id=message_id,
        )

    async def send_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        message_id: str | None = None,
    ) -> SendReceipt:
        """Send a `Message`; see `triomq.Producer.send`."""
        return await call_in_loop(
            self._portal,
            self._target.send,
            message,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
            message_id=message_id,
        )

    async def send_oneway(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
    ) -> None:
        """Send without an answer; see `triomq.Producer.send_oneway`."""
        await call_in_loop(
            self._portal,
            self._target.send_oneway,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
        )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; see `triomq.Producer.send_batch`."""
        return await call_in_loop(
            self._portal, self._target.send_batch, messages, queue=queue, sharding_key=sharding_key, select=select
        )

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this producer."""
        return self._target.client_id

    async def send_many(self, messages: Iterable[Message], *, window: SupportsIndex = 64) -> list[SendReceipt]:
        """Send messages with up to `window` of them under way; see `triomq.Producer.send_many`."""
        return await call_in_loop(self._portal, self._target.send_many, tuple(messages), window=window)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic; see `triomq.Producer.queues`."""
        return await call_in_loop(self._portal, self._target.queues, topic)

    async def new_message_id(self) -> str:
        """Return an id for `send(message_id=…)`."""
        return await call_in_loop(self._portal, in_loop, self._target.new_message_id)
