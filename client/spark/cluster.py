"""The driver's view of the cluster: queues, where they begin and end, and the group's progress.

One blocking connection per broker; all brokers are asked at once (requests go out to each before the first answer is awaited), each
with all its queues in one pipeline.  A broker that does not answer is left alone for a while, so that it cannot slow down the others.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs

from triomq.client.spark.errors import SourceError, Unreachable
from triomq.client.spark.name_servers import NameServers, ReadRoute
from triomq.client.spark.offsets import Bounds, Offsets, Queue
from triomq.client.spark.options import SourceOptions
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)

logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

REQUEST_SECONDS = 3.0
PIPELINE_MAX = 256
"""requests on the way to one broker"""
SILENCE_SECONDS = 10.0
"""how long a broker that did not answer is left alone, at most"""
COMPLAIN_SECONDS = 60.0


@attrs.define(eq=False)
class BrokerLine:
    """The connection to one broker and how it has been doing."""

    address: str
    connection: BlockingConnection | None = None
    failures: int = 0
    ask_from: float = 0.0
    complained_at: float = float("-inf")


class Cluster:
    """Asks name servers and brokers for a query's driver.  Not thread-safe; Spark calls the driver side from one thread."""

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
        self._name_servers = NameServers(options.name_server, options.access)
        self._routes: dict[str, ReadRoute | None] = {}
        self._refreshed_at = float("-inf")
        self._complained_at = float("-inf")
        self._lines: dict[str, BrokerLine] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """broker name → address, as far as known."""
        return {
            broker: address for route in self._routes.values() if route for broker, address in route.addresses.items()
        }

    @property
    def known_topics(self) -> set[str]:
        return {topic for topic, route in self._routes.items() if route}

    def refresh(self, *, at_once: bool = False) -> None:
        """Look routes up again when they are older than `metadataRefreshMs`.

        When no name server answers, known routes stay; without any, this is tried again and at last raises Unreachable.
        """
        now = self._clock()
        if not at_once and now - self._refreshed_at < self._options.metadata_refresh_ms / 1000:
            return
        try:
            routes = self._name_servers.routes(self._options.topics)
        except Unreachable as error:
            if not self._routes:
                routes = self._retried(lambda: self._name_servers.routes(self._options.topics), error)
            else:
                routes = {}
                if now - self._complained_at > COMPLAIN_SECONDS:
                    self._complained_at = now
                    logger.warning("going on with the routes known so far: %s", error)
        for topic, route in routes.items():
            if route is None and self._routes.get(topic):
                logger.warning("topic %s has no route any more; its queues stand still", topic)
            self._routes[topic] = route
        self._refreshed_at = self._clock()

    def queues(self) -> list[Queue]:
        """The queues of the query that have a route now."""
        routed = [queue for _, route in sorted(self._routes.items()) if route for queue in route.queues()]
        if self._options.assign:
            return sorted(set(self._options.assign) & set(routed))
        return routed

    def bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """Where *queues* begin and end; queues whose broker does not answer are left out."""
        least = {
            (queue, False): request(
                RequestCode.GET_MIN_OFFSET, GetMinOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
            )
            for queue in queues
        }
        end = {
            (queue, True): request(
                RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
            )
            for queue in queues
        }
        answers = self._ask({key: (key[0].broker, command) for key, command in {**end, **least}.items()})
        offsets = {key: response.header(OffsetResponseHeader).offset for key, response in answers.items()}
        return {
            queue: Bounds(offsets[queue, False], offsets[queue, True])
            for queue in queues
            if (queue, False) in offsets and (queue, True) in offsets
        }

    def all_bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """As `bounds`, but every broker must answer.  Raises Unreachable after the retries that the options allow."""

        def ask() -> dict[Queue, Bounds]:
            found = self.bounds(queues)
            missing = sorted({queue.broker for queue in queues if queue not in found})
            if missing:
                raise Unreachable(
                    f"no answer from {', '.join(self._describe(broker) for broker in missing)}; check that the brokers run and can be reached from the driver"
                )
            return found

        return self._with_retries(ask)

    def offsets_at(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        """The first offset of each queue whose message was stored at *timestamp_ms* or later; the queue's end when there is none.

        Raises Unreachable after the retries that the options allow.
        """

        def ask() -> Offsets:
            answers = self._ask(
                {
                    queue: (
                        queue.broker,
                        request(
                            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                            SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms),
                        ),
                    )
                    for queue in queues
                }
            )
            missing = sorted({queue.broker for queue in queues if queue not in answers})
            if missing:
                raise Unreachable(
                    f"no answer from {', '.join(self._describe(broker) for broker in missing)}; check that the brokers run and can be reached from the driver"
                )
            return {queue: response.header(OffsetResponseHeader).offset for queue, response in answers.items()}

        return self._with_retries(ask)

    def store_group_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Tell the brokers how far the group is.  For displays only, so failures are logged and never raised."""
        group = self._options.group
        try:
            self._ask(
                {
                    queue: (
                        queue.broker,
                        request(
                            RequestCode.UPDATE_CONSUMER_OFFSET,
                            UpdateConsumerOffsetHeader(
                                consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
                            ),
                        ),
                    )
                    for queue, offset in offsets.items()
                }
            )
        except SourceError as error:
            logger.warning("progress of group %s was not stored: %s", group, error)

    def close(self) -> None:
        self._name_servers.close()
        for line in self._lines.values():
            if line.connection is not None:
                line.connection.close()
                line.connection = None

    def _ask(self, requests: Mapping[K, tuple[str, Command]]) -> dict[K, Command]:
        """Send every request to its broker and gather the answers; what a silent broker was asked is left out."""
        waiting: dict[str, list[tuple[K, Command]]] = {}
        for key, (broker, command) in requests.items():
            waiting.setdefault(broker, []).append((key, command))
        answers: dict[K, Command] = {}
        lines = {broker: line for broker in waiting if (line := self._line(broker)) is not None}
        while lines:
            flying: dict[str, list[tuple[K, int]]] = {}
            for broker, line in list(lines.items()):
                part, waiting[broker] = waiting[broker][:PIPELINE_MAX], waiting[broker][PIPELINE_MAX:]
                try:
                    if line.connection is None:
                        line.connection = BlockingConnection(
                            line.address, timeout=REQUEST_SECONDS, **self._options.access.options()
                        )
                    flying[broker] = [(key, line.connection.send(command)) for key, command in part]
                except (RemotingError, OSError) as error:
                    self._silent(broker, lines.pop(broker), error)
            for broker, sent in flying.items():
                self._gather(broker, lines, sent, answers)
            for broker in [broker for broker in lines if not waiting[broker]]:
                del lines[broker]
        return answers

    def _gather(
        self, broker: str, lines: dict[str, BrokerLine], sent: Sequence[tuple[K, int]], answers: dict[K, Command]
    ) -> None:
        line = lines[broker]
        assert line.connection is not None
        try:
            for key, opaque in sent:
                response = line.connection.receive(opaque, REQUEST_SECONDS)
                if response.code == ResponseCode.SUCCESS:
                    answers[key] = response
                else:
                    logger.warning(
                        "broker %s at %s refuses request with %s: %s",
                        broker,
                        line.address,
                        response.code,
                        response.remark,
                    )
            line.failures = 0
        except (RemotingError, OSError) as error:
            self._silent(broker, line, error)
            del lines[broker]

    def _line(self, broker: str) -> BrokerLine | None:
        """The line to *broker*, or None while it is to be left alone or has no address."""
        address = self.addresses.get(broker)
        line = self._lines.get(broker)
        if line is None:
            if address is None:
                return None
            line = self._lines[broker] = BrokerLine(address)
        if address is not None and address != line.address:
            if line.connection is not None:
                line.connection.close()
            line.connection, line.address, line.ask_from = None, address, 0.0
        return line if line.ask_from <= self._clock() else None

    def _silent(self, broker: str, line: BrokerLine, error: Exception) -> None:
        """Note that *broker* did not answer, and when to try again; an idle connection that died costs no waiting."""
        now = self._clock()
        if line.connection is not None:
            line.connection.close()
            line.connection = None
        line.ask_from = now + min(SILENCE_SECONDS, 0.1 * 2**line.failures) if line.failures else now
        line.failures += 1
        if line.failures > 1 and now - line.complained_at > COMPLAIN_SECONDS:
            line.complained_at = now
            logger.warning("broker %s does not answer, its queues stand still: %s", self._describe(broker), error)
        self._refreshed_at = min(
            self._refreshed_at, now - self._options.metadata_refresh_ms / 1000 + 1.0
        )  # it may have moved

    def _describe(self, broker: str) -> str:
        line = self._lines.get(broker)
        return f"{broker} at {line.address}" if line else f"{broker} (no address known)"

    def _with_retries(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Unreachable as error:
            return self._retried(ask, error)

    def _retried(self, ask: Callable[[], T], error: Unreachable) -> T:
        """Repeat *ask* as often as the options say, waiting twice as long each time; raise the last error."""
        pause = self._options.retry_interval_ms / 1000
        for _ in range(self._options.retries):
            logger.info("asking again in %.1f s: %s", pause, error)
            self._sleep(pause)
            pause *= 2
            for line in self._lines.values():
                line.ask_from = 0.0
            try:
                return ask()
            except Unreachable as again:
                error = again
        raise error
