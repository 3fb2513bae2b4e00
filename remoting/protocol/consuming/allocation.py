"""The two rules that divide queues among members and that brokers know, too.

A rule must return exactly what the official rule of that name returns: members agree because each
evaluates the same rule for the same sorted queues and members.

Source: common/…/rebalance/AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Sequence

from triomq.remoting.protocol.bodies.route import MessageQueue


def allocate_average(
    member: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Return contiguous shares whose sizes differ by at most one (Java's ``AVG``).

    The first members get the larger shares. A member that is not in the list (yet) gets nothing,
    which is normal right after its start.
    """
    if member not in members:
        return []
    index = members.index(member)
    size, left_over = divmod(len(queues), len(members))
    start = index * size + min(index, left_over)
    return list(queues[start : start + size + (1 if index < left_over else 0)])


def allocate_circle(
    member: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Deal the queues to the members in turn (Java's ``AVG_BY_CIRCLE``)."""
    if member not in members:
        return []
    return list(queues[members.index(member) :: len(members)])
