"""``Hold``: a popped message in a push consumer, from the pop until it is settled."""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from triomq.client.receiving.pop.lease_times import Lease
from triomq.client.receiving.pop.source_turns import PopSource
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.replier import Replier
from triomq.remoting.protocol.bodies.route import MessageQueue


class Holder(Protocol):
    """The consumer's side of its messages."""

    def settle(self, hold: Hold, message: ReceivedMessage) -> bool:
        """Acknowledge a message soon; return False if it comes again anyway."""

    async def send_back(self, hold: Hold, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message come again later; return False if it comes again anyway."""

    def abandon(self, hold: Hold, message: ReceivedMessage) -> None:
        """Note that no handler works on a message any more, although it is not settled."""


@attrs.define(eq=False, repr=False)
class Hold:
    """The owner of one message, as the message sees it."""

    group: str
    queue: MessageQueue
    lease: Lease
    source: PopSource
    holder: Holder
    replier: Replier | None
    popped_at: float
    """trio time"""
    lost: bool = False
    """whether the message comes again anyway"""
    done: bool = False
    """whether its acknowledgement is on its way"""
    changing: trio.Event | None = None
    """set when the request that changes the handle has ended; None without one"""
    message: ReceivedMessage = attrs.field(init=False)
    """the newest object for it: another one after each local delivery"""

    def __repr__(self) -> str:
        return f"<Hold of {self.message_id} of {self.queue}{', lost' if self.lost else ''}>"

    @property
    def message_id(self) -> str:
        """The id of the message, for logs."""
        return self.message.message_id

    @property
    def ending(self) -> bool:
        """Whether the message may not be handed out any more."""
        return self.lost

    @property
    def locked_until(self) -> float:
        """The trio time until which no other member gets the message, or those behind it."""
        return self.lease.ends

    def settle(self, message: ReceivedMessage) -> bool:
        """Acknowledge the message soon; return False if it comes again anyway."""
        return self.holder.settle(self, message)

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the message come again later; return False if it comes again anyway."""
        return await self.holder.send_back(self, message, delay_level)

    def abandon(self, message: ReceivedMessage) -> None:
        """Note that no handler works on the message any more, although it is not settled."""
        self.holder.abandon(self, message)
