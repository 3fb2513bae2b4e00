"""Who gets which queue: pure functions that every member of a group evaluates alone.

There is no coordinator.  Members agree because they sort the same queues and the same member ids and apply the same rule, so a rule
must give exactly what the official client's rule of that name gives.  Members are sorted as Python sorts text; Java sorts by UTF-16
code units, which differs only for characters above U+FFFF and client ids are ASCII.

Source: client/…/consumer/rebalance/AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
