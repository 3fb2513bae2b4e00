"""Which member owns which queue: pure functions that every member of a group evaluates alone.

There is no coordinator. Members agree because they sort the same queues and the same member ids and
apply the same rule, so a rule must return exactly what the official client's rule of that name
returns. Members are sorted as Python sorts texts; Java sorts by UTF-16 code units, which differs
only above U+FFFF, and client ids are ASCII.

If an input cannot be divided (a queue whose room is unknown), a rule raises ``ValueError`` and the
round changes nothing.

Source: client/…/consumer/rebalance/AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java, AllocateMessageQueueConsistentHash.java
(common/…/consistenthash/ConsistentHashRouter.java), AllocateMessageQueueByMachineRoom.java,
AllocateMachineRoomNearby.java, AllocateMessageQueueByConfig.java.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.consuming.allocation import allocate_average, allocate_circle

__all__ = [
    "Allocation",
    "allocate_average",
    "allocate_circle",
    "allocate_config",
    "allocate_consistent_hash",
    "allocate_machine_room",
    "allocate_machine_room_nearby",
]

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own member id, sorted queues, sorted member ids) → own queues"""


VIRTUAL_NODES = 10
"""Places of each member on the ring (Java's default)."""


def allocate_consistent_hash(
    member: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Divide the queues by a ring of hashes (Java's ``CONSISTENT_HASH``).

    Each member has ten places on the ring; a queue belongs to the member at the next place. When a
    member joins or leaves, only queues to or from that member move; the cost is uneven shares.
    """
    if member not in members:
        return []
    places, owners = _ring(tuple(members))
    return [
        queue
        for queue in queues
        if owners[bisect_left(places, _queue_hash(queue)) % len(places)] == member
    ]


@lru_cache(maxsize=16)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Return the places in ascending order and their members; of two at one place, the later."""
    ring = {
        _ring_hash(f"{member}-{number}"): member
        for member in members
        for number in range(VIRTUAL_NODES)
    }
    places = sorted(ring)
    return places, [ring[place] for place in places]


@lru_cache(maxsize=65536)
def _queue_hash(queue: MessageQueue) -> int:
    """Return the hash of Java's text of a queue (``MessageQueue.toString``)."""
    return _ring_hash(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def _ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5 as a big-endian number; not for security."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


def allocate_config(queues: Iterable[MessageQueue]) -> Allocation:
    """Return the rule that gives this member exactly these queues (Java's ``CONFIG``).

    The configuration must give every queue one owner; that is not checked.
    """
    fixed = sorted(set(queues))

    def allocate(
        member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in fixed if queue.topic in topics]

    return allocate


def allocate_machine_room(rooms: Collection[str]) -> Allocation:
    """Return the rule that divides the queues of these machine rooms (Java's ``MACHINE_ROOM``).

    A broker is in a room if it is called ``room@name``; queues of other rooms are not divided.
    """

    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if member not in members:
            return []
        local = [queue for queue in queues if _room_prefix(queue) in wanted]
        index = members.index(member)
        size, left_over = divmod(len(local), len(members))
        share = local[index * size : (index + 1) * size]
        if index < left_over:
            share.append(local[size * len(members) + index])
        return share

    return allocate


def _room_prefix(queue: MessageQueue) -> str | None:
    room, at, name = queue.broker_name.partition("@")
    return room if at and name and "@" not in name else None


RoomOfQueue = Callable[[MessageQueue], str]
RoomOfMember = Callable[[str], str]
T = TypeVar("T")


def allocate_machine_room_nearby(
    room_of_queue: RoomOfQueue, room_of_member: RoomOfMember, inner: Allocation = allocate_average
) -> Allocation:
    """Return the rule that divides each room's queues among the members of that room.

    Rooms without members are divided among all members. ``room_of_queue`` gets a queue and
    ``room_of_member`` a client id; both return the room's name. Java's name:
    ``MACHINE_ROOM_NEARBY-<inner>``.
    """

    def allocate(
        member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if member not in members:
            return []
        queues_in, members_in = _by_room(queues, room_of_queue), _by_room(members, room_of_member)
        own_room = room_of_member(member)
        share = inner(member, queues_in.get(own_room, []), members_in[own_room])
        for room in sorted(queues_in.keys() - members_in.keys()):
            share += inner(member, queues_in[room], members)
        return share

    return allocate


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room or not room.strip():
            raise ValueError(
                f"the machine room of {thing} is not known: the resolver must name one for every"
                " queue and every member"
            )
        rooms.setdefault(room, []).append(thing)
    return rooms
