"""Where the messages of a topic go: its queues, with broker addresses and request templates.

Destinations are made once for each version of the routes; a send only takes the next one. When any
route changes, all are made anew, and each topic continues in its round robin.

Source for the idea: client/…/impl/producer/TopicPublishInfo.java.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from triomq.client.core.config import ProducerSettings
from triomq.client.core.routes import KnownRoutes
from triomq.client.core.session import SessionObserver
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.queue_choice import RoundRobin, has_several_brokers
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, Outgoing, request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.request_template import RequestTemplate

TOPICS_REMEMBERED = 4096
"""Maximum number of topics kept, for producers that always send to new ones."""
_RANDOM_START = 1024
_VARYING = ("sys_flag", "born_timestamp", "flag", "properties")
"""The fields of the header that differ between the messages of a queue; a template has the rest."""


@attrs.define(eq=False)
class SendRequests:
    """Makes the requests of one producer group."""

    group: str
    settings: ProducerSettings

    def command(
        self, outgoing: OutgoingMessage, queue: MessageQueue, code: int, *, oneway: bool = False
    ) -> Command:
        """Return the request for one message as RPC hooks see it; a template costs a third."""
        header = self._header(queue, code)
        header.sys_flag, header.born_timestamp = outgoing.sys_flag, outgoing.born_timestamp
        header.flag, header.properties = outgoing.flag, outgoing.properties
        return request(code, header, outgoing.body, oneway=oneway)

    def template(self, queue: MessageQueue, code: int) -> RequestTemplate:
        """Return the template of the requests to one queue."""
        return RequestTemplate(code, self._header(queue, code), _VARYING)

    def _header(self, queue: MessageQueue, code: int) -> SendMessageHeader:
        return SendMessageHeader(
            producer_group=self.group,
            topic=queue.topic,
            default_topic=self.settings.create_topic_key,
            default_topic_queue_count=self.settings.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )


@attrs.define(eq=False)
class QueueDestination:
    """One queue, with the address and the request templates that lead to it."""

    queue: MessageQueue
    broker_name: str
    address: str | None
    """the address of the broker's master; None if the routes do not name it"""
    _requests: SendRequests
    _templates: dict[int, RequestTemplate] = attrs.field(factory=dict, init=False)

    def request(self, outgoing: OutgoingMessage, code: int, flag: int = 0) -> Outgoing:
        """Return the request that sends a message to this queue.

        ``flag``: 0, or ``ONEWAY_FLAG``.
        """
        template = self._templates.get(code)
        if template is None:
            template = self._templates[code] = self._requests.template(self.queue, code)
        numbers = (outgoing.sys_flag, outgoing.born_timestamp, outgoing.flag)
        return template.make(numbers, outgoing.properties, outgoing.body, flag)


@attrs.define(eq=False)
class TopicDestinations:
    """The destinations of one topic, for one version of the routes."""

    version: int
    queues: tuple[MessageQueue, ...]
    all: Sequence[QueueDestination]
    turn: RoundRobin
    several_brokers: bool
    used: bool = attrs.field(default=True, init=False)
    """whether a message was sent to the topic since the last ``was_used``"""
    _of_queue: dict[MessageQueue, QueueDestination] = attrs.field(factory=dict, init=False)

    def of_queue(self, queue: MessageQueue) -> QueueDestination | None:
        """Return the destination of a queue, or None if the publish list does not have it."""
        if not self._of_queue:
            self._of_queue.update((known.queue, known) for known in self.all)
        return self._of_queue.get(queue)


@attrs.define(eq=False)
class DestinationTable(SessionObserver):
    """The destinations of all topics of one producer."""

    routes: KnownRoutes
    requests: SendRequests
    _topics: dict[str, TopicDestinations] = attrs.field(factory=dict, init=False)

    def find(self, topic: str) -> TopicDestinations | None:
        """Return the current destinations of a topic, or None if no route names any."""
        known = self._topics.get(topic)
        if known is not None and known.version == self.routes.version:
            known.used = True
            return known
        queues = self.routes.publish(topic)
        if not queues:
            return None
        turn = known.turn if known is not None else RoundRobin(random_position())
        if known is None and len(self._topics) >= TOPICS_REMEMBERED:
            del self._topics[next(iter(self._topics))]
        destinations = [self.destination(queue) for queue in queues]
        several = has_several_brokers(queues)
        known = self._topics[topic] = TopicDestinations(
            self.routes.version, queues, destinations, turn, several
        )
        return known

    def was_used(self, topic: str) -> bool:
        """Return whether a message was sent to the topic since the last call for it."""
        known = self._topics.get(topic)
        if known is None or not known.used:
            return False
        known.used = False
        return True

    def destination(self, queue: MessageQueue) -> QueueDestination:
        """Return the destination of any queue, including a queue that no route names."""
        return QueueDestination(
            queue, queue.broker_name, self.routes.master(queue.broker_name), self.requests
        )


def random_position() -> int:
    """Return a random start for a round robin, so that producers do not all begin at queue 0."""
    return random.randrange(_RANDOM_START)
