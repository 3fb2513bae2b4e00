"""The requests of the driver: queues, their bounds, and the group's offsets.

The driver has one blocking connection per broker and asks all brokers at once: it sends the
requests to each broker, pipelined, before it waits for the first answer. A broker that does not
answer is skipped for a while, so that it does not delay the others.
"""

import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

import attrs

from triomq.client.spark.errors import PERMANENT_REFUSALS, SourceError, Unreachable, refused_pull
from triomq.client.spark.name_servers import RouteReader, TopicAddresses
from triomq.client.spark.offsets import Bounds, Offsets, Queue
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.records import Block, read_records
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.pull import SUBSCRIPTION, PullMessageHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")
Asked = tuple[Queue, RequestCode]
"""the key of a request and of its answer"""

REQUEST_SECONDS = 3.0
PIPELINE_MAX = 256
"""requests in flight to one broker"""
SAMPLED_MESSAGES = 16
"""messages of a queue whose sizes stand for all"""
SILENCE_SECONDS = 10.0
"""longest time for which a broker that did not answer is skipped"""
WARN_SECONDS = 60.0
"""least time between two warnings about one broker, or about the name servers"""
NO_MESSAGE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""answers to a pull without messages"""


@attrs.define(eq=False)
class BrokerState:
    """The connection to one broker, and its recent failures."""

    address: str
    of_slave: bool = False
    connection: BlockingConnection | None = None
    gives_messages: bool = False
    """whether this slave has answered a pull"""
    failures: int = 0
    ask_from: float = 0.0
    warned_at: float = float("-inf")


class DriverClient:
    """The connections of a query's driver to name servers and brokers.

    Not thread-safe: Spark calls the driver side from one thread.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._name_servers = RouteReader(options.name_server, options.access)
        self._routes: dict[str, TopicAddresses | None] = {}
        self._refreshed_at = float("-inf")
        self._warned_at = float("-inf")
        self._brokers: dict[str, BrokerState] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """Broker name → address, of the known brokers."""
        return {
            broker: address
            for route in self._routes.values()
            if route
            for broker, address in route.addresses.items()
        }

    @property
    def slaves(self) -> frozenset[str]:
        """The brokers without a master, whose slave is read."""
        return frozenset().union(*(route.slaves for route in self._routes.values() if route))

    @property
    def known_topics(self) -> set[str]:
        return {topic for topic, route in self._routes.items() if route}

    def refresh(self, *, at_once: bool = False) -> None:
        """Look up the routes again if they are older than ``metadataRefreshMs``.

        If no name server answers, known routes stay; without known routes, the look-up is retried.

        Raises: Unreachable.
        """
        now = self._clock()
        if not at_once and now - self._refreshed_at < self._options.metadata_refresh_ms / 1000:
            return
        try:
            routes = self._look_up()
        except Unreachable as error:
            if not self._routes:
                routes = self._retried(self._look_up, error)
            else:
                routes = {}
                if now - self._warned_at > WARN_SECONDS:
                    self._warned_at = now
                    logger.warning("using the routes known so far: %s", error)
        for topic, route in routes.items():
            if route is None and self._routes.get(topic):
                logger.warning("topic %s has no route any more; its queues are not read", topic)
            self._routes[topic] = route
        self._refreshed_at = self._clock()

    def _look_up(self) -> dict[str, TopicAddresses | None]:
        """Return the routes of the query's topics. Raises: Unreachable, SourceError."""
        if self._options.pattern is None:
            return self._name_servers.routes(self._options.topics)
        matching = self._name_servers.topics(self._options.pattern)
        gone = dict.fromkeys(topic for topic in self._routes if topic not in matching)
        return {**gone, **self._name_servers.routes(matching)}

    def queues(self) -> list[Queue]:
        """Return the queues of the query that have a route now."""
        routed = [
            queue for _, route in sorted(self._routes.items()) if route for queue in route.queues()
        ]
        if self._options.assign:
            return sorted(set(self._options.assign) & set(routed))
        return routed

    def bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of ``queues``, without those whose broker does not answer.

        A slave that gives no messages counts as one that does not answer.
        """
        end, least = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET
        headers = ((end, GetMaxOffsetHeader), (least, GetMinOffsetHeader))
        answers = self._ask(
            {
                (queue, code): header(queue.topic, queue.queue_id)
                for code, header in headers
                for queue in queues
            }
        )
        offsets = {
            asked: response.header(OffsetResponseHeader).offset
            for asked, response in answers.items()
        }
        found = {
            queue: Bounds(
                offsets[queue, least], offsets[queue, end], self._brokers[queue.broker].of_slave
            )
            for queue in queues
            if (queue, least) in offsets and (queue, end) in offsets
        }
        return self._readable(found)

    def _readable(self, found: dict[Queue, Bounds]) -> dict[Queue, Bounds]:
        """Return ``found`` without the queues of slaves that refuse pulls."""
        samples = {
            queue.broker: queue
            for queue, bounds in found.items()
            if bounds.of_slave and not self._brokers[queue.broker].gives_messages
        }
        if not samples:
            return found
        answers = self._first_messages({queue: found[queue].least for queue in samples.values()})
        for queue in answers:
            self._brokers[queue.broker].gives_messages = True
        refusing = samples.keys() - {queue.broker for queue in answers}
        return {queue: bounds for queue, bounds in found.items() if queue.broker not in refusing}

    def all_bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of all ``queues``.

        Raises: Unreachable after the configured retries.
        """

        def ask() -> dict[Queue, Bounds]:
            found = self.bounds(queues)
            self._require_answers(queues, found)
            return found

        return self._with_retries(ask)

    def offsets_at(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        """Return the offset of the first message of each queue stored at this time or later.

        The queue's end if it has none.

        Raises: Unreachable after the configured retries.
        """

        def ask() -> Offsets:
            found = self.answered_offsets_at(queues, timestamp_ms)
            self._require_answers(queues, found)
            return found

        return self._with_retries(ask)

    def answered_offsets_at(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        """Return the same without the queues whose broker does not answer."""
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answers = self._ask(
            {
                (queue, code): SearchOffsetHeader(
                    topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
                )
                for queue in queues
            }
        )
        return {
            queue: response.header(OffsetResponseHeader).offset
            for (queue, _), response in answers.items()
        }

    def store_times(self, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
        """Return the store time (ms) of one message of each queue; None if it is gone.

        Without the queues whose broker does not answer.
        """
        times: dict[Queue, int | None] = {}
        for queue, response in self._first_messages(offsets).items():
            times[queue] = None
            if response.code == ResponseCode.SUCCESS:
                block = Block(queue, offsets[queue], offsets[queue] + 1, response.body)
                records = read_records([block])
                if len(records):
                    times[queue] = int(records.store_timestamp[0])
        return times

    def mean_bytes(self, offsets: Mapping[Queue, int]) -> dict[Queue, float]:
        """Return the mean stored size of the first messages of each queue from its offset on.

        Without the queues that give none.
        """
        means = {}
        for queue, response in self._first_messages(offsets, SAMPLED_MESSAGES).items():
            if response.code == ResponseCode.SUCCESS:
                block = Block(
                    queue, offsets[queue], offsets[queue] + SAMPLED_MESSAGES, response.body
                )
                sizes = read_records([block]).size
                if len(sizes):
                    means[queue] = float(sizes.mean())
        return means

    def _first_messages(self, offsets: Mapping[Queue, int], count: int = 1) -> dict[Queue, Command]:
        """Pull ``count`` messages of each queue; leave out brokers that refuse or do not answer."""
        code = RequestCode.PULL_MESSAGE
        answers = self._ask(
            {
                (queue, code): PullMessageHeader(
                    consumer_group=self._options.group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=offset,
                    message_count_max=count,
                    sys_flag=SUBSCRIPTION,
                    commit_offset=0,
                    suspend_timeout_ms=0,
                    subscription="*",
                    sub_version=0,
                    expression_type="TAG",
                )
                for queue, offset in offsets.items()
            },
            NO_MESSAGE,
        )
        return {queue: response for (queue, _), response in answers.items()}

    def group_offsets(self, queues: Sequence[Queue]) -> Offsets:
        """Return the offsets that the group has stored, without queues of which it has none.

        Raises: Unreachable after the configured retries.
        """
        code = RequestCode.QUERY_CONSUMER_OFFSET
        headers = {
            (queue, code): QueryConsumerOffsetHeader(
                consumer_group=self._options.group, topic=queue.topic, queue_id=queue.queue_id
            )
            for queue in queues
        }

        def ask() -> dict[Asked, Command]:
            answers = self._ask(headers, frozenset({ResponseCode.QUERY_NOT_FOUND}))
            self._require_answers(queues, {queue for queue, _ in answers})
            return answers

        return {
            queue: response.header(OffsetResponseHeader).offset
            for (queue, _), response in self._with_retries(ask).items()
            if response.code == ResponseCode.SUCCESS
        }

    def store_group_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Store the group's offsets at the brokers.

        They are for displays only, so failures are logged, not raised.
        """
        group, code = self._options.group, RequestCode.UPDATE_CONSUMER_OFFSET
        headers = {
            (queue, code): UpdateConsumerOffsetHeader(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
            )
            for queue, offset in offsets.items()
        }
        try:
            self._ask(headers)
        except SourceError as error:
            logger.warning("progress of group %s was not stored: %s", group, error)

    def close(self) -> None:
        self._name_servers.close()
        for state in self._brokers.values():
            if state.connection is not None:
                state.connection.close()
                state.connection = None

    def _ask(
        self, headers: Mapping[Asked, object], other_codes: frozenset[int] = frozenset()
    ) -> dict[Asked, Command]:
        """Send every request to its broker and return the answers of the brokers that answer.

        Answers are those with SUCCESS or one of ``other_codes``.
        """
        waiting: dict[str, list[Asked]] = {}
        for asked in headers:
            waiting.setdefault(asked[0].broker, []).append(asked)
        answers: dict[Asked, Command] = {}
        brokers = {
            broker: state for broker in waiting if (state := self._state(broker)) is not None
        }
        while brokers:
            in_flight: dict[str, list[tuple[Asked, int]]] = {}
            for broker, state in list(brokers.items()):
                part, waiting[broker] = (
                    waiting[broker][:PIPELINE_MAX],
                    waiting[broker][PIPELINE_MAX:],
                )
                try:
                    if state.connection is None:
                        state.connection = BlockingConnection(
                            state.address, timeout=REQUEST_SECONDS, **self._options.access.options()
                        )
                    in_flight[broker] = [
                        (asked, state.connection.send(request(asked[1], headers[asked])))
                        for asked in part
                    ]
                except (RemotingError, OSError) as error:
                    self._silent(broker, brokers.pop(broker), error)
            for broker, sent in in_flight.items():
                self._gather(broker, brokers, sent, answers, other_codes)
            for broker in [broker for broker in brokers if not waiting[broker]]:
                del brokers[broker]
        return answers

    def _gather(
        self,
        broker: str,
        brokers: dict[str, BrokerState],
        sent: Sequence[tuple[Asked, int]],
        answers: dict[Asked, Command],
        other_codes: frozenset[int],
    ) -> None:
        """Receive a broker's answers. Raises: SourceError for a permanent refusal of a pull."""
        state = brokers[broker]
        assert state.connection is not None
        refusal: SourceError | None = None
        try:
            for asked, opaque in sent:
                response = state.connection.receive(opaque, REQUEST_SECONDS)
                if response.code == ResponseCode.SUCCESS or response.code in other_codes:
                    answers[asked] = response
                elif state.of_slave and asked[1] == RequestCode.PULL_MESSAGE:
                    self._warn_at_times(
                        state,
                        f"the master of {broker} is down, and its slave at {state.address} gives no"
                        f" messages: {response.remark}; with slaveReadEnable=true on the slave its"
                        " queues are read on",
                    )
                elif asked[1] == RequestCode.PULL_MESSAGE and response.code in PERMANENT_REFUSALS:
                    refusal = refusal or refused_pull(str(asked[0]), broker, response)
                else:
                    self._warn_at_times(
                        state,
                        f"broker {broker} at {state.address} refuses a request with"
                        f" {response.code}: {response.remark}",
                    )
            state.failures = 0
        except (RemotingError, OSError) as error:
            self._silent(broker, state, error)
            del brokers[broker]
        if refusal is not None:
            raise refusal

    def _state(self, broker: str) -> BrokerState | None:
        """Return the state of ``broker``, None while it is skipped or has no address."""
        address = self.addresses.get(broker)
        state = self._brokers.get(broker)
        if state is None:
            if address is None:
                return None
            state = self._brokers[broker] = BrokerState(address)
        if address is not None and address != state.address:
            if state.connection is not None:
                state.connection.close()
            state.connection, state.address, state.ask_from = None, address, 0.0
            state.gives_messages = False
        state.of_slave = broker in self.slaves
        return state if state.ask_from <= self._clock() else None

    def _silent(self, broker: str, state: BrokerState, error: Exception) -> None:
        """Note that ``broker`` did not answer, and when to ask again.

        At once after a first failure, since an idle connection may have died.
        """
        now = self._clock()
        if state.connection is not None:
            state.connection.close()
            state.connection = None
        state.ask_from = (
            now + min(SILENCE_SECONDS, 0.1 * 2**state.failures) if state.failures else now
        )
        state.failures += 1
        if state.failures > 1:
            self._warn_at_times(
                state,
                f"broker {self._describe(broker)} does not answer, its queues are not read:"
                f" {error}",
            )
        # The broker may have moved: look up the routes again in a second.
        self._refreshed_at = min(
            self._refreshed_at, now - self._options.metadata_refresh_ms / 1000 + 1.0
        )

    def _warn_at_times(self, state: BrokerState, text: str) -> None:
        """Log a warning about a broker, at most once in ``WARN_SECONDS``."""
        if self._clock() - state.warned_at > WARN_SECONDS:
            state.warned_at = self._clock()
            logger.warning("%s", text)

    def _require_answers(self, queues: Sequence[Queue], answered: Container[Queue]) -> None:
        missing = sorted({queue.broker for queue in queues if queue not in answered})
        if missing:
            raise Unreachable(
                f"no answer from {', '.join(map(self._describe, missing))}; check that the brokers"
                " run and can be reached from the driver"
            )

    def _describe(self, broker: str) -> str:
        state = self._brokers.get(broker)
        return f"{broker} at {state.address}" if state else f"{broker} (no address known)"

    def _with_retries(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Unreachable as error:
            return self._retried(ask, error)

    def _retried(self, ask: Callable[[], T], error: Unreachable) -> T:
        """Repeat ``ask`` with a doubling pause, up to the configured retries.

        Raises: the last error.
        """
        pause = self._options.retry_interval_ms / 1000
        for _ in range(self._options.retries):
            logger.info("asking again in %.1f s: %s", pause, error)
            self._sleep(pause)
            pause *= 2
            for state in self._brokers.values():
                state.ask_from = 0.0
            try:
                return ask()
            except Unreachable as again:
                error = again
        raise error
