"""Send the batches of a task over blocking sockets, until each is acknowledged.

Several requests are in flight (``sendDepth``), of ordered messages one for each queue: a broker may
handle two requests of one connection in any order. A batch that is refused or unanswered is sent
again, to another broker if its messages may go to any queue.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable

import attrs

from triomq.client.spark.errors import NotDelivered, SourceError, Unreachable
from triomq.client.spark.name_servers import TopicAddresses
from triomq.client.spark.sink.outgoing import QueueWish, Refuse, SinkBatch
from triomq.client.spark.sink.sink_options import SinkOptions
from triomq.client.spark.task_pull import POOL, ConnectionPool
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.java_hash import index_by_hash
from triomq.remoting.protocol.message_properties import WAIT, properties_text
from triomq.remoting.protocol.names import DEFAULT_TOPIC

logger = logging.getLogger(__name__)

CODES = frozenset(ResponseCode)
BACKOFF_SECONDS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
STORED_LESS_SAFELY = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""the message is stored, but not yet as safely as the broker's settings demand"""
TEMPORARY = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
"""refusals that another try, or another broker, may not repeat"""


@attrs.define(eq=False)
class Route:
    """Where the messages of a topic can go."""

    addresses: TopicAddresses
    queues: list[tuple[str, int]]
    """(broker, queue), sorted"""
    turn: int


@attrs.define(eq=False)
class SentBatch:
    """A request that is not answered yet."""

    batch: SinkBatch
    broker: str
    queue_id: int
    connection: BlockingConnection
    opaque: int


