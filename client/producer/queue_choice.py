"""Which queue a message goes to: pure functions over the publish list of a topic.

Source: client/…/impl/producer/TopicPublishInfo.java, client/…/producer/selector/SelectMessageQueueByHash.java, …ByRandom.java,
rocketmq-client-go/producer/selector.go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, SupportsIndex, TypeVar

import attrs

from triomq.client.arguments import shown, whole_number
from triomq.client.errors import MessageInvalid
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message, java_hash

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""An application's own choice: (publish list, message) → one of the queues.  Pure and quick; called once for a message."""


class OfBroker(Protocol):
    """A queue, or what leads to one."""

    @property
    def broker_name(self) -> str: ...


Q = TypeVar("Q", bound=OfBroker)


@attrs.define(eq=False)
class RoundRobin:
    """Deal messages over the queues of one topic in turn, so that n·k messages put k into each of n queues."""

    _next: int
    """a random start keeps many producers from all beginning at queue 0"""

    def choose(self, queues: Sequence[Q], avoid_broker: str | None = None) -> Q:
        """Return the next queue; with `avoid_broker` (the one that just failed) the next queue of another broker, if there is any."""
        position = self._next
        self._next = position + 1
        chosen = queues[position % len(queues)]
        if avoid_broker is None or chosen.broker_name != avoid_broker:
            return chosen
        return self._search(queues, position + 1, lambda name: name != avoid_broker) or chosen

    def choose_where(self, queues: Sequence[Q], accept: Callable[[str], bool]) -> Q | None:
        """Return the next queue whose broker is accepted; None, and no turn is taken, if there is none."""
        return self._search(queues, self._next, accept)

    def jump(self, position: int) -> None:
        """Go on somewhere else."""
        self._next = position

    def _search(self, queues: Sequence[Q], position: int, accept: Callable[[str], bool]) -> Q | None:
        for step in range(len(queues)):
            queue = queues[(position + step) % len(queues)]
            if accept(queue.broker_name):
                self._next = position + step + 1
                return queue
        return None


def choose_by_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, as Java's `SelectMessageQueueByHash` does.

    Java's hash of the text, remainder with the sign of the dividend, absolute value.  The Go client uses another hash, so Java and Go
    producers do not send equal keys to equal queues; we follow Java (and `select_by_go_hash` follows Go).
    """
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def select_by_hash(key: str) -> Selector:
    """Select by Java's hash of a text, as `sharding_key` does, but without writing the key into the message."""
    return lambda queues, message: choose_by_key(queues, key)


def select_by_go_hash(key: str) -> Selector:
    """Select as the Go client's `NewHashQueueSelector` does for this sharding key: FNV-1a, 32 bits."""

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        value = 0x811C9DC5
        for byte in key.encode():
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        return queues[value % len(queues)]

    return select


def select_by_random() -> Selector:
    """Select any queue, all equally likely."""
    return lambda queues, message: random.choice(queues)


def select_by_machine_room(rooms: Iterable[str]) -> Selector:
    """Select among the brokers of these machine rooms, all equally likely; a broker tells its room by its name, `room@broker`.

    The names are those that RocketMQ's consumers allocate by; its producers have a selector of this name that returns nothing.  The selector
    raises `MessageInvalid` if no queue lies in one of the rooms.
    """
    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in wanted]
        if not near:
            brokers = sorted({queue.broker_name for queue in queues})
            raise MessageInvalid(
                f"no broker of topic {message.topic!r} lies in the machine rooms {sorted(wanted)}: brokers are named "
                f"'room@name', and these are {brokers}; add a room, or send without the selector"
            )
        return random.choice(near)

    return select


def find_queue(queues: Sequence[MessageQueue], wanted: MessageQueue | SupportsIndex) -> MessageQueue:
    """Return the queue that the caller named, by value or by its index in the publish list.

    Errors: `MessageInvalid` for an index beyond the list.  A `MessageQueue` is trusted: the route may be younger here than there.
    """
    if isinstance(wanted, MessageQueue):
        if wanted.topic != queues[0].topic:
            raise MessageInvalid(
                f"{wanted} is a queue of topic {wanted.topic!r}, and the message goes to {queues[0].topic!r}: take one of `await producer.queues(topic)`"
            )
        return wanted
    index = whole_number(wanted)
    if index is None:
        raise MessageInvalid(f"queue must be a MessageQueue or an index of the topic's publish list, not {shown(wanted)}")
    if not 0 <= index < len(queues):
        raise MessageInvalid(
            f"queue {index} does not exist: the topic's publish list has queues 0 to {len(queues) - 1}"
        )
    return queues[index]


def selected(queues: Sequence[MessageQueue], select: Callable[[Sequence[MessageQueue]], MessageQueue]) -> MessageQueue:
    """Return the queue that an application's own choice names.  Errors: `MessageInvalid` if it names none; its own."""
    queue = select(queues)
    if not isinstance(queue, MessageQueue):
        raise MessageInvalid(f"a selector must return one of the queues that it gets, not {shown(queue)}")
    return find_queue(queues, queue)


def has_several_brokers(queues: Sequence[MessageQueue]) -> bool:
    """Say whether a publish list has more than one broker: its queues are grouped by broker, so its ends tell."""
    return queues[0].broker_name != queues[-1].broker_name
