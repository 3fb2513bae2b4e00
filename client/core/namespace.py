"""Namespaces: tenants that share a cluster and do not see each other's topics and groups.

Every name travels as ``<namespace>%<name>`` (after the prefix of retry topics and dead letters:
``%RETRY%<namespace>%<group>``), as in RocketMQ's own clients, so a Java client with
``setNamespace`` is the same tenant. Names are translated in requests on their way out, and in
responses and brokers' requests on their way in; the rest of the client sees short names only.

Source: remoting/…/protocol/NamespaceUtil.java;
client/…/impl/producer/DefaultMQProducerImpl.java#sendKernelImpl (INSTANCE_ID).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from triomq.remoting.client.connector import PeerHandler
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus, QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import SHORT_NAME_CODES, Command
from triomq.remoting.protocol.message_properties import RETRY_TOPIC
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


@attrs.frozen
class Namespace:
    """The name of a tenant, and the translation of names; an RPC hook of the tenant's clients."""

    name: str

    def full(self, name: str) -> str:
        """Return the brokers' name of a topic or group; system and full names are unchanged."""
        carrier, own = _split(name)
        if (
            not own
            or own in WELL_KNOWN_SYSTEM_TOPICS
            or own.startswith((*_SYSTEM_PREFIXES, f"{self.name}%"))
        ):
            return name
        return f"{carrier}{self.name}%{own}"

    def own(self, name: str) -> str:
        """Return the tenant's name for a broker's name; other names are unchanged."""
        carrier, full = _split(name)
        return carrier + full.removeprefix(f"{self.name}%")

    def full_queue(self, queue: MessageQueue) -> MessageQueue:
        return attrs.evolve(queue, topic=self.full(queue.topic))

    def own_queue(self, queue: MessageQueue) -> MessageQueue:
        return attrs.evolve(queue, topic=self.own(queue.topic))

    def own_record(self, record: StoredMessage) -> None:
        """Replace the names in a pulled record by the tenant's."""
        record.topic = self.own(record.topic)
        sent_to = record.properties.get(RETRY_TOPIC)
        if sent_to is not None:
            record.properties[RETRY_TOPIC] = self.own(sent_to)

    # Requests and their answers

    def before_request(self, address: str, command: Command) -> None:
        """Write the full names into a request; doing so twice does no harm."""
        short = command.code in SHORT_NAME_CODES
        if command.ext is not None:
            fields = command.ext
            # A reply goes to a topic of the cluster, which all tenants share.
            replies = command.code == RequestCode.SEND_REPLY_MESSAGE_V2
            for field in "a" if replies else _SHORT_NAME_FIELDS if short else _NAME_FIELDS:
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
            command.body = attrs.evolve(
                lock, consumer_group=self.full(lock.consumer_group), queues=queues
            ).encode()

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Write the tenant's names into a response's queues."""
        if command.code == RequestCode.LOCK_BATCH_MQ and answer.code == ResponseCode.SUCCESS:
            try:
                queues = LockResponse.decode(bytes(answer.body)).queues
            except ProtocolError:
                return  # the caller will raise it
            answer.body = LockResponse([self.own_queue(queue) for queue in queues]).encode()

    def _heartbeat(self, beat: HeartbeatData) -> HeartbeatData:
        return attrs.evolve(
            beat,
            producers=[ProducerData(self.full(producer.group)) for producer in beat.producers],
            consumers=[self._consumer(consumer) for consumer in beat.consumers],
        )

    def _consumer(self, consumer: ConsumerData) -> ConsumerData:
        subscriptions = [
            self._subscription(subscription) for subscription in consumer.subscriptions
        ]
        return attrs.evolve(consumer, group=self.full(consumer.group), subscriptions=subscriptions)

    def _subscription(self, subscription: SubscriptionData) -> SubscriptionData:
        return attrs.evolve(subscription, topic=self.full(subscription.topic))

    # Requests of brokers

    def answering(self, code: int, handler: PeerHandler) -> PeerHandler:
        """Return the handler of a broker's request with names translated both ways."""

        async def translated(address: str, command: Command) -> Command | None:
            for field in _NAME_FIELDS:
                if command.ext is not None and field in command.ext:
                    command.ext[field] = self.own(command.ext[field])
            if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and command.body:
                try:
                    offsets = QueueOffsets.decode(bytes(command.body)).offset_table
                except ProtocolError:
                    offsets = None  # the handler will raise it
                if offsets is not None:
                    command.body = QueueOffsets(_keys(offsets, self.own_queue)).encode()
            answer = await handler(address, command)
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
                answer.body = self._answer(code, bytes(answer.body))
            return answer

        return translated

    def _answer(self, code: int, body: bytes) -> bytes:
        if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return ConsumerStatus(
                _keys(ConsumerStatus.decode(body).message_queue_table, self.full_queue)
            ).encode()
        if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            running = ConsumerRunning.decode(body)
            properties = dict(running.properties)
            if "consumerGroup" in properties:
                properties["consumerGroup"] = self.full(properties["consumerGroup"])
            return attrs.evolve(
                running,
                properties=properties,
                subscriptions=[
                    self._subscription(subscription) for subscription in running.subscriptions
                ],
                queues={self.full_queue(queue): state for queue, state in running.queues.items()},
                rates={self.full(topic): rates for topic, rates in running.rates.items()},
            ).encode()
        return body


def _keys(
    offsets: Mapping[MessageQueue, int], change: Callable[[MessageQueue], MessageQueue]
) -> dict[MessageQueue, int]:
    return {change(queue): offset for queue, offset in offsets.items()}


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, and the rest of the name."""
    for carrier in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(carrier):
            return carrier, name[len(carrier) :]
    return "", name
