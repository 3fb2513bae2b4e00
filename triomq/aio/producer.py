"""A ``triomq.Producer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/producer.py: change them instead.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import SupportsIndex, overload

from triomq import client
from triomq.aio.calls import awaited, call_in_loop, called
from triomq.aio.transactions import ProducerBase, Transaction
from triomq.client.core.config import ProducerSettings
from triomq.client.sending.queue_choice import Selector
from triomq.client.sending.receipt import SendReceipt
from triomq.client.transactions.checked_message import CheckHandler
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message


class Producer(ProducerBase):
    """A ``triomq.Producer`` for asyncio.

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
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
    ) -> SendReceipt: ...

    @overload
    async def send(
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
    ) -> SendReceipt: ...

    async def send(
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
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it."""
        function: Callable[..., Awaitable[SendReceipt]] = self._target.send
        return await call_in_loop(
            self._portal,
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

    async def send_many(
        self, messages: Iterable[Message], *, window: SupportsIndex = 64
    ) -> list[SendReceipt]:
        """Send messages, up to ``window`` of them at a time, and return their receipts in order."""
        return await call_in_loop(
            self._portal, self._target.send_many, tuple(messages), window=window
        )

    @property
    def client_id(self) -> str:
        """This producer's name on the brokers."""
        return self._target.client_id

    recall = awaited(client.Producer.recall)
    request = awaited(client.Producer.request)
    request_statistics = called(client.Producer.request_statistics)
    send_oneway = awaited(client.Producer.send_oneway)
    send_batch = awaited(client.Producer.send_batch)
    new_message_id = called(client.Producer.new_message_id)
    queues = awaited(client.Producer.queues)
