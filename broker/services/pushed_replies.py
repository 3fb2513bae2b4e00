"""Replies that were pushed to their requesters: limits, deadlines and counters while they wait.

A pushed reply costs a table entry, not a task. All wait equally long, so the oldest expires first,
and one task serves all of them. Source: broker/client/net/Broker2Client.java#callClient (10 s).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import attrs
import trio

from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.limits import Limits

PUSH_SECONDS = 10.0
C = TypeVar("C", bound=Hashable)


@attrs.define(eq=False)
class Push(Generic[C]):
    """One reply on its way to a requester."""

    connection: C
    deadline: float
    expire: Callable[[], None]
    """Called once, at the deadline, if the push has not ended."""


@attrs.define(eq=False)
class PushedReplies(Generic[C]):
    """The replies that wait for their requesters, and the task that ends them."""

    limits: Limits
    waiting_max: int
    """Replies that may wait, for all requesters together."""
    outcomes: Counter[str] = attrs.field(factory=Counter, init=False)
    """Outcome -> replies since the start: delivered, refused (by the client), unanswered, lost (the
    connection ended), not_connected, not_a_reply, busy.
    """
    _waiting: OrderedDict[Push[C], None] = attrs.field(factory=OrderedDict, init=False)
    _by_connection: Counter[C] = attrs.field(factory=Counter, init=False)
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._waiting)

    def require_room(self, connection: C, client_id: str) -> None:
        """Refuse a reply while too many wait. Raises: Rejected. Checkpoint: never."""
        limit = "replies_per_client_max"
        if self._by_connection[connection] >= self.limits.most(limit):
            self.limits.note(limit)
            self._refuse(
                f"the requester <{client_id}> has left {self.limits.most(limit)} replies"
                f" unanswered; send the reply again later, or raise {self.limits.name(limit)}"
            )
        if len(self._waiting) >= self.waiting_max:
            self._refuse(
                f"{self.waiting_max} replies wait for their requesters; send the reply again later,"
                " or raise replyThreadPoolQueueCapacity"
            )

    def _refuse(self, remark: str) -> None:
        self.outcomes["busy"] += 1
        raise Rejected(ResponseCode.SYSTEM_BUSY, remark)

    def begin(self, connection: C, expire: Callable[[], None]) -> Push[C]:
        """Count a push as waiting. Checkpoint: never."""
        push = Push(connection, trio.current_time() + PUSH_SECONDS, expire)
        self._waiting[push] = None
        self._by_connection[connection] += 1
        self._begun.set()
        return push

    def end(self, push: Push[C], outcome: str) -> bool:
        """Note how a push ended; return False if it had ended before. Checkpoint: never."""
        if push not in self._waiting:
            return False
        del self._waiting[push]
        self._by_connection[push.connection] -= 1
        if not self._by_connection[push.connection]:
            del self._by_connection[push.connection]
        self.outcomes[outcome] += 1
        return True

    async def run(self) -> None:
        """Run the task "pushed-replies"."""
        while True:
            while not self._waiting:
                self._begun = trio.Event()
                await self._begun.wait()
            oldest = next(iter(self._waiting))
            if oldest.deadline > trio.current_time():
                await trio.sleep_until(oldest.deadline)
            else:
                oldest.expire()
