"""What a task does: pull its ranges over blocking sockets and hand the answers on in order.

No Trio here: a task's `read` is a plain generator in a worker's main thread, and an async generator driven from outside would end
after its first item without an error.  Trouble (a broker that restarts, moves, or is slow) is waited out for `pollTimeoutMs`; then
the task fails and Spark repeats it.  Pulls never suspend at the broker (all messages below the end exist already) and never move the
group's offset.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from triomq.client.spark.errors import SourceError, Unreachable, data_loss, lost
from triomq.client.spark.name_servers import NameServers
from triomq.client.spark.offsets import Queue
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.pull_window import PullWindow, Segment
from triomq.client.spark.records import Block
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.pull import SUBSCRIPTION, PullMessageHeader, PullMessageResponseHeader

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
SIGN_OF_LIFE_SECONDS = 10.0
BACKOFF_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
HOPELESS = {
    ResponseCode.NO_PERMISSION: "check the topic's and the broker's permissions",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the option 'tags'",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group with `mqadmin updateSubGroup`, or name an existing one in 'groupId'",
}
"""refusals that no repetition can cure → what to do"""


class ConnectionPool:
    """Idle connections of this worker process by address and how it is approached; a small batch saves the time to connect.

    Belongs to the worker's one thread.  A pooled connection may have died meanwhile: the first failure costs no waiting time.
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
    """The way to one broker, as far as this task knows it."""

    address: str
    connection: BlockingConnection | None = None
    failures: int = 0
    usable_from: float = 0.0


