"""Who gets which queue: pure functions that every member of a group evaluates alone.

There is no coordinator.  Members agree because they sort the same queues and the same member ids and apply the same rule, so a rule
must give exactly what the official client's rule of that name gives.  Members are sorted as Python sorts text; Java sorts by UTF-16
code units, which differs only for characters above U+FFFF and client ids are ASCII.

Where an input cannot be divided (a queue whose room is unknown), a rule raises `ValueError` and the round changes nothing.

Source: client/…/consumer/rebalance/AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java,
AllocateMessageQueueConsistentHash.java (common/…/consistenthash/ConsistentHashRouter.java), AllocateMessageQueueByMachineRoom.java,
AllocateMachineRoomNearby.java, AllocateMessageQueueByConfig.java.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from triomq.remoting.protocol.bodies.route import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own member id, sorted queues, sorted member ids) → own queues"""


def allocate_average(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Contiguous shares whose sizes differ by at most one; the first members get the larger ones.  Java's name: `AVG`.

    A member that is not (yet) in the list gets nothing, which is normal right after its start.
    """
    if member not in members:
        return []
    index = members.index(member)
    size, left_over = divmod(len(queues), len(members))
    start = index * size + min(index, left_over)
    return list(queues[start : start + size + (1 if index < left_over else 0)])


def allocate_circle(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Deal the queues like cards.  Java's name: `AVG_BY_CIRCLE`."""
    if member not in members:
        return []
    return list(queues[members.index(member) :: len(members)])


VIRTUAL_NODES = 10
"""places of a member on the ring, Java's default"""


def allocate_consistent_hash(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Put members on a ring of hashes, ten times each; a queue belongs to the next member on it.  Java's name: `CONSISTENT_HASH`.

    When a member comes or goes, only queues from or to it move; the price is uneven shares.
    """
    return consistent_hash(VIRTUAL_NODES)(member, queues, members)


def consistent_hash(virtual_nodes: int) -> Allocation:
    """Return the consistent-hash rule with so many places for each member; all members must use the same number."""
    if virtual_nodes < 1:
        raise ValueError(f"virtual_nodes must be 1 or greater, not {virtual_nodes}")

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if member not in members:
            return []
        places, owners = _ring(tuple(members), virtual_nodes)
        return [queue for queue in queues if owners[bisect_left(places, _queue_hash(queue)) % len(places)] == member]

    return allocate


@lru_cache(maxsize=16)
def _ring(members: tuple[str, ...], virtual_nodes: int) -> tuple[list[int], list[str]]:
    """Return the places in ascending order, and who sits there; of two at one place the later member stays."""
    ring = {_ring_hash(f"{member}-{number}"): member for member in members for number in range(virtual_nodes)}
    places = sorted(ring)
    return places, [ring[place] for place in places]


@lru_cache(maxsize=65536)
def _queue_hash(queue: MessageQueue) -> int:
    """Return the hash of Java's text of a queue (`MessageQueue.toString`)."""
    return _ring_hash(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")


def _ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5, big endian, unsigned: a place, not a secret."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


def allocate_config(queues: Iterable[MessageQueue]) -> Allocation:
    """Return the rule that gives this member exactly these queues, whatever the group looks like.  Java's name: `CONFIG`.

    Nobody checks that every queue has one owner: that is the configuration's business.
    """
    fixed = sorted(set(queues))

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in fixed if queue.topic in topics]

    return allocate


def allocate_machine_room(rooms: Collection[str]) -> Allocation:
    """Return the rule that divides only the queues of brokers called `room@name` with one of these rooms.  Java's name: `MACHINE_ROOM`."""

    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
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
    """Return the rule that divides each room's queues among the members of that room; rooms without members are divided among all.

    `room_of_queue` gets a queue, `room_of_member` a client id; both return the room's name.  Java's name: `MACHINE_ROOM_NEARBY-<inner>`.
    """

    def allocate(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
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
                f"the machine room of {thing} is not known: the resolver must name one for every queue and every member"
            )
        rooms.setdefault(room, []).append(thing)
    return rooms