@attrs.define(eq=False)
class Delivery:
    """The sends of one task. ``submit`` batches, then ``finish``."""

    options: SinkOptions
    find_route: Callable[[str], TopicAddresses | None]
    """topic → where it can be written; None if it does not exist"""
    pool: ConnectionPool = POOL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    refuse: Refuse | None = None
    """takes messages that a broker refuses for what they are; without it they fail the task"""
    acknowledged: dict[str, int] = attrs.field(factory=dict, init=False)
    """topic → messages"""
    stored_less_safely: int = attrs.field(default=0, init=False)
    _waiting: deque[SinkBatch] = attrs.field(factory=deque, init=False)
    _in_flight: deque[SentBatch] = attrs.field(factory=deque, init=False)
    _routes: dict[str, Route] = attrs.field(factory=dict, init=False)
    _links: dict[str, tuple[str, BlockingConnection]] = attrs.field(factory=dict, init=False)
    """broker → address and connection"""
    _avoided: set[str] = attrs.field(factory=set, init=False)
    """brokers that failed last"""

    def wish_of(self, wish: QueueWish) -> QueueWish:
        """Return the queue of a sharding key; other wishes as they are.

        Raises: SourceError, Unreachable.
        """
        if wish.sharding_key is None:
            return wish
        queues = self._route(wish.topic).queues
        broker, queue_id = queues[index_by_hash(wish.sharding_key, len(queues))]
        return QueueWish(wish.topic, broker, queue_id)

    def submit(self, batch: SinkBatch) -> None:
        """Take a batch; wait while ``sendDepth`` requests are in flight.

        Raises: NotDelivered, SourceError, Unreachable.
        """
        self._waiting.append(batch)
        self._send_waiting()
        while len(self._in_flight) >= self.options.depth or len(self._waiting) > self.options.depth:
            self._step()

    def finish(self) -> None:
        """Wait until every message is acknowledged.

        Raises: NotDelivered, SourceError, Unreachable.
        """
        while self._waiting or self._in_flight:
            self._send_waiting()
            self._step()

    def close(self) -> None:
        """Keep idle connections for the next task, and close those with answers in flight."""
        busy = {sent.broker for sent in self._in_flight}
        for broker, (address, connection) in self._links.items():
            if broker in busy:
                connection.close()
            else:
                self.pool.give_back(address, self.options.access, connection)
        self._links.clear()

    def _step(self) -> None:
        """Take the oldest answer; without one, wait until a batch may be sent again."""
        if self._in_flight:
            self._take_answer(self._in_flight.popleft())
        elif self._waiting:
            pause = min(batch.retry_at for batch in self._waiting) - self.clock()
            self.sleep(max(0.001, min(pause, 1.0)))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what may be sent now, in order; a queue with a request in flight waits."""
        busy = {sent.batch.wish for sent in self._in_flight if not sent.batch.wish.is_any}
        later: list[SinkBatch] = []
        while self._waiting and len(self._in_flight) < self.options.depth:
            batch = self._waiting.popleft()
            if batch.wish in busy or batch.retry_at > self.clock():
                later.append(batch)
            else:
                self._send(batch)
            if not batch.wish.is_any:
                busy.add(batch.wish)
        self._waiting.extendleft(reversed(later))

    def _send(self, batch: SinkBatch) -> None:
        if batch.tries == 0:
            batch.first_try = self.clock()
        batch.tries += 1
        broker, queue_id = "", -1
        try:
            route = self._route(batch.wish.topic)
            broker, queue_id = self._place(batch.wish, route)
            connection = self._connection(broker, route)
            opaque = connection.send(self._request(batch, broker, queue_id))
        except (RemotingError, OSError, Unreachable) as error:
            self._broken(broker)
            self._again(batch, broker, queue_id, str(error))
        else:
            self._in_flight.append(SentBatch(batch, broker, queue_id, connection, opaque))

    def _connection(self, broker: str, route: Route) -> BlockingConnection:
        """Return the connection to a broker. Raises: RemotingError, Unreachable."""
        address = route.addresses.addresses.get(broker)
        if address is None:
            raise Unreachable(f"the name servers know no master of broker {broker}")
        known = self._links.get(broker)
        if known is not None and known[0] == address:
            return known[1]
        connection = self.pool.take(address, self.options.access)
        self._links[broker] = address, connection
        return connection

    def _place(self, wish: QueueWish, route: Route) -> tuple[str, int]:
        """Return the queue of a batch: the wanted one, otherwise the next in turn."""
        if wish.broker is not None:
            return wish.broker, wish.queue_id
        good = [place for place in route.queues if place[0] not in self._avoided] or route.queues
        route.turn += 1
        return good[route.turn % len(good)]

    def _take_answer(self, sent: SentBatch) -> None:
        """Act on the answer to a request."""
        try:
            answer = sent.connection.receive(sent.opaque, self.options.send_seconds)
        except (RemotingError, OSError) as error:
            self._broken(sent.broker)
            self._again(sent.batch, sent.broker, sent.queue_id, str(error))
            return
        if answer.code == ResponseCode.SUCCESS or answer.code in STORED_LESS_SAFELY:
            count = len(sent.batch.marks)
            topic = sent.batch.wish.topic
            self.acknowledged[topic] = self.acknowledged.get(topic, 0) + count
            if answer.code != ResponseCode.SUCCESS:
                self.stored_less_safely += count
            self._avoided.discard(sent.broker)
            return
        name = ResponseCode(answer.code).name if answer.code in CODES else "an unknown code"
        reason = f"broker {sent.broker} refuses them with {answer.code} {name}: {answer.remark}"
        if answer.code == ResponseCode.MESSAGE_ILLEGAL and self.refuse is not None:
            self._sort_out(sent.batch, f"the broker refuses the message: {answer.remark}")
            return
        if answer.code not in TEMPORARY:
            self._fail(sent.batch, sent.broker, sent.queue_id, reason)
        self._routes.pop(sent.batch.wish.topic, None)
        self._avoided.add(sent.broker)
        self._again(sent.batch, sent.broker, sent.queue_id, reason)

    def _sort_out(self, batch: SinkBatch, reason: str) -> None:
        """Find the messages of a batch that are refused: its halves are sent next, in order."""
        if len(batch.marks) > 1:
            self._waiting.extendleft(reversed(batch.halves()))
        elif self.refuse is not None:
            self.refuse(batch.marks[0], reason)

    def _broken(self, broker: str) -> None:
        """Forget the connection to a broker and the routes; what was in flight is sent again."""
        self._avoided.add(broker)
        self._routes.clear()
        if broker not in self._links:
            return
        _, connection = self._links.pop(broker)
        connection.close()
        lost = [sent for sent in self._in_flight if sent.connection is connection]
        for sent in reversed(lost):
            self._in_flight.remove(sent)
            self._again(sent.batch, broker, sent.queue_id, "the connection was lost")

    def _again(self, batch: SinkBatch, broker: str, queue_id: int, reason: str) -> None:
        """Send a batch again after a pause. Raises: NotDelivered after ``deliveryTimeoutMs``."""
        now = self.clock()
        if now - batch.first_try > self.options.delivery_seconds:
            limit = self.options.delivery_seconds
            self._fail(batch, broker, queue_id, f"{reason} (deliveryTimeoutMs: {limit:g} s)")
        batch.retry_at = now + BACKOFF_SECONDS[min(batch.tries, len(BACKOFF_SECONDS)) - 1]
        logger.debug("%d messages are sent again: %s", len(batch.marks), reason)
        self._waiting.appendleft(batch)

    def _fail(self, batch: SinkBatch, broker: str, queue_id: int, reason: str) -> None:
        others = [*self._waiting, *(sent.batch for sent in self._in_flight)]
        unknown = sum(len(each.marks) for each in others if each is not batch)
        done = sum(self.acknowledged.values())
        where = f"{batch.wish.topic}/{broker}/{queue_id}" if broker else batch.wish.topic
        raise NotDelivered(
            f"{len(batch.marks)} messages for {where} were not acknowledged: {reason}; {unknown}"
            f" further messages of this task were under way, {done} were acknowledged before. If"
            " Spark repeats the task, these come twice; the property __SPARK tells them"
        )

    def _route(self, topic: str) -> Route:
        """Return the topic's route; look it up if it is not known.

        Raises: SourceError if the topic does not exist or cannot be written to; Unreachable.
        """
        known = self._routes.get(topic)
        if known is not None:
            return known
        found = self.find_route(topic)
        queues = found.queues() if found is not None else []
        if found is None or not queues:
            raise SourceError(
                f"topic {topic} {'does not exist' if found is None else 'takes no messages'}; check"
                " the spelling and the permissions, or create it with `mqadmin topic create -c"
                f" <cluster> -t {topic}`"
            )
        places = sorted((queue.broker, queue.queue_id) for queue in queues)
        self._routes[topic] = Route(found, places, random.randrange(len(places)))
        return self._routes[topic]

    def _request(self, batch: SinkBatch, broker: str, queue_id: int) -> Command:
        code, flag = RequestCode.SEND_BATCH_MESSAGE, 0
        body, properties = b"".join(batch.pieces), properties_text({WAIT: "true"})
        if len(batch.marks) == 1:
            ((own_flag, own_body, own),) = decode_batch(body)
            # RocketMQ's broker fails at a request without a body, and takes it in a batch.
            if own_body:
                code, flag = RequestCode.SEND_MESSAGE_V2, own_flag
                body, properties = own_body, own.decode()
        header = SendMessageHeader(
            producer_group=self.options.producer_group,
            topic=batch.wish.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue_id,
            sys_flag=batch.sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=flag,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=broker,
        )
        return request(code, header, body)
