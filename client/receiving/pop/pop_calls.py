"""``PopCalls``: pops that may be cancelled and lose nothing.

A broker hides messages as soon as it answers, so an answer must not be thrown away. Each pop is a
task of its own: if its caller is cancelled, the answer is given back at once.

    PopCalls.run    shielded: it outlives a cancelled body, to give back
     ├ one task for each pop
     └ give back
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from triomq.client.core.errors import TrioMQError
from triomq.client.receiving.pop.lease_times import Lease
from triomq.client.receiving.pop.pop_requests import PopAnswer, PopRequests
from triomq.client.receiving.pop.source_turns import PopSource
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

RETURN_SECONDS = 0.001
"""The invisible time of a message that is given back: brokers accept no 0."""
ECHO_SECONDS = 0.25
"""how long the end waits for a long poll that answers with what was just given back"""


@attrs.frozen
class Popped:
    """A record with its lease."""

    record: StoredMessage
    lease: Lease


@attrs.frozen
class PopResult:
    """Messages that a caller got, and the rest of the answer."""

    popped: Sequence[Popped]
    answer: PopAnswer


@attrs.define(eq=False)
class PendingPop:
    """A pop on its way: its task sets the result or the error."""

    wanted: bool = True
    """whether the caller still waits"""
    done: trio.Event = attrs.field(factory=trio.Event)
    result: PopResult | None = None
    error: Exception | None = None


@attrs.define(eq=False)
class PopCalls:
    """The pops of one consumer, and all that must be given back."""

    requests: PopRequests
    ready: dict[PopSource, int] = attrs.field(factory=dict, init=False)
    """messages that a broker had for the group after the last pop there"""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _tasks: int = attrs.field(default=0, init=False)
    _idle: trio.Event = attrs.field(factory=trio.Event, init=False)
    _polls: int = attrs.field(default=0, init=False)
    """long polls that are not answered yet"""
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _gave_back: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background tasks until ``end``."""
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                # Shielded only now: a start that is cancelled would wait for ever.
                self._scope.shield = True
                await trio.sleep_forever()

    async def end(self, *, wait: float) -> None:
        """Wait for tasks in progress, for up to ``wait`` seconds, then end all of them.

        A message that is given back may be the answer to a long poll that this consumer has sent
        before, and would be hidden again with nobody to handle it. So the end waits until long
        polls are quiet, and gives back what they bring.

        Checkpoint: always; cannot be cancelled.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + wait):
            await self._until_idle()
            while self._gave_back and self._polls:
                self._answered = trio.Event()
                with trio.move_on_after(ECHO_SECONDS) as quiet:
                    await self._answered.wait()
                if quiet.cancelled_caught:
                    break
                await self._until_idle()
        self._scope.cancel()

    async def _until_idle(self) -> None:
        while self._tasks:
            self._idle = trio.Event()
            await self._idle.wait()

    def start_soon(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task that the end waits for."""
        self._tasks += 1
        self._nursery.start_soon(self._count, work, arguments, name=f"pop: {work.__name__}")

    async def _count(
        self, work: Callable[..., Awaitable[object]], arguments: Sequence[object]
    ) -> None:
        try:
            await work(*arguments)
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._idle.set()

    # Pops

    async def pop(
        self,
        source: PopSource,
        count: int,
        invisible: float,
        poll: float,
        attempt_id: str | None = None,
    ) -> PopResult:
        """Take messages; what comes after a cancelled call is given back.

        Raises: ``TrioMQError``.
        Checkpoint: always.
        """
        pending = PendingPop()
        arguments = pending, source, count, invisible, poll, attempt_id
        if poll:  # the end does not wait for it: a broker forgets it with the connection
            self._nursery.start_soon(self._long_poll, *arguments, name=f"pop {source.topic}")
        else:
            self.start_soon(self._pop, *arguments)
        try:
            await pending.done.wait()
        except trio.Cancelled:
            pending.wanted = False
            if pending.result is not None and pending.result.popped:
                self.start_soon(self.give_back, [each.lease for each in pending.result.popped])
            raise
        if pending.error is not None:
            raise pending.error
        assert pending.result is not None
        return pending.result

    async def _long_poll(self, *arguments: Any) -> None:
        self._polls += 1
        try:
            await self._pop(*arguments)
        finally:
            self._polls -= 1
            self._answered.set()

    async def _pop(
        self,
        pending: PendingPop,
        source: PopSource,
        count: int,
        invisible: float,
        poll: float,
        attempt_id: str | None,
    ) -> None:
        try:
            answer = await self.requests.pop(source, count, invisible, poll, attempt_id)
        except Exception as error:  # the caller's, who is told whatever it is
            pending.error = error
            if not pending.wanted and not isinstance(error, TrioMQError):
                raise
        else:
            self.ready[source] = answer.rest
            pending.result = self._sort(source, answer, invisible)
        pending.done.set()
        if not pending.wanted and pending.result is not None:
            self.start_soon(self.give_back, [each.lease for each in pending.result.popped])

    def _sort(self, source: PopSource, answer: PopAnswer, invisible: float) -> PopResult:
        """Return the wanted messages; acknowledge the others.

        Brokers compare only hashes of tags.
        """
        ends = trio.current_time() + invisible
        wanted = self.requests.subscriptions.get(source.topic)
        tags = wanted.tags if wanted is not None else ()
        popped, others = [], []
        for each in answer.found:
            lease = Lease(source.topic, each.handle, ends)
            if tags and each.record.tag not in tags:
                others.append(lease)
            else:
                popped.append(Popped(each.record, lease))
        if others:
            self.start_soon(self._acknowledge, others)
        return PopResult(popped, answer)

    async def _acknowledge(self, leases: Sequence[Lease]) -> None:
        try:
            await self.requests.acknowledge_all(leases)
        except TrioMQError as error:
            logger.debug("messages with other tags come again: %s", error)

    async def give_back(self, leases: Sequence[Lease]) -> None:
        """Let other members have messages now; a failure leaves them hidden until their time."""
        self._gave_back = True
        async with trio.open_nursery() as nursery:
            for lease in leases:
                nursery.start_soon(self._return, lease)

    async def _return(self, lease: Lease) -> None:
        try:
            await self.requests.change(lease, RETURN_SECONDS)
        except TrioMQError as error:
            logger.debug(
                "a message of %s is not given back and comes after its invisible time: %s",
                lease.topic,
                error,
            )
