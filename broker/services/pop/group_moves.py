"""Moves a group to other offsets: the one way in which an operator's request changes them.

A move reaches everything that knows where the group is: the committed offsets, the positions of
POP, the block of an ordered queue, the count of what is in flight, held pulls and waiting pops, and
the members. It is on the disk before the answer, and stays after a kill: check points from before
it do not count (``ConsumerOffsets.moved``), and a member that has not heard of it hears it at its
next pull (``ConsumerOffsets.resets``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

import attrs
import trio

from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.pop.held_pops import HeldPops
from triomq.broker.services.pop.pops import Pops
from triomq.broker.store.store import MessageStore

QUEUES_AT_ONCE = 512
Tell = Callable[[str, str, Mapping[int, int]], Awaitable[None]]
"""(group, topic, queue -> offset) for the members that understand it at once."""


@attrs.define(eq=False)
class GroupMoves:
    """Moves groups. ``pops`` is None where this broker can never serve POP."""

    store: MessageStore
    offsets: ConsumerOffsets
    pops: Pops | None
    held: HeldPulls
    held_pops: HeldPops
    tell: Tell

    async def move(
        self, group: str, topic: str, wanted: Mapping[int, int], *, members: bool = True
    ) -> None:
        """Move a group to the offset of each queue. Checkpoint: always, after each part of them.

        ``members``: whether some may be at work that must hear of it.
        """
        if not wanted:
            return
        queues = iter(wanted.items())
        while part := dict(islice(queues, QUEUES_AT_ONCE)):
            if self.pops is not None:
                self.pops.moved(group, topic, part)
            self.offsets.reset(group, topic, part, self.store.appended.value, members=members)
            await self.tell(group, topic, part)
            await trio.lowlevel.checkpoint()
        self.held.wake_topic(topic)
        self.held_pops.wake_all(group, topic)
        orders = [] if self.pops is None else [self.pops.orders]
        for table in (self.offsets, *orders):
            table.save_soon()
        for table in (self.offsets, *orders):
            await table.settled()