@attrs.define(eq=False)
class TaskPull:
    """Pulls the ranges of one task."""

    ranges: Sequence[QueueRange]
    options: SourceOptions
    addresses: Mapping[str, str]
    """broker name → address when the task was planned"""
    pool: ConnectionPool = POOL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _window: PullWindow = attrs.field(init=False)
    _links: dict[str, Link] = attrs.field(init=False)
    _flying: dict[Segment, tuple[Link, int]] = attrs.field(init=False, factory=dict)
    _trouble: str = "no answer yet"
    _short: dict[Queue, int] = attrs.field(init=False, factory=dict)
    """queues that end before what was promised, and where"""

    def __attrs_post_init__(self) -> None:
        options = self.options
        self._window = PullWindow.over(
            self.ranges, depth=options.pull_depth, batch_max=options.pull_batch_size, sparse=bool(options.tags)
        )
        self._links = {each.queue.broker: Link(self.addresses.get(each.queue.broker, "")) for each in self.ranges}

    def blocks(self) -> Iterator[Block | None]:
        """The messages of the task in order; None now and then while waiting, as a sign of life for Spark.

        Raises DataLoss, Unreachable or SourceError.
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
                if now - progress_at > self.options.poll_timeout_ms / 1000:
                    self._give_up(oldest)
                    progress_at = now
                if now - sign_at > SIGN_OF_LIFE_SECONDS:
                    yield None
                    sign_at = self.clock()
        finally:
            self._release()

    def _send(self) -> None:
        """Send what may be under way."""
        now = self.clock()
        blocked = {broker for broker, link in self._links.items() if link.usable_from > now}
        while (segment := self._window.next_unsent(blocked)) is not None:
            broker = segment.queue.broker
            link = self._links[broker]
            try:
                if link.connection is None:
                    link.connection = self.pool.take(link.address or self._resolve(segment), self.options.access)
                opaque = link.connection.send(self._pull_request(segment))
            except (RemotingError, OSError, SourceError) as error:
                self._broken(broker, str(error))
                blocked.add(broker)
                continue
            self._window.sent(segment)
            self._flying[segment] = (link, opaque)

    def _receive(self) -> None:
        """Wait for the answer that everything waits for; without one under way, wait until a broker may be tried again."""
        segment = self._window.oldest_in_flight()
        if segment is None:
            pause = min((link.usable_from for link in self._links.values()), default=0.0) - self.clock()
            self.sleep(max(0.001, min(pause, 1.0)))
            return
        link, opaque = self._flying.pop(segment)
        if link.connection is None:
            self._window.ask_again(segment)
            return
        try:
            response = link.connection.receive(opaque, REQUEST_SECONDS)
            self._judge(segment, link, response)
        except (RemotingError, OSError) as error:
            self._window.ask_again(segment)
            self._broken(segment.queue.broker, str(error))

    def _judge(self, segment: Segment, link: Link, response: Command) -> None:
        """Act on one answer."""
        window, broker = self._window, segment.queue.broker
        if response.code == ResponseCode.SUCCESS:
            link.failures = 0
            window.answered(segment, response.header(PullMessageResponseHeader).next_begin_offset, response.body)
        elif response.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            header = response.header(PullMessageResponseHeader)
            if header.next_begin_offset > segment.first:  # everything up to there was filtered out
                link.failures = 0
                window.answered(segment, header.next_begin_offset, b"")
            else:
                self._not_yet(segment, header.max_offset)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(segment, response.header(PullMessageResponseHeader))
        elif response.code in HOPELESS:
            raise SourceError(
                f"broker {broker} refuses pulls from {segment.queue}: {response.remark}; {HOPELESS[ResponseCode(response.code)]}"
            )
        else:
            window.ask_again(segment)
            self._broken(
                broker, f"broker {broker} answered a pull from {segment.queue} with {response.code}: {response.remark}"
            )

    def _moved(self, segment: Segment, header: PullMessageResponseHeader) -> None:
        """The broker says that the offset does not exist: it is gone, or not there yet."""
        least, queue = header.min_offset, segment.queue
        if segment.first < least:
            gone_end = min(least, segment.end)
            message = lost(queue.topic, queue.broker, queue.queue_id, segment.first, gone_end, f"earliest is {least}")
            if self.options.fail_on_data_loss:
                raise data_loss([message])
            logger.warning("%s; %d messages are skipped", message, gone_end - segment.first)
            self._window.answered(segment, gone_end, b"")
        else:
            self._not_yet(segment, header.max_offset)

    def _not_yet(self, segment: Segment, queue_end: int) -> None:
        """The broker has less than was promised: it may have restarted and still be reading its log, or the messages are gone."""
        if queue_end <= segment.first:
            self._short[segment.queue] = queue_end
        self._window.ask_again(segment)
        self._pause(
            segment.queue.broker, f"{segment.queue} ends at {queue_end}, offset {segment.first} is not there yet"
        )

    def _give_up(self, oldest: Segment) -> None:
        """`pollTimeoutMs` is over.  Raises, unless the messages are gone and may be skipped."""
        seconds = self.options.poll_timeout_ms / 1000
        queue = oldest.queue
        if queue not in self._short:
            raise Unreachable(
                f"messages [{oldest.first}, {oldest.end}) of {queue} did not arrive within pollTimeoutMs ({seconds:g} s): {self._trouble}; "
                "check that the broker runs and that its address can be reached from the executors"
            )
        reason = f"the queue ends at {self._short[queue]}: the topic was deleted and created again, or a broker failed over with loss"
        end = max(each.end for each in self.ranges if each.queue == queue)
        message = lost(queue.topic, queue.broker, queue.queue_id, oldest.first, end, reason)
        if self.options.fail_on_data_loss:
            raise data_loss([message])
        logger.warning("%s; they are skipped", message)
        self._window.skip(queue)

    def _broken(self, broker: str, reason: str) -> None:
        """Drop the connection to *broker*, take back what is in flight on it, and look up its address anew before the next try."""
        link = self._links[broker]
        if link.connection is not None:
            link.connection.close()
            link.connection = None
        for segment in [segment for segment, (way, _) in self._flying.items() if way is link]:
            del self._flying[segment]
            self._window.ask_again(segment)
        link.address = ""
        self._pause(broker, reason)

    def _pause(self, broker: str, reason: str) -> None:
        link = self._links[broker]
        link.usable_from = self.clock() + BACKOFF_SECONDS[min(link.failures, len(BACKOFF_SECONDS) - 1)]
        link.failures += 1
        self._trouble = reason
        logger.debug("pull from %s is tried again: %s", broker, reason)

    def _resolve(self, segment: Segment) -> str:
        """Ask the name servers where the broker is now.  Raises SourceError when it is nowhere."""
        queue, link = segment.queue, self._links[segment.queue.broker]
        with NameServers(self.options.name_server, self.options.access) as name_servers:
            route = name_servers.routes([queue.topic])[queue.topic]
        address = route.addresses.get(queue.broker) if route else None
        if address is None:
            raise Unreachable(f"no name server knows a broker {queue.broker} for topic {queue.topic}")
        link.address = address
        return address

    def _pull_request(self, segment: Segment) -> Command:
        options = self.options
        header = PullMessageHeader(
            consumer_group=options.group,
            topic=segment.queue.topic,
            queue_id=segment.queue.queue_id,
            queue_offset=segment.first,
            message_count_max=min(options.pull_batch_size, segment.end - segment.first),
            sys_flag=SUBSCRIPTION,  # given with the request, so no heartbeat is needed
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription=options.tag_text,
            sub_version=0,
            expression_type="TAG",
            message_bytes_max=options.pull_max_bytes,
        )
        return request(RequestCode.PULL_MESSAGE, header)

    def _release(self) -> None:
        """Keep idle connections for the next task; those with answers under way are of no use any more."""
        busy = {id(link) for link, _ in self._flying.values()}
        for link in self._links.values():
            if link.connection is not None:
                if id(link) in busy:
                    link.connection.close()
                else:
                    self.pool.give_back(link.address, self.options.access, link.connection)
                link.connection = None
        self._flying.clear()
