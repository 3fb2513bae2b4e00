"""Namespaces: tenants of one cluster use the same names and never see each other's topics and groups.

Every name travels as `<namespace>%<name>` (inside the prefixes of retry topics and dead letters: `%RETRY%<namespace>%<group>`), which is how RocketMQ's own
clients do it, so a Java client with `setNamespace` is the same tenant.  Here the names are changed at the edge: requests on their way out, answers and the
brokers' own questions on their way in.  Everything inside of the client, and the application, knows only its own names.

Source: remoting/…/protocol/NamespaceUtil.java; client/…/impl/producer/DefaultMQProducerImpl.java#sendKernelImpl (INSTANCE_ID).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs

from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus, QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import SHORT_NAME_CODES, Command
from triomq.remoting.protocol.message import RETRY_TOPIC
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    WELL_KNOWN_SYSTEM_TOPICS,
)
from triomq.remoting.protocol.record import StoredMessage

_SYSTEM_PREFIXES = (SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX)
_NAME_FIELDS = ("topic", "consumerGroup", "producerGroup", "group", "originTopic")
_SHORT_NAME_FIELDS = ("a", "b")
"""producerGroup and topic in the short header of sends"""
_SHORT_PROPERTIES = "i"
_INSTANCE = "INSTANCE_ID\x01"

BrokerQuestion = Callable[[str, Command], Awaitable[Command | None]]


@attrs.frozen
class Namespace:
    """One tenant's name.  An RPC hook of its clients."""

    name: str

    def full(self, name: str) -> str:
        """Return a topic or group as brokers know it; a name that has the namespace already, or belongs to the system, stays."""
        carrier, own = _split(name)
        if not own or own in WELL_KNOWN_SYSTEM_TOPICS or own.startswith((*_SYSTEM_PREFIXES, f"{self.name}%")):
            return name
        return f"{carrier}{self.name}%{own}"

    def own(self, name: str) -> str:
        """Return a name of a broker as the tenant knows it; names without the namespace stay."""
        carrier, full = _split(name)
        return carrier + full.removeprefix(f"{self.name}%")

    def full_queue(self, queue: MessageQueue) -> MessageQueue:
        return attrs.evolve(queue, topic=self.full(queue.topic))

    def own_queue(self, queue: MessageQueue) -> MessageQueue:
        return attrs.evolve(queue, topic=self.own(queue.topic))

    def own_record(self, record: StoredMessage) -> None:
        """Give a record that was pulled the tenant's names."""
        record.topic = self.own(record.topic)
        sent_to = record.properties.get(RETRY_TOPIC)
        if sent_to is not None:
            record.properties[RETRY_TOPIC] = self.own(sent_to)

    # -- requests and their answers -----------------------------------------------------------------------------------------------

    def before_request(self, address: str, command: Command) -> None:
        """Write the full names into a request; once more does no harm."""
        short = command.code in SHORT_NAME_CODES
        if command.ext is not None:
            fields = command.ext
            for field in _SHORT_NAME_FIELDS if short else _NAME_FIELDS:
                if field in fields:
                    fields[field] = self.full(fields[field])
            if short and _INSTANCE not in (properties := fields.get(_SHORT_PROPERTIES, "")):
                separator = "" if not properties or properties.endswith("\x02") else "\x02"
                fields[_SHORT_PROPERTIES] = f"{properties}{separator}{_INSTANCE}{self.name}\x02"
        if command.code == RequestCode.HEART_BEAT:
            command.body = self._heartbeat(HeartbeatData.decode(bytes(command.body))).encode()
        elif command.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            lock = LockRequest.decode(bytes(command.body))
            queues = [self.full_queue(queue) for queue in lock.queues]
            command.body = attrs.evolve(lock, consumer_group=self.full(lock.consumer_group), queues=queues).encode()

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Give an answer's queues the tenant's names."""
        if command.code == RequestCode.LOCK_BATCH_MQ and answer.code == ResponseCode.SUCCESS:
            try:
                queues = LockResponse.decode(bytes(answer.body)).queues
            except ProtocolError:
                return  # who asked will say so
            answer.body = LockResponse([self.own_queue(queue) for queue in queues]).encode()

    def _heartbeat(self, beat: HeartbeatData) -> HeartbeatData:
        return attrs.evolve(
            beat,
            producers=[ProducerData(self.full(producer.group)) for producer in beat.producers],
            consumers=[self._consumer(consumer) for consumer in beat.consumers],
        )

    def _consumer(self, consumer: ConsumerData) -> ConsumerData:
        subscriptions = [self._subscription(subscription) for subscription in consumer.subscriptions]
        return attrs.evolve(consumer, group=self.full(consumer.group), subscriptions=subscriptions)

    def _subscription(self, subscription: SubscriptionData) -> SubscriptionData:
        return attrs.evolve(subscription, topic=self.full(subscription.topic))

    # -- what brokers ask ---------------------------------------------------------------------------------------------------------

    def answering(self, code: int, handler: BrokerQuestion) -> BrokerQuestion:
        """Return the handler of a broker's request, which then knows the tenant's names only; its answer has the full ones."""

        async def translated(address: str, command: Command) -> Command | None:
            for field in _NAME_FIELDS:
                if command.ext is not None and field in command.ext:
                    command.ext[field] = self.own(command.ext[field])
            if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and command.body:
                try:
                    offsets = QueueOffsets.decode(bytes(command.body)).offset_table
                except ProtocolError:
                    offsets = None  # the handler will say so
                if offsets is not None:
                    command.body = QueueOffsets(_keys(offsets, self.own_queue)).encode()
            answer = await handler(address, command)
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
                answer.body = self._answer(code, bytes(answer.body))
            return answer

        return translated

    def _answer(self, code: int, body: bytes) -> bytes:
        if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return ConsumerStatus(_keys(ConsumerStatus.decode(body).message_queue_table, self.full_queue)).encode()
        if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            running = ConsumerRunning.decode(body)
            properties = dict(running.properties)
            if "consumerGroup" in properties:
                properties["consumerGroup"] = self.full(properties["consumerGroup"])
            return attrs.evolve(
                running,
                properties=properties,
                subscriptions=[self._subscription(subscription) for subscription in running.subscriptions],
                queues={self.full_queue(queue): state for queue, state in running.queues.items()},
                rates={self.full(topic): rates for topic, rates in running.rates.items()},
            ).encode()
        return body


def _keys(
    offsets: Mapping[MessageQueue, int], change: Callable[[MessageQueue], MessageQueue]
) -> dict[MessageQueue, int]:
    return {change(queue): offset for queue, offset in offsets.items()}


def _split(name: str) -> tuple[str, str]:
    """Return (prefix of a retry or dead-letter topic, the rest)."""
    for carrier in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(carrier):
            return carrier, name[len(carrier) :]
    return "", name
