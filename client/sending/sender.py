"""The attempts of one send: which queue, how long, what to do after a failure.

``client/core/retry.py`` describes how this differs from the official client.

Source: client/…/impl/producer/DefaultMQProducerImpl.java#sendDefaultImpl, sendKernelImpl;
MQClientAPIImpl.java#processSendResponse.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from math import inf
from typing import SupportsIndex

import attrs
import trio

from triomq.client.core.back_off import back_off, until_reached
from triomq.client.core.calls import read_header
from triomq.client.core.client_id import make_unique_ids
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import (
    Attempt,
    BrokerError,
    BrokerStopping,
    ConnectionFailed,
    RequestTimeout,
    SendFailed,
    SendTimeout,
    TimersUnavailable,
    TrioMQError,
    broker_error,
    from_remoting,
    request_name,
)
from triomq.client.core.message_hooks import SendContext, SendHook, call_hooks
from triomq.client.core.message_trace import MessageTrace
from triomq.client.core.retry import (
    BusyBackoff,
    concerns_broker,
    concerns_route,
    found_no_master,
    is_unconnected,
    listed_attempts,
    may_be_stored,
    may_send_again,
    try_seconds,
)
from triomq.client.core.session import Session
from triomq.client.sending.destinations import (
    DestinationTable,
    QueueDestination,
    SendRequests,
    TopicDestinations,
    random_position,
)
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.faults import LatencyFaults, SilentBrokers
from triomq.client.sending.in_flight import InFlight
from triomq.client.sending.queue_choice import find_queue, selected
from triomq.client.sending.receipt import STATUS_OF_CODE, SendReceipt, SendStatus
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode, version_name
from triomq.remoting.protocol.command import ONEWAY_FLAG, Command
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message_properties import TRACE_ON

SendTarget = MessageQueue | SupportsIndex | Callable[[Sequence[MessageQueue]], MessageQueue]
"""Where a directed send goes: a queue, its index in the publish list, or a function of the list."""

_STORED = SendStatus.STORED
_DEFAULT_REGION = "DefaultRegion"
_VERSION_WITH_TIMERS = 413
"""V5_0_0"""
SILENT_DIAL_SECONDS = 0.5
"""A host that is gone answers no dial; one that refuses is there, and may be back at any moment."""


@attrs.define(eq=False)
class SendRetries:
    """One send after its first attempt, which did not store the message as it should be."""

    topic: str
    tries: int
    deadline: float
    number: int = 1
    """attempts that a master may have taken, with the one that runs"""
    attempts: Sequence[Attempt] = ()
    """those that failed"""
    not_stored: SendReceipt | None = None
    """the last receipt that says less than STORED"""
    refused: int = 0
    """attempts in a row that found no master"""

    def failed(self, attempt: Attempt) -> None:
        """Note an attempt that ended with an error."""
        self.attempts = [*self.attempts, attempt]
        self.refused = self.refused + 1 if found_no_master(attempt.error) else 0
        # No connection, or a broker that takes no messages now: a slave, or one that stops.
        if self.refused and self.deadline < inf:
            # Nothing was stored, so `send_timeout` limits these attempts, not `retries`.
            self.number -= 1
            self.attempts = listed_attempts(self.attempts)

    async def wait(
        self,
        policy: BusyBackoff,
        several_brokers: bool,
        routes_change: Callable[[], Awaitable[None]],
    ) -> bool:
        """Wait until the next attempt; return False if there is none."""
        if self.number >= self.tries:
            return False
        self.number += 1
        rounds = self.refused // (2 if several_brokers else 1)
        return await back_off(policy, self.attempts, self.deadline, rounds, routes_change)

    @property
    def maybe_stored(self) -> bool:
        """Whether a broker may have the message."""
        return self.not_stored is not None or any(
            may_be_stored(attempt.error) for attempt in self.attempts
        )

    def outcome(self) -> SendReceipt:
        """Return the receipt that there is. Raises: ``SendTimeout``, ``SendFailed``."""
        if self.not_stored is not None:
            return self.not_stored
        kind = SendTimeout if trio.current_time() >= self.deadline else SendFailed
        raise kind(self.topic, self.attempts, maybe_stored=self.maybe_stored) from self.attempts[
            -1
        ].error


@attrs.define(eq=False)
class Sender:
    """Sends prepared messages for one producer group."""

    group: str
    session: Session
    settings: ProducerSettings
    trace: MessageTrace | None = None
    """notes what happens to messages; None if traces are off"""
    ids: UniqueIds = attrs.field(init=False)
    faults: LatencyFaults | None = attrs.field(init=False)
    silent: SilentBrokers = attrs.field(factory=SilentBrokers, init=False)
    _connector: Connector = attrs.field(init=False)
    _has_hooks: bool = attrs.field(init=False)
    _hooks: Sequence[SendHook] = attrs.field(init=False)
    _requests: SendRequests = attrs.field(init=False)
    _in_flight: InFlight | None = attrs.field(init=False)
    _topics: DestinationTable = attrs.field(init=False)
    _tries: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.ids = make_unique_ids(self.session.client_id)
        self._connector = self.session.connector
        self._hooks = (*settings.send_hooks, *(() if self.trace is None else (self.trace,)))
        self._has_hooks = bool(self._hooks or settings.check_forbidden)
        self._requests = SendRequests(self.group, settings)
        self._topics = DestinationTable(self.session.routes, self._requests)
        self._tries = 1 + settings.retries
        self.session.observe(self._topics)
        messages, size = settings.in_flight_messages_max, settings.in_flight_bytes_max
        unbounded = 1 << 62
        self._in_flight = (
            InFlight(messages or unbounded, size or unbounded) if messages or size else None
        )
        self.faults = (
            LatencyFaults(
                settings.latency_max,
                settings.not_available,
                settings.detect_brokers,
                random_position,
            )
            if settings.latency_faults
            else None
        )

    def add_hook(self, hook: SendHook) -> None:
        """Call a hook around every attempt from now on."""
        self._hooks, self._has_hooks = (*self._hooks, hook), True

    def send(
        self,
        outgoing: OutgoingMessage,
        *,
        target: SendTarget | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        deadline: float | None = None,
    ) -> Coroutine[None, None, SendReceipt]:
        """Send a message and wait for the broker's answer, within the limits of back-pressure.

        Without ``target`` a failed attempt is retried, on another broker if there is one.
        ``deadline`` is a trio time.

        Raises: ``SendTimeout``, ``SendFailed``; ``BrokerError`` for a refusal that no retry can
        change; ``RouteNotFound``, ``NoNameServer``.
        """
        if deadline is None:
            deadline = self.deadline()
        if self._in_flight is not None:
            return self._send_within_limits(self._in_flight, outgoing, target, code, deadline)
        return self._send(outgoing, target, code, deadline)

    async def _send_within_limits(
        self,
        budget: InFlight,
        outgoing: OutgoingMessage,
        target: SendTarget | None,
        code: int,
        deadline: float,
    ) -> SendReceipt:
        await self._wait_for_room(budget, outgoing, deadline)
        try:
            return await self._send(outgoing, target, code, deadline)
        finally:
            budget.release(len(outgoing.body))

    async def send_oneway(
        self, outgoing: OutgoingMessage, *, target: SendTarget | None = None
    ) -> None:
        """Send a message without waiting for an answer; return when its bytes are written.

        Attempts that find no connection are repeated within ``send_timeout``; any other failure
        ends the call.

        Raises: as ``send``, for failures before the bytes are written.
        """
        deadline = self.deadline()
        budget = self._in_flight
        if budget is not None:
            await self._wait_for_room(budget, outgoing, deadline)
            budget.release(len(outgoing.body))  # no answer will tell when it has arrived
        destinations = self._topics.find(outgoing.topic) or await self._find_destinations(
            outgoing.topic, deadline
        )
        directed = self._directed(destinations, target) if target is not None else None

        async def try_once(seconds: float) -> None:
            known = self._topics.find(outgoing.topic) or destinations
            await self._oneway(
                outgoing,
                self._choose(known, None, trio.current_time())
                if directed is None
                else self._of_queue(known, directed.queue),
                seconds,
            )

        await until_reached(try_once, deadline - trio.current_time(), again=is_unconnected)

    async def _oneway(
        self, outgoing: OutgoingMessage, destination: QueueDestination, seconds: float
    ) -> None:
        address, code = self._address(destination), RequestCode.SEND_MESSAGE_V2
        context = self._begin(outgoing, destination.queue, address, code, oneway=True)
        request = (
            self._requests.command(outgoing, destination.queue, code, oneway=True)
            if self._connector.hooked
            else destination.request(outgoing, code, ONEWAY_FLAG)
        )
        try:
            await self.session.oneway(address, request, seconds)
        except TrioMQError as error:
            self._end(context, None, error)
            if concerns_route(error):
                self.session.finder.invalidate(outgoing.topic)
            raise
        self._end(context, None, None)

    def deadline(self) -> float:
        """Return the trio time at which a send that begins now times out."""
        timeout = self.settings.send_timeout
        return trio.current_time() + timeout if timeout is not None else inf

    async def _wait_for_room(
        self, budget: InFlight, outgoing: OutgoingMessage, deadline: float
    ) -> None:
        if not await budget.acquire(len(outgoing.body), deadline):
            reason = (
                f"{budget.messages} messages of {budget.size_bytes} bytes were in flight all the"
                " time, and in_flight_messages_max or in_flight_bytes_max allow no more"
            )
            raise SendTimeout(outgoing.topic, (), reason=reason)

    async def _send(
        self, outgoing: OutgoingMessage, target: SendTarget | None, code: int, deadline: float
    ) -> SendReceipt:
        topic = outgoing.topic
        destinations = self._topics.find(topic) or await self._find_destinations(topic, deadline)
        began = trio.current_time()
        directed = self._directed(destinations, target) if target is not None else None
        # The application chose the queue: on another one the order of its messages would be lost.
        tries = 1 if directed is not None else self._tries
        connector = self._connector
        retries: SendRetries | None = None  # until the first attempt has failed
        avoid: str | None = None
        again = True
        while True:
            destination = directed or self._choose(destinations, avoid, began)
            seconds = deadline - began
            if tries > 1 and (
                destinations.several_brokers or self.settings.try_timeout is not None
            ):
                seconds = try_seconds(
                    seconds,
                    last_try=retries is not None and retries.number == tries,
                    other_broker=destinations.several_brokers,
                    longest=self.settings.try_timeout,
                )
            # Each attempt makes the request anew: its address, opaque and header depend on the
            # queue.
            context: SendContext | None = None
            try:
                address = destination.address or self._address(destination)
                if self._has_hooks:
                    context = self._begin(outgoing, destination.queue, address, code)
                request = (
                    self._requests.command(outgoing, destination.queue, code)
                    if connector.hooked
                    else destination.request(outgoing, code)
                )
                response = await connector.invoke(
                    address, request, timeout=seconds, deadline=began + seconds
                )
                receipt = self._read(response, outgoing, destination.queue, code, address)
            except (TrioMQError, RemotingError) as reason:
                if isinstance(reason, RemotingError):
                    error = from_remoting(reason)
                    error.__cause__ = reason
                else:
                    error = reason
                now = trio.current_time()
                self._end(context, None, error)
                # Before the next choice, which leaves out what was noted.
                self._note_failure(destination.queue, error, now - began, now)
                if concerns_route(error):
                    self.session.finder.invalidate(topic)
                retries = retries or SendRetries(topic, tries, deadline)
                retries.failed(
                    Attempt(broker=destination.broker_name, seconds=now - began, error=error)
                )
                again = may_send_again(error, self.settings.retry_codes)
                # A refusal does not settle earlier attempts, and SYSTEM_ERROR not even its own.
                if not again and not retries.maybe_stored:
                    raise error from error.__cause__
            # Hooks see the end of each attempt that they saw begin.
            except BaseException:  # cancelled
                self._end(context, None, None)
                raise
            else:
                if context is not None:
                    context.trace_on = (response.ext or {}).get(TRACE_ON) != "false"
                    self._end(context, receipt, None)
                self.silent.answered(destination.broker_name)
                if self.faults is not None:
                    now = trio.current_time()
                    self.faults.record(
                        destination.queue, now - began, now, isolate=False, reachable=True
                    )
                if receipt.status is _STORED or not self.settings.retry_not_stored:
                    return receipt
                retries = retries or SendRetries(topic, tries, deadline)
                retries.not_stored = receipt
            # Twice: the answer may have changed the route, and so may the wait.
            destinations = self._present(destinations, retries)
            if not again or not await retries.wait(
                self.settings.busy_backoff,
                destinations.several_brokers,
                self.session.finder.wait_routes_changed,
            ):
                return retries.outcome()
            destinations = self._present(destinations, retries)
            if directed is not None:  # the queue may have another master
                directed = self._of_queue(destinations, directed.queue)
            avoid, began = destination.broker_name, trio.current_time()
            if began >= deadline:
                return retries.outcome()

    def _present(self, known: TopicDestinations, retries: SendRetries) -> TopicDestinations:
        """Return the destinations of the present route; with another one waits are short again."""
        found = self._topics.find(retries.topic) or known
        if found is not known:
            retries.refused = 0
        return found

    def _note_failure(
        self, queue: MessageQueue, error: TrioMQError, latency: float, now: float
    ) -> None:
        """Record a failed attempt: a broker that is silent is left out for a while, and with
        ``latency_faults`` any that failed.

        A broker that refused counts as unreachable; one without a connection only while the broker
        detector runs, which finds out when it is back.
        """
        refused = isinstance(error, BrokerError)
        if refused:
            self.silent.answered(queue.broker_name)
        elif isinstance(error, RequestTimeout) or (
            is_unconnected(error) and latency >= SILENT_DIAL_SECONDS
        ):
            self.silent.silent(queue.broker_name, now)
        if self.faults is not None and concerns_broker(error):
            self.faults.record(
                queue,
                latency,
                now,
                isolate=True,
                reachable=not refused and not self.faults.detecting,
            )

    def _read(
        self,
        response: Command,
        outgoing: OutgoingMessage,
        queue: MessageQueue,
        code: int,
        address: str,
    ) -> SendReceipt:
        """Return the receipt of an answer. Raises: ``BrokerError``, ``ProtocolBroken``."""
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            error = broker_error(
                response.code,
                response.remark,
                f"{queue.broker_name} ({address})",
                request_name(code),
            )
            # The next request must open a new connection: behind the same address another broker
            # may start.
            if isinstance(error, BrokerStopping):
                self.session.reconnect(address)
            raise error
        if outgoing.timed and response.version < _VERSION_WITH_TIMERS:
            raise TimersUnavailable(
                ResponseCode.VERSION_NOT_SUPPORTED,
                f"the broker is of version {version_name(response.version)}, knows no times of"
                " delivery, and has delivered the message at once",
                f"{queue.broker_name} ({address})",
                request_name(code),
            )
        fields = response.ext or {}
        try:
            offset_id, queue_id, offset = (
                fields["msgId"],
                int(fields["queueId"]),
                int(fields["queueOffset"]),
            )
        except (KeyError, ValueError):
            # The slow path raises an error that names the wrong field.
            header = read_header(response, SendMessageResponseHeader, address)
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

    # Hooks

    def _begin(
        self,
        outgoing: OutgoingMessage,
        queue: MessageQueue,
        address: str,
        code: int,
        *,
        oneway: bool = False,
    ) -> SendContext | None:
        """Call the checks and hooks before an attempt, if any. Raises: the errors of the checks."""
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
        call_hooks(self._hooks, "before_send", context)
        return context

    def _end(
        self, context: SendContext | None, receipt: SendReceipt | None, error: TrioMQError | None
    ) -> None:
        if context is not None:
            context.receipt, context.error = receipt, error
            call_hooks(self._hooks, "after_send", context)

    # Queues

    def _choose(
        self, destinations: TopicDestinations, avoid: str | None, now: float
    ) -> QueueDestination:
        if self.faults is None:
            return self.silent.choose(destinations.turn, destinations.all, avoid, now)
        return self.faults.choose(destinations.turn, destinations.all, avoid, now)

    def _directed(self, destinations: TopicDestinations, target: SendTarget) -> QueueDestination:
        queues = destinations.queues
        queue = selected(queues, target) if callable(target) else find_queue(queues, target)
        return self._of_queue(destinations, queue)

    def _of_queue(self, destinations: TopicDestinations, queue: MessageQueue) -> QueueDestination:
        return destinations.of_queue(queue) or self._topics.destination(queue)

    def _address(self, destination: QueueDestination) -> str:
        """Return the address of the queue's master. Raises: ``ConnectionFailed`` without one."""
        if destination.address is None:
            raise ConnectionFailed(
                destination.broker_name,
                "the route names no master for this broker",
                "start its master again (`mqadmin cluster list` shows what runs)",
            )
        return destination.address

    async def _find_destinations(self, topic: str, deadline: float) -> TopicDestinations:
        settings = self.settings
        with trio.move_on_at(deadline):
            while True:
                seconds = deadline - trio.current_time() if deadline < inf else None
                await self.session.finder.publish_queues(
                    topic, settings.create_topic_key, settings.default_topic_queues, seconds
                )
                destinations = self._topics.find(topic)
                if destinations is not None:  # otherwise the route has changed
                    return destinations
        raise SendTimeout(topic, (), reason="the time went by while the route was looked up")

    async def find_route(self, topic: str) -> None:
        """Make sure that the topic's route is known.

        Raises: ``RouteNotFound``, ``NoNameServer``.
        Checkpoint: maybe, only when the route is not known.
        """
        if not self.session.routes.publish(topic):
            await self._find_destinations(topic, inf)

    async def queue_for(self, topic: str, target: SendTarget, deadline: float) -> MessageQueue:
        """Return the queue of a directed send.

        Raises: as ``send``; the errors of the application's selector.
        Checkpoint: maybe, only when the route is not known.
        """
        destinations = self._topics.find(topic) or await self._find_destinations(topic, deadline)
        return self._directed(destinations, target).queue
