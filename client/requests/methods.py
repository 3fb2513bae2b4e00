"""``RequestMethods``: what a producer does with requests."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import SupportsIndex

from triomq.client.core.arguments import check_timeout
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import NotRunning, SettingsError
from triomq.client.core.lifetime import Lifetime
from triomq.client.requests.reply_message import ReplyMessage
from triomq.client.requests.requests import Requests, RequestStatistics
from triomq.client.sending.encoding import check_sendable, prepare
from triomq.client.sending.message_arguments import as_message, queue_choice
from triomq.client.sending.queue_choice import Selector
from triomq.client.sending.sender import Sender
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message


class RequestMethods(Lifetime):
    """The part of a producer that waits for replies."""

    settings: ProducerSettings

    _requests: Requests | None = None
    """Set while the producer runs."""

    @abstractmethod
    def _active(self) -> Sender:
        """Return the running sender. Raises: ``NotRunning``."""

    async def request(
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
        """Send a message and wait for the reply of the consumer that gets it.

        The other arguments are those of ``send``. ``timeout``: seconds for everything, the send
        included; the consumer sees it as the property ``TTL``, in milliseconds. Only one member of
        one consumer group should answer: a second reply is counted and dropped. A request that is
        sent again after a failed attempt may be handled twice.

        Raises: ``ReplyTimeout``, which tells whether the request is stored; as ``send``, if the
        request could not be sent.
        """
        sender, requests = self._active(), self._requests
        if requests is None:
            raise NotRunning("this producer is not running: use it inside `async with`")
        seconds = check_timeout(timeout)
        if not seconds:
            raise SettingsError(
                f"timeout must be a number of seconds greater than 0, not {timeout!r}: a request"
                " cannot wait for ever"
            )
        message = as_message(topic, body, tag, keys, properties, flag)
        check_sendable(message.topic)
        now_ms = time.time_ns() // 1_000_000
        outgoing = prepare(
            message.topic,
            message.body,
            self.settings,
            sender.ids.next(now_ms),
            now_ms,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            flag=message.flag,
            wait_stored=message.wait_stored,
            sharding_key=sharding_key,
        )
        target = queue if queue is not None else queue_choice(message, sharding_key, select)
        return await requests.request(outgoing, target, seconds)

    def request_statistics(self) -> RequestStatistics:
        """Return the numbers of requests and replies so far. Raises: ``NotRunning``."""
        if self._requests is None:
            raise NotRunning("this producer is not running: use it inside `async with`")
        return self._requests.statistics()
