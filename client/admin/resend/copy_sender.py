"""Send copies of messages, each to a queue that can be written."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import read_header
from triomq.client.admin.errors import NoBrokerAnswered, NotWritable
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.client.sending.receipt import STATUS_OF_CODE
from triomq.remoting.protocol.bodies.route import PERM_WRITE, MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from triomq.client.admin.admin import Admin
    from triomq.client.admin.resend.message_copy import MessageCopy


@attrs.frozen(kw_only=True)
class SentCopy:
    """Where a copy is stored."""

    broker_name: str
    queue_id: int
    offset_message_id: str
    """empty in a dry run"""


@attrs.define(eq=False)
class CopySender:
    """Sends copies one after the other; routes are read once.

    A broker that does not answer gets no further copy of this sender. Its copy goes to the next
    broker, as with RocketMQ's producers: if only the answer was lost, it is stored twice.
    """

    admin: Admin
    silent: dict[str, str] = attrs.field(factory=dict, init=False)
    """broker that did not answer → reason"""
    _queues: dict[str, dict[MessageQueue, str]] = attrs.field(factory=dict, init=False)
    """topic → queue that can be written → address of its master"""
    _turn: Iterator[int] = attrs.field(
        factory=lambda: itertools.count(random.randrange(1 << 16)), init=False
    )

    async def send(self, copy: MessageCopy) -> SentCopy:
        """Send one copy; try each broker of the topic at most once.

        Raises: RouteNotFound, NotWritable, NoBrokerAnswered, and what the last broker answered.
        """
        left = await self._writable(copy.topic)
        failure: TrioMQError = (
            NoBrokerAnswered(dict(self.silent)) if self.silent else NotWritable(copy.topic)
        )
        while left:
            queue = self._choice(sorted(left), copy.sharding_key)
            header = copy.header(queue.broker_name, queue.queue_id, now_ms())
            try:
                answer = await self.admin.ask(
                    left[queue], RequestCode.SEND_MESSAGE_V2, header, copy.body, *STATUS_OF_CODE
                )
                place = read_header(SendMessageResponseHeader, answer)
            except TrioMQError as error:
                failure = error
                if not isinstance(error, BrokerError):
                    self.silent[queue.broker_name] = str(error)
            else:
                return SentCopy(
                    broker_name=queue.broker_name,
                    queue_id=queue.queue_id,
                    offset_message_id=place.message_id,
                )
            left = {
                other: address
                for other, address in left.items()
                if other.broker_name != queue.broker_name
            }
        raise failure

    async def _writable(self, topic: str) -> dict[MessageQueue, str]:
        if topic not in self._queues:
            route = await self.admin.route(topic)
            masters = route.masters
            self._queues[topic] = {
                MessageQueue(topic, data.broker_name, queue_id): masters[data.broker_name]
                for data in route.queue_datas
                if data.perm & PERM_WRITE and data.broker_name in masters
                for queue_id in range(data.write_queue_count)
            }
        return {
            queue: address
            for queue, address in self._queues[topic].items()
            if queue.broker_name not in self.silent
        }

    def _choice(self, queues: list[MessageQueue], sharding_key: str | None) -> MessageQueue:
        """Return the queue of a sharding key, as producers choose it; otherwise each in turn."""
        if sharding_key is not None:
            # Only for messages with such a key: start-up time.
            from triomq.client.sending.queue_choice import choose_by_key

            return choose_by_key(queues, sharding_key)
        return queues[next(self._turn) % len(queues)]
