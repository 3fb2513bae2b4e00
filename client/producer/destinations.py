"""Where the messages of one topic go: its queues with the brokers' addresses and the requests' templates, made once for each route.

A send then only takes the next of them.  When any route changes all are made anew, and each topic goes on at its turn.

Source for the idea: client/…/impl/producer/TopicDestinations.java.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import attrs

from triomq.client.producer.encoding import Outgoing
from triomq.client.producer.queue_choice import RoundRobin, has_several_brokers
from triomq.client.producer.request import SendRequests
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.command import Outgoing as OutgoingRequest
from triomq.remoting.protocol.header_fast import RequestTemplate

TOPICS_REMEMBERED = 4096
"""of a producer that sends to ever new topics"""
_RANDOM_START = 1024


class Routes(Protocol):
    """What is known of topics and brokers; see `triomq.client.routes`."""

    @property
    def version(self) -> int:
        """Another number after each change."""

    def publish(self, topic: str) -> tuple[MessageQueue, ...]: ...

    def master(self, broker_name: str) -> str | None: ...


@attrs.define(eq=False)
class Destination:
    """One queue, and the way to it."""

    queue: MessageQueue
    broker_name: str
    address: str | None
    """of the broker's master; None if the routes name none"""
    _requests: SendRequests
    _templates: dict[int, RequestTemplate] = attrs.field(factory=dict, init=False)

    def request(self, outgoing: Outgoing, code: int) -> OutgoingRequest:
        """Make the request that brings a message here."""
        template = self._templates.get(code)
        if template is None:
            template = self._templates[code] = self._requests.template(self.queue, code)
        numbers = (outgoing.sys_flag, outgoing.born_timestamp, outgoing.flag)
        return template.make(numbers, outgoing.properties, outgoing.body)


@attrs.define(eq=False)
class Destinations:
    """The destinations of one topic, as the routes of one version say."""

    version: int
    queues: tuple[MessageQueue, ...]
    ways: Sequence[Destination]
    turn: RoundRobin
    several_brokers: bool
    used: bool = attrs.field(default=True, init=False)
    """since the last `was_used`"""
    _of_queue: dict[MessageQueue, Destination] = attrs.field(factory=dict, init=False)

    def of_queue(self, queue: MessageQueue) -> Destination | None:
        """Return the destination of a queue; None if the publish list does not have it."""
        if not self._of_queue:
            self._of_queue.update((known.queue, known) for known in self.ways)
        return self._of_queue.get(queue)


@attrs.define(eq=False)
class TopicDestinations:
    """All topics of one producer."""

    routes: Routes
    requests: SendRequests
    _topics: dict[str, Destinations] = attrs.field(factory=dict, init=False)

    def find(self, topic: str) -> Destinations | None:
        """Return where a topic's messages go now; None if no route says that."""
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
        known = self._topics[topic] = Destinations(self.routes.version, queues, destinations, turn, several)
        return known

    def was_used(self, topic: str) -> bool:
        """Say whether anybody sent to a topic since this was asked the last time."""
        known = self._topics.get(topic)
        if known is None or not known.used:
            return False
        known.used = False
        return True

    def destination(self, queue: MessageQueue) -> Destination:
        """Return the way to any queue, also one that no route names."""
        return Destination(queue, queue.broker_name, self.routes.master(queue.broker_name), self.requests)


def random_position() -> int:
    """Return where a topic's turn begins: many producers do not all begin at queue 0."""
    return random.randrange(_RANDOM_START)
