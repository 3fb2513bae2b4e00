"""Pull the ranges of a task over blocking sockets, and hand the answers on in order.

Without Trio: a task's ``read`` is a plain generator in a worker's main thread, and an async
generator that is driven from outside would end after its first item without an error. A broker that
restarts, moves or is slow is retried for ``pollTimeoutMs``; then the task fails, and Spark repeats
it. Pulls are never held at the broker (all messages below the end exist already), and never change
the group's offset.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from triomq.client.spark.errors import (
    PERMANENT_REFUSALS,
    SourceError,
    Unreachable,
    data_loss,
    lost,
    refused_pull,
)
from triomq.client.spark.offsets import Queue, recreated_before
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.pull_window import PullPart, PullWindow
from triomq.client.spark.records import Block, LastMessage, first_store_time
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.pull import (
    RANGE_READ,
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
SIGN_OF_LIFE_SECONDS = 10.0
BACKOFF_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


class ConnectionPool:
    """The idle connections of this worker process, by address and access.

    So a small batch saves the time to connect. Belongs to the worker's only thread. A pooled
    connection may have died: the first failure is retried at once.
    """

    def __init__(self, connect: Callable[..., BlockingConnection] = BlockingConnection) -> None:
        self._connect = connect
        self._idle: dict[tuple[str, Access], BlockingConnection] = {}

    def take(self, address: str, access: Access) -> BlockingConnection:
        idle = self._idle.pop((address, access), None)
        return idle or self._connect(address, timeout=REQUEST_SECONDS, **access.options())

    def give_back(self, address: str, access: Access, connection: BlockingConnection) -> None:
        other = self._idle.get((address, access))
        if other is not None and other is not connection:
            other.close()
        self._idle[address, access] = connection


POOL = ConnectionPool()


@attrs.define(eq=False)
class Link:
    """The address and connection of one broker, and its recent failures."""

    address: str
    of_slave: bool = False
    connection: BlockingConnection | None = None
    failures: int = 0
    usable_from: float = 0.0


@attrs.define(eq=False)
class TaskPull:
    """The pulls of one task."""

    ranges: Sequence[QueueRange]
    options: SourceOptions
    addresses: Mapping[str, str]
    """broker name → address when the task was planned"""
    slaves: frozenset[str] = frozenset()
    """the brokers whose address is a slave's"""
    last: Mapping[Queue, LastMessage] = attrs.field(factory=dict)
    """the newest message of the batch in each queue; none of unknown queues"""
    skip_after_ms: int | None = None
    """after this time the queues of a broker that does not answer are skipped; None: never"""
    pool: ConnectionPool = POOL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _window: PullWindow = attrs.field(init=False)
    _links: dict[str, Link] = attrs.field(init=False)
    _in_flight: dict[PullPart, tuple[Link, int]] = attrs.field(init=False, factory=dict)
    _last_failure: str = "no answer yet"
    _short: dict[Queue, int] = attrs.field(init=False, factory=dict)
    """queues that end before the planned end → their end"""
    _of_one_life: set[Queue] = attrs.field(init=False, factory=set)
    """queues whose store times need no comparison, since their broker's clock was set back"""

    def __attrs_post_init__(self) -> None:
        options = self.options
        self._window = PullWindow.over(
            self.ranges,
            depth=options.pull_depth,
            batch_max=options.pull_batch_size,
            sparse=options.filters,
        )
        self._links = {
            each.queue.broker: Link(
                self.addresses.get(each.queue.broker, ""), each.queue.broker in self.slaves
            )
            for each in self.ranges
        }

    def blocks(self) -> Iterator[Block | None]:
        """Yield the messages of the task in order.

        None every ten seconds while waiting, as a sign of life for Spark.

        Raises: DataLoss, Unreachable, SourceError.
        """
        progress_at = sign_at = self.clock()
        try:
            while not self._window.done:
                oldest = self._window.oldest
                self._send()
                self._receive()
                yield from self._window.take_ready()
                if self._window.done or self._window.oldest is not oldest:
                    progress_at = sign_at = self.clock()
                    self._short.clear()
                    continue
                now = self.clock()
                if now - progress_at > self._timeout_ms(oldest.queue) / 1000:
                    self._give_up(oldest)
                    progress_at = now
                if now - sign_at > SIGN_OF_LIFE_SECONDS:
                    yield None
                    sign_at = self.clock()
        finally:
            self._release()

    def _send(self) -> None:
        """Send pulls until the window is full."""
        now = self.clock()
        blocked = {broker for broker, link in self._links.items() if link.usable_from > now}
        while (part := self._window.next_unsent(blocked)) is not None:
            broker = part.queue.broker
            link = self._links[broker]
            try:
                if link.connection is None:
                    link.connection = self.pool.take(
                        link.address or self._resolve(part), self.options.access
                    )
                opaque = link.connection.send(self._pull_request(part))
            except (RemotingError, OSError, SourceError) as error:
                self._broken(broker, str(error))
                blocked.add(broker)
                continue
            self._window.sent(part)
            self._in_flight[part] = (link, opaque)

    def _receive(self) -> None:
        """Wait for the oldest answer; if none is in flight, wait until a broker may be retried."""
        part = self._window.oldest_in_flight()
        if part is None:
            pause = (
                min((link.usable_from for link in self._links.values()), default=0.0) - self.clock()
            )
            self.sleep(max(0.001, min(pause, 1.0)))
            return
        link, opaque = self._in_flight.pop(part)
        if link.connection is None:
            self._window.ask_again(part)
            return
        try:
            response = link.connection.receive(opaque, REQUEST_SECONDS)
            self._handle(part, link, response)
        except (RemotingError, OSError) as error:
            self._window.ask_again(part)
            self._broken(part.queue.broker, str(error))

    def _handle(self, part: PullPart, link: Link, response: Command) -> None:
        """Act on one answer.

        Raises: SourceError, DataLoss.
        """
        window, broker = self._window, part.queue.broker
        if response.code == ResponseCode.SUCCESS:
            next_offset = response.header(PullMessageResponseHeader).next_begin_offset
            if self._is_of_later_life(part.queue, link, response.body):
                self._recreated(part)
            elif next_offset > part.first:
                link.failures = 0
                window.answered(part, next_offset, response.body)
            else:
                # No correct broker answers so; as an answer, it would be pulled again in a busy
                # loop.
                window.ask_again(part)
                self._broken(
                    broker,
                    f"broker {broker} answered a pull from {part.queue} at {part.first} with"
                    f" next offset {next_offset}",
                )
        elif response.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            header = response.header(PullMessageResponseHeader)
            if header.next_begin_offset > part.first:  # everything up to there was filtered out
                link.failures = 0
                window.answered(part, header.next_begin_offset, b"")
            else:
                self._not_yet(part, header.max_offset)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(part, response.header(PullMessageResponseHeader))
        elif response.code in PERMANENT_REFUSALS:
            raise refused_pull(str(part.queue), broker, response)
        else:
            window.ask_again(part)
            self._broken(
                broker,
                f"broker {broker} answered a pull from {part.queue} with {response.code}:"
                f" {response.remark}",
            )

    def _is_of_later_life(self, queue: Queue, link: Link, body: bytes | memoryview) -> bool:
        """Return whether an answer has messages of a topic that was created again.

        They are newer than the batch. So are messages from before a broker's clock was set back;
        then the last message of the batch still has its time.
        """
        last, stored_ms = self.last.get(queue), first_store_time(body)
        if last is None or stored_ms is None or stored_ms <= last.stored_ms:
            return False
        if queue in self._of_one_life or link.connection is None:
            return False
        asked = self._pull_request(PullPart(queue, last.offset, last.offset + 1), ("TAG", "*"))
        answer = link.connection.receive(link.connection.send(asked), REQUEST_SECONDS)
        if answer.code == ResponseCode.SUCCESS and first_store_time(answer.body) == last.stored_ms:
            self._of_one_life.add(queue)
            return False
        return True

    def _recreated(self, part: PullPart) -> None:
        """Handle a topic that was created again. Raises: DataLoss."""
        self._lost(part.queue, recreated_before(part.queue, part.first, self._end(part.queue)))

    def _end(self, queue: Queue) -> int:
        """Return the offset behind the last message that the task is to read."""
        return max(each.end for each in self.ranges if each.queue == queue)

    def _lost(self, queue: Queue, message: str) -> None:
        """Skip a queue whose messages are gone. Raises: DataLoss unless they may be."""
        if self.options.fail_on_data_loss:
            raise data_loss([message])
        logger.warning("%s; they are skipped", message)
        self._skip(queue)

    def _skip(self, queue: Queue) -> None:
        """Give up what has not been answered of a queue."""
        for part in [part for part in self._in_flight if part.queue == queue]:
            link, opaque = self._in_flight.pop(part)
            if link.connection is not None:
                link.connection.give_up(opaque)
        self._window.skip(queue)

    def _moved(self, part: PullPart, header: PullMessageResponseHeader) -> None:
        """Handle an offset that does not exist: it is gone, or not there yet.

        Raises: DataLoss.
        """
        least, queue = header.min_offset, part.queue
        if self._links[queue.broker].of_slave:
            self._window.ask_again(part)
            self._broken(
                queue.broker,
                f"the slave of {queue.broker} has [{least}, {header.max_offset}) of {queue} and not"
                f" {part.first}; its master is down",
            )
        elif part.first < least:
            gone_end = min(least, part.end)
            message = lost(*queue, part.first, gone_end, f"earliest is {least}")
            if self.options.fail_on_data_loss:
                raise data_loss([message])
            logger.warning("%s; %d messages are skipped", message, gone_end - part.first)
            self._window.answered(part, gone_end, b"")
        else:
            self._not_yet(part, header.max_offset)

    def _not_yet(self, part: PullPart, queue_end: int) -> None:
        """Handle a queue that ends too early.

        The broker may have restarted and still read its log, or the messages are gone.
        """
        if queue_end <= part.first and not self._links[part.queue.broker].of_slave:
            self._short[part.queue] = queue_end
        self._window.ask_again(part)
        self._pause(
            part.queue.broker,
            f"{part.queue} ends at {queue_end}, offset {part.first} is not there yet",
        )

    def _timeout_ms(self, queue: Queue) -> int:
        """Return how long to wait for a message of a queue."""
        if self.skip_after_ms is None or queue in self._short:
            return self.options.poll_timeout_ms
        return max(self.options.poll_timeout_ms, self.skip_after_ms)

    def _give_up(self, oldest: PullPart) -> None:
        """Handle a message that did not come in time: skip it if that is allowed.

        Raises: Unreachable, DataLoss.
        """
        queue = oldest.queue
        seconds = self._timeout_ms(queue) / 1000
        if queue not in self._short and self.skip_after_ms is not None:
            logger.warning(
                "broker %s gave no message for %g s (unavailableBrokerTimeout): what this batch has"
                " not read of its queues is skipped (failOnDataLoss=false), %s from %d on: %s",
                queue.broker,
                seconds,
                queue,
                oldest.first,
                self._last_failure,
            )
            for each in self.ranges:
                if each.queue.broker == queue.broker:
                    self._skip(each.queue)
            return
        if queue not in self._short:
            raise Unreachable(
                f"messages [{oldest.first}, {oldest.end}) of {queue} did not arrive within"
                f" pollTimeoutMs ({seconds:g} s): {self._last_failure}; check that the broker runs"
                " and that its address can be reached from the executors"
            )
        reason = (
            f"the queue ends at {self._short[queue]}: the topic was deleted and created again, or a"
            " broker failed over with loss"
        )
        self._lost(queue, lost(*queue, oldest.first, self._end(queue), reason))

    def _broken(self, broker: str, reason: str) -> None:
        """Close the connection to ``broker``, and look up its address before the next attempt.

        What was in flight on it is pulled again.
        """
        link = self._links[broker]
        if link.connection is not None:
            link.connection.close()
            link.connection = None
        for part in [part for part, (way, _) in self._in_flight.items() if way is link]:
            del self._in_flight[part]
            self._window.ask_again(part)
        link.address = ""
        self._pause(broker, reason)

    def _pause(self, broker: str, reason: str) -> None:
        link = self._links[broker]
        link.usable_from = (
            self.clock() + BACKOFF_SECONDS[min(link.failures, len(BACKOFF_SECONDS) - 1)]
        )
        link.failures += 1
        self._last_failure = reason
        logger.debug("pull from %s is retried: %s", broker, reason)

    def _resolve(self, part: PullPart) -> str:
        """Ask the name servers for the present address of the broker.

        Raises: Unreachable, SourceError.
        """
        # Start-up time: most tasks find each broker where the driver found it.
        from triomq.client.spark.name_servers import RouteReader

        queue, link = part.queue, self._links[part.queue.broker]
        with RouteReader(self.options.name_server, self.options.access) as name_servers:
            route = name_servers.routes([queue.topic])[queue.topic]
        address = route.addresses.get(queue.broker) if route else None
        if route is None or address is None:
            raise Unreachable(
                f"the name servers do not know broker {queue.broker} for topic {queue.topic}"
            )
        link.address, link.of_slave = address, queue.broker in route.slaves
        return address

    def _pull_request(self, part: PullPart, filtered: tuple[str, str] | None = None) -> Command:
        """Return the request for a part; ``filtered``: instead of the query's expression."""
        options = self.options
        expression_type, expression = filtered or options.expression
        header = PullMessageHeader(
            consumer_group=options.group,
            topic=part.queue.topic,
            queue_id=part.queue.queue_id,
            queue_offset=part.first,
            message_count_max=min(options.pull_batch_size, part.end - part.first),
            # The subscription comes with the request, so no heartbeat is needed.
            sys_flag=SUBSCRIPTION | RANGE_READ,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription=expression,
            sub_version=0,
            expression_type=expression_type,
            message_bytes_max=options.pull_max_bytes,
        )
        return request(RequestCode.PULL_MESSAGE, header)

    def _release(self) -> None:
        """Keep idle connections for the next task, and close those with answers in flight."""
        busy = {id(link) for link, _ in self._in_flight.values()}
        for link in self._links.values():
            if link.connection is not None:
                if id(link) in busy:
                    link.connection.close()
                else:
                    self.pool.give_back(link.address, self.options.access, link.connection)
                link.connection = None
        self._in_flight.clear()
