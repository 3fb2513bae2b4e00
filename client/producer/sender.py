"""The tries of one send: which queue, how long, what next after a failure.

Source: client/…/impl/producer/DefaultMQProducerImpl.java#sendDefaultImpl, sendKernelImpl; MQClientAPIImpl.java#processSendResponse.
What differs from there is said in `client/retry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import SupportsIndex

import attrs
import trio

from triomq.client.calls import read_header
from triomq.client.config import ProducerSettings
from triomq.client.errors import (
    Attempt,
    BrokerError,
    BrokerStopping,
    ConnectionFailed,
    SendFailed,
    SendTimeout,
    TrioMQError,
    broker_error,
    from_remoting,
    request_name,
)
from triomq.client.hooks import SendContext, tell
from triomq.client.producer.back_off import back_off
from triomq.client.producer.destinations import Destination, Destinations, TopicDestinations, random_position
from triomq.client.producer.encoding import Outgoing
from triomq.client.producer.faults import LatencyFaults
from triomq.client.producer.in_flight import InFlight
from triomq.client.producer.queue_choice import find_queue, selected
from triomq.client.producer.receipt import STATUS_OF_CODE, SendReceipt, SendStatus
from triomq.client.producer.request import SendRequests
from triomq.client.retry import (
    concerns_broker,
    is_unconnected,
    listed_attempts,
    may_be_stored,
    may_send_again,
    try_seconds,
)
from triomq.client.session import Session
from triomq.remoting.client.connector import Connector
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader

Target = MessageQueue | SupportsIndex | Callable[[Sequence[MessageQueue]], MessageQueue]
"""Where a directed send goes: a queue, an index of the publish list, or a function that chooses from the list."""

_STORED = SendStatus.STORED
_DEFAULT_REGION = "DefaultRegion"


@attrs.define(eq=False)
class Sender:
    """Sends prepared messages for one producer group."""

    group: str
    session: Session
    settings: ProducerSettings
    faults: LatencyFaults | None = attrs.field(init=False)
    _connector: Connector = attrs.field(init=False)
    _has_hooks: bool = attrs.field(init=False)
    _requests: SendRequests = attrs.field(init=False)
    _in_flight: InFlight | None = attrs.field(init=False)
    _topics: TopicDestinations = attrs.field(init=False)
    _tries: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self._connector = self.session.connector
        self._has_hooks = bool(settings.send_hooks or settings.check_forbidden)
        self._requests = SendRequests(self.group, settings)
        self._topics = TopicDestinations(self.session.routes, self._requests)
        self._tries = 1 + settings.retries
        self.session.forget_unused(self._topics.was_used)
        messages, size = settings.in_flight_messages_max, settings.in_flight_bytes_max
        unbounded = 1 << 62
        self._in_flight = InFlight(messages or unbounded, size or unbounded) if messages or size else None
        self.faults = (
            LatencyFaults(settings.latency_max, settings.not_available, settings.detect_brokers, random_position)
            if settings.latency_faults
            else None
        )

    def send(
        self,
        outgoing: Outgoing,
        *,
        target: Target | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        deadline: float | None = None,
    ) -> Coroutine[None, None, SendReceipt]:
        """Send a message and wait for the broker's answer, within the bounds of back-pressure.

        Without `target` a failed try is followed by others, on another broker where there is one.  Errors: `SendTimeout`, `SendFailed`,
        `BrokerError` for a refusal that no other try can mend, `RouteNotFound`, `NoNameServer`.
        """
        now = trio.current_time()
        if deadline is None:
            timeout = self.settings.send_timeout
            deadline = now + timeout if timeout is not None else inf
        if self._in_flight is not None:
            return self._send_in_turn(self._in_flight, outgoing, target, code, deadline)
        return self._send(outgoing, target, code, now, deadline)

    async def _send_in_turn(
        self, budget: InFlight, outgoing: Outgoing, target: Target | None, code: int, deadline: float
    ) -> SendReceipt:
        """Send within the bounds of back-pressure."""
        await self._wait_for_room(budget, outgoing, deadline)
        try:
            return await self._send(outgoing, target, code, trio.current_time(), deadline)
        finally:
            budget.release(len(outgoing.body))

    async def send_oneway(self, outgoing: Outgoing, *, target: Target | None = None) -> None:
        """Send a message once and ask for no answer; returns when the bytes are written.  Errors: as `send`, for what is known by then."""
        deadline = self.deadline()
        budget = self._in_flight
        if budget is not None:
            await self._wait_for_room(budget, outgoing, deadline)
            budget.release(len(outgoing.body))  # nobody says when it has arrived
        places = self._topics.find(outgoing.topic) or await self._find_destinations(outgoing.topic, deadline)
        now = trio.current_time()
        destination = self._directed(places, target) if target is not None else self._choose(places, None, now)
        address = self._address(destination)
        context = self._begin(outgoing, destination.queue, address, RequestCode.SEND_MESSAGE_V2, oneway=True)
        request = self._requests.make(
            outgoing, destination.queue, RequestCode.SEND_MESSAGE_V2, oneway=True, hooked=self._connector.hooked
        )
        try:
            await self.session.oneway(address, request, deadline - now)
        except TrioMQError as error:
            self._end(context, None, error)
            raise
        self._end(context, None, None)

    def deadline(self) -> float:
        """Return until when a send that begins now may take."""
        timeout = self.settings.send_timeout
        return trio.current_time() + timeout if timeout is not None else inf

    async def _wait_for_room(self, budget: InFlight, outgoing: Outgoing, deadline: float) -> None:
        if not await budget.acquire(len(outgoing.body), deadline):
            reason = f"{budget.messages} messages of {budget.size_bytes} bytes were on their way all the time, and in_flight_messages_max or in_flight_bytes_max allow no more"
            raise SendTimeout(outgoing.topic, (), reason=reason)

    async def _send(
        self, outgoing: Outgoing, target: Target | None, code: int, began: float, deadline: float
    ) -> SendReceipt:
        topic = outgoing.topic
        places = self._topics.find(topic)
        if places is None:
            places = await self._find_destinations(topic, deadline)
            began = trio.current_time()
        directed = self._directed(places, target) if target is not None else None
        tries = 1 if directed is not None else self._tries
        connector = self._connector
        attempts: list[Attempt] | None = None
        not_stored: SendReceipt | None = None
        failed_broker: str | None = None
        number = 0  # tries whose request may have been sent
        unconnected = 0
        while number < tries:
            number += 1
            if attempts or not_stored is not None:
                if not await back_off(self.settings.busy_backoff, attempts, deadline, unconnected // (2 if places.several_brokers else 1)):
                    break
                began = trio.current_time()
                if began >= deadline:
                    break
            destination = directed or self._choose(places, failed_broker, began)
            seconds = deadline - began
            if tries > 1 and (places.several_brokers or self.settings.try_timeout is not None):
                seconds = try_seconds(
                    seconds,
                    last_try=number == tries,
                    other_broker=places.several_brokers,
                    longest=self.settings.try_timeout,
                )
            context: SendContext | None = None
            try:
                address = destination.address or self._address(destination)
                if self._has_hooks:
                    context = self._begin(outgoing, destination.queue, address, code)
                if connector.hooked:
                    request = self._requests.make(outgoing, destination.queue, code, hooked=True)
                else:
                    request = destination.request(outgoing, code)
                response = await connector.invoke(address, request, timeout=seconds, deadline=began + seconds)
                receipt = self._read(response, outgoing, destination.queue, code, address)
            except (TrioMQError, RemotingError) as reason:
                if isinstance(reason, RemotingError):
                    error = from_remoting(reason)
                    error.__cause__ = reason
                else:
                    error = reason
                now = trio.current_time()
                earlier = attempts or []
                attempts = [*earlier, Attempt(broker=destination.broker_name, seconds=now - began, error=error)]
                self._end(context, None, error)
                self._note_failure(destination.queue, error, now - began, now)
                if error.refresh_route:
                    self.session.doubt(topic)
                if not may_send_again(error, self.settings.retry_codes):
                    if not_stored is None and not any(may_be_stored(attempt.error) for attempt in attempts):
                        raise error from error.__cause__
                    break  # a refusal says nothing about the tries before it, and a SYSTEM_ERROR not even about its own
                failed_broker = destination.broker_name
                places = self._topics.find(topic) or places
                unconnected = unconnected + 1 if is_unconnected(error) else 0
                if unconnected and deadline < inf:  # nothing was sent, so send_timeout limits these tries, not `retries`
                    number -= 1
                    attempts = listed_attempts(attempts)
            except BaseException:  # cancelled
                self._end(context, None, None)
                raise
            else:
                if context is not None:
                    self._end(context, receipt, None)
                if self.faults is not None:
                    now = trio.current_time()
                    self.faults.record(destination.queue, now - began, now, isolate=False, reachable=True)
                if receipt.status is _STORED or not self.settings.retry_not_stored:
                    return receipt
                not_stored, failed_broker = receipt, destination.broker_name
        if not_stored is not None:
            return not_stored
        assert attempts is not None
        raise self._failure(topic, attempts, deadline) from attempts[-1].error

    def _note_failure(self, queue: MessageQueue, error: TrioMQError, latency: float, now: float) -> None:
        """A broker that refuses is left out and unreachable; one that cannot be reached is left out, too, and unreachable if a detector looks."""
        if self.faults is not None and concerns_broker(error):
            refused = isinstance(error, BrokerError)
            self.faults.record(queue, latency, now, isolate=True, reachable=not refused and not self.faults.detecting)

    def _read(self, response: Command, outgoing: Outgoing, queue: MessageQueue, code: int, address: str) -> SendReceipt:
        """Make the receipt of an answer.  Errors: `BrokerError`, `ProtocolBroken`."""
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            error = broker_error(response.code, response.remark, f"{queue.broker_name} ({address})", request_name(code))
            if isinstance(error, BrokerStopping):
                self.session.reconnect(address)
            raise error
        fields = response.ext or {}
        try:
            offset_id, queue_id, offset = fields["msgId"], int(fields["queueId"]), int(fields["queueOffset"])
        except (KeyError, ValueError):
            header = read_header(response, SendMessageResponseHeader, address)  # says what is wrong
            offset_id, queue_id, offset = header.message_id, header.queue_id, header.queue_offset
        return SendReceipt(
            outgoing.message_id,
            offset_id,
            queue if queue_id == queue.queue_id else attrs.evolve(queue, queue_id=queue_id),
            offset,
            status,
            fields.get("MSG_REGION") or _DEFAULT_REGION,
            fields.get("recallHandle"),
        )

    # -- hooks ------------------------------------------------------------------------------------------------------------------

    def _begin(
        self, outgoing: Outgoing, queue: MessageQueue, address: str, code: int, *, oneway: bool = False
    ) -> SendContext | None:
        """Ask and tell the hooks, if there are any.  Errors: what a check raises."""
        settings = self.settings
        if not self._has_hooks:
            return None
        context = SendContext(
            group=self.group,
            topic=outgoing.topic,
            queue=queue,
            address=address,
            message_id=outgoing.message_id,
            body=outgoing.body,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            oneway=oneway,
            properties_text=outgoing.properties,
        )
        for check in settings.check_forbidden:
            check(context)
        tell(settings.send_hooks, "before_send", context)
        return context

    def _end(self, context: SendContext | None, receipt: SendReceipt | None, error: TrioMQError | None) -> None:
        if context is not None:
            context.receipt, context.error = receipt, error
            tell(self.settings.send_hooks, "after_send", context)

    # -- queues -----------------------------------------------------------------------------------------------------------------

    def _choose(self, places: Destinations, avoid: str | None, now: float) -> Destination:
        if self.faults is None:
            return places.turn.choose(places.ways, avoid)
        return self.faults.choose(places.turn, places.ways, avoid, now)

    def _directed(self, places: Destinations, target: Target) -> Destination:
        queue = _chosen(places.queues, target)
        return places.of_queue(queue) or self._topics.destination(queue)

    def _address(self, destination: Destination) -> str:
        """Return where the queue's master is.  Errors: `ConnectionFailed`."""
        if destination.address is None:
            raise ConnectionFailed(destination.broker_name, "the route names no master for this broker")
        return destination.address

    async def _find_destinations(self, topic: str, deadline: float) -> Destinations:
        while True:
            await self._find_queues(topic, deadline)
            places = self._topics.find(topic)
            if places is not None:  # else the route has changed since
                return places

    async def _find_queues(self, topic: str, deadline: float) -> tuple[MessageQueue, ...]:
        with trio.move_on_at(deadline):
            return await self.session.publish_queues(
                topic, self.settings.create_topic_key, self.settings.default_topic_queues
            )
        raise SendTimeout(topic, (), reason="the time went by while the route was looked up")

    async def find_route(self, topic: str) -> None:
        """Make sure that a send need not look up the topic's route.  A checkpoint only if it is not known.  Errors: `RouteNotFound`, `NoNameServer`."""
        if not self.session.routes.publish(topic):
            await self._find_queues(topic, inf)

    async def queue_for(self, topic: str, target: Target, deadline: float) -> MessageQueue:
        """Return the queue of a directed send.  Errors: as `send`; those of the application's own choice."""
        queues = self.session.routes.publish(topic) or await self._find_queues(topic, deadline)
        return _chosen(queues, target)

    def _failure(self, topic: str, attempts: Sequence[Attempt], deadline: float) -> SendFailed | SendTimeout:
        stored = any(may_be_stored(attempt.error) for attempt in attempts)
        kind = SendTimeout if trio.current_time() >= deadline else SendFailed
        return kind(topic, attempts, maybe_stored=stored)


def _chosen(queues: Sequence[MessageQueue], target: Target) -> MessageQueue:
    return selected(queues, target) if callable(target) else find_queue(queues, target)
