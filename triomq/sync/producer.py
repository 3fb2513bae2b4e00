"""A blocking ``triomq.Producer``."""

# Written by `make docs` from the signatures in client/sdk/producer.py: change them instead.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import SupportsIndex, overload

from triomq import client
from triomq.client.core.config import ProducerSettings
from triomq.client.core.portal import in_loop
from triomq.client.requests.reply_message import ReplyMessage
from triomq.client.requests.requests import RequestStatistics
from triomq.client.sending.queue_choice import Selector
from triomq.client.sending.receipt import SendReceipt
from triomq.client.transactions.checked_message import CheckHandler
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message
from triomq.sync.transactions import ProducerBase, Transaction


class Producer(ProducerBase):
    """A blocking ``triomq.Producer``.

    Methods have the names and parameters of ``triomq.Producer``; see there.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        check: CheckHandler | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        super().__init__(
            client.Producer(
                namesrv,
                group=group,
                check=None if check is None else self._checking(check),
                settings=settings,
            )
        )

    @property
    def group(self) -> str:
        """The producer group."""
        return self._target.group

    @property
    def settings(self) -> ProducerSettings:
        """The settings as given, or the defaults."""
        return self._target.settings

    def recall(self, receipt: SendReceipt, *, timeout: float | None = None) -> None:
        """Take back a message that was sent with ``delay`` or ``deliver_at``."""
        self._portal.call(timeout, self._target.recall, receipt)

    def request(
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
        timeout: float = 3.0,
    ) -> ReplyMessage:
        """Send a message and wait for the reply of the consumer that gets it."""
        return self._portal.call(
            None,
            self._target.request,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            timeout=timeout,
        )

    def request_statistics(self) -> RequestStatistics:
        """Return the numbers of requests and replies so far. Raises: ``NotRunning``."""
        return self._portal.call(None, in_loop, self._target.request_statistics)

    def transaction(
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
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        check_after: float | None = None,
    ) -> Transaction:
        """Return a block for local work; consumers get the message only if the block ends well."""
        return Transaction(
            self._target.transaction(
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
                delay=delay,
                deliver_at=deliver_at,
                message_id=message_id,
                check_after=check_after,
            ),
            self._portal,
        )

    @overload
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
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt: ...

    @overload
    def send(
        self,
        topic: Message,
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt: ...

    def send(
        self,
        topic: str | Message,
        body: bytes | None = None,
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
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it."""
        function: Callable[..., Awaitable[SendReceipt]] = self._target.send
        return self._portal.call(
            timeout,
            function,
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
            delay=delay,
            deliver_at=deliver_at,
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
        """Send one message without waiting for an answer: fast, and without any guarantee."""
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
        """Send messages of one topic, many in each request, and return their receipts in order."""
        return self._portal.call(
            timeout,
            self._target.send_batch,
            messages,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
        )

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        window: SupportsIndex = 64,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages, up to ``window`` of them at a time, and return their receipts in order."""
        return self._portal.call(timeout, self._target.send_many, tuple(messages), window=window)

    def new_message_id(self) -> str:
        """Return an id for ``send(message_id=…)``."""
        return self._portal.call(None, in_loop, self._target.new_message_id)

    @property
    def client_id(self) -> str:
        """This producer's name on the brokers."""
        return self._target.client_id

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic, which ``queue=`` indexes."""
        return self._portal.call(timeout, self._target.queues, topic)
