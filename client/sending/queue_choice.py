"""Which queue a message goes to: pure functions over the publish list of a topic.

Source: client/…/impl/producer/TopicPublishInfo.java,
client/…/producer/selector/SelectMessageQueueByHash.java, …ByRandom.java,
rocketmq-client-go/producer/selector.go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, SupportsIndex, TypeVar

import attrs

from triomq.client.core.arguments import shown, whole_number
from triomq.client.core.errors import MessageInvalid
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.java_hash import index_by_hash
from triomq.remoting.protocol.message import Message

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""(publish list, message) → one of the queues; must be pure and quick; called once per message"""


class OfBroker(Protocol):
    """A queue, or its destination."""

    @property
    def broker_name(self) -> str: ...


Q = TypeVar("Q", bound=OfBroker)


@attrs.define(eq=False)
class RoundRobin:
    """Takes the queues of one topic in turn, so that n·k messages put k into each of n queues."""

    _next: int
    """index of the next queue; a random start keeps many producers from all beginning at queue 0"""

    def choose(self, queues: Sequence[Q], avoid_broker: str | None = None) -> Q:
        """Return the next queue.

        ``avoid_broker``: the broker that just failed; its queues are skipped if there are others.
        """
        position = self._next
        self._next = position + 1
        chosen = queues[position % len(queues)]
        if avoid_broker is None or chosen.broker_name != avoid_broker:
            return chosen
        return self._search(queues, position + 1, lambda name: name != avoid_broker) or chosen

    def choose_where(self, queues: Sequence[Q], accept: Callable[[str], bool]) -> Q | None:
        """Return the next queue whose broker is accepted, or None, which takes no turn."""
        return self._search(queues, self._next, accept)

    def jump(self, position: int) -> None:
        """Continue at another position."""
        self._next = position

    def _search(
        self, queues: Sequence[Q], position: int, accept: Callable[[str], bool]
    ) -> Q | None:
        for step in range(len(queues)):
            queue = queues[(position + step) % len(queues)]
            if accept(queue.broker_name):
                self._next = position + step + 1
                return queue
        return None


def choose_by_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, as Java's ``SelectMessageQueueByHash`` does.

    The Go client uses another hash, so Java and Go producers send equal keys to different
    queues; this follows Java, ``select_by_go_hash`` follows Go.
    """
    return queues[index_by_hash(sharding_key, len(queues))]


def select_by_hash(key: str) -> Selector:
    """Return a selector by Java's hash of a text.

    It chooses as ``sharding_key`` does, but does not write the key into the message.
    """
    return lambda queues, message: choose_by_key(queues, key)


def select_by_go_hash(key: str) -> Selector:
    """Return a selector that chooses as Go's ``NewHashQueueSelector`` does (FNV-1a, 32 bits)."""

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        value = 0x811C9DC5
        for byte in key.encode():
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        return queues[value % len(queues)]

    return select


def select_by_random() -> Selector:
    """Return a selector of any queue, all equally likely."""
    return lambda queues, message: random.choice(queues)


def select_by_machine_room(rooms: Iterable[str]) -> Selector:
    """Return a selector among the brokers of these machine rooms, all queues equally likely.

    A broker names its room in its own name, ``room@broker``, as RocketMQ's consumers expect it;
    RocketMQ's producers have a selector of this name that returns nothing. The selector raises
    ``MessageInvalid`` if no queue is in one of the rooms.
    """
    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in wanted]
        if not near:
            brokers = sorted({queue.broker_name for queue in queues})
            raise MessageInvalid(
                f"no broker of topic {message.topic!r} is in the machine rooms {sorted(wanted)}:"
                f" brokers are named 'room@name', and these are {brokers}; add a room, or send"
                " without the selector"
            )
        return random.choice(near)

    return select


def find_queue(
    queues: Sequence[MessageQueue], wanted: MessageQueue | SupportsIndex
) -> MessageQueue:
    """Return the queue that the caller named, by value or by its index in the publish list.

    A ``MessageQueue`` is trusted: the caller's route may be newer.

    Raises: ``MessageInvalid``, for example for an index outside the list.
    """
    if isinstance(wanted, MessageQueue):
        if wanted.topic != queues[0].topic:
            raise MessageInvalid(
                f"{wanted} is a queue of topic {wanted.topic!r}, and the message goes to"
                f" {queues[0].topic!r}: take one of `await producer.queues(topic)`"
            )
        return wanted
    index = whole_number(wanted)
    if index is None:
        raise MessageInvalid(
            "queue must be a MessageQueue or an index of the topic's publish list, not"
            f" {shown(wanted)}"
        )
    if not 0 <= index < len(queues):
        raise MessageInvalid(
            f"queue {index} does not exist: the topic's publish list has queues 0 to"
            f" {len(queues) - 1}"
        )
    return queues[index]


def selected(
    queues: Sequence[MessageQueue], select: Callable[[Sequence[MessageQueue]], MessageQueue]
) -> MessageQueue:
    """Return the queue that an application's selector chooses.

    Raises: ``MessageInvalid`` if the result is not one of the queues; the selector's own errors.
    """
    queue = select(queues)
    if not isinstance(queue, MessageQueue):
        raise MessageInvalid(
            f"a selector must return one of the queues that it gets, not {shown(queue)}"
        )
    return find_queue(queues, queue)


def has_several_brokers(queues: Sequence[MessageQueue]) -> bool:
    """Return whether a publish list, which is grouped by broker, has more than one broker."""
    return queues[0].broker_name != queues[-1].broker_name
