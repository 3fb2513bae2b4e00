"""A blocking `triomq.Producer`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import SupportsIndex

from triomq import client
from triomq.client import (
    Message,
    MessageQueue,
    ProducerSettings,
    SendReceipt,
)
from triomq.client.arguments import check_count
from triomq.client.portal import Call, in_loop
from triomq.client.producer.queue_choice import Selector
from triomq.sync.lifetime import BlockingLifetime


class Producer(BlockingLifetime[client.Producer]):
    """A blocking `triomq.Producer`."""

    def __init__(
        self, namesrv: str | Iterable[str] | None = None, *, group: str, settings: ProducerSettings | None = None
    ) -> None:
        super().__init__(client.Producer(namesrv, group=group, settings=settings))

    def send(
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
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message; see `triomq.Producer.send`."""
        return self._portal.call(
            timeout,
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

    def send_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send a `Message`; see `triomq.Producer.send`."""
        return self._portal.call(
            timeout,
            self._target.send,
            message,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
            message_id=message_id,
        )

    def send_oneway(
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
        timeout: float | None = None,
    ) -> None:
        """Send without an answer; see `triomq.Producer.send_oneway`."""
        self._portal.call(
            timeout,
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

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; see `triomq.Producer.send_batch`."""
        return self._portal.call(
            timeout, self._target.send_batch, messages, queue=queue, sharding_key=sharding_key, select=select
        )

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic; see `triomq.Producer.queues`."""
        return self._portal.call(timeout, self._target.queues, topic)

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this producer."""
        return self._target.client_id

    def send_many(self, messages: Iterable[Message], *, window: SupportsIndex = 64) -> Iterator[SendReceipt]:
        """Send messages with up to `window` of them under way; yields the receipts in the order of the messages.

        Iterate to its end: messages are taken as receipts are.  A failed send raises where its receipt would come.
        """
        most = check_count("window", window)
        under_way: deque[Call[SendReceipt]] = deque()
        for message in messages:
            under_way.append(self._portal.submit(self._target.send, message))
            if len(under_way) >= most:
                yield under_way.popleft().future.result()
        while under_way:
            yield under_way.popleft().future.result()

    def new_message_id(self) -> str:
        """Return an id for `send(message_id=…)`."""
        return self._portal.call(None, in_loop, self._target.new_message_id)
