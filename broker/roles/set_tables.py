"""SetTables: topics, groups and offsets at the members of the sync state set.

They are not in the log. A master in controller mode tells every member of a change at once, by 906:
the member copies the tables, or takes the commits of the body, and answers. What is answered to a
client waits for that, as a message waits for the log::

    a change ──▶ round: 906 to every member ──▶ all have answered ──▶ the client is answered
                   ▲          │ new changes
                   └──────────┘ wait for the next round

A member of RocketMQ, or of an earlier version, takes no such news: it copies every few seconds.
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.replication.master_set import MasterSet
from triomq.broker.roles.membership import ControllerMembership
from triomq.broker.store.core.watermark import Watermark
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.server.requests import Deferred, Response

RETRY_SECONDS = 0.1
JOIN_SECONDS = 1.0
COMMITS_BYTES_MAX = 64 * 1024
"""Members copy the whole table instead of more commits in one round: some hundred."""


@attrs.define(eq=False)
class SetTables:
    """Brings changes of tables to the members of one master's set, and says when all have them."""

    leads: MasterSet
    membership: ControllerMembership
    header: ExchangeHaAddressHeader
    """This master's addresses."""
    seconds: float
    """Longest wait of a client for the members."""
    _noted: int = attrs.field(default=0, init=False)
    """Changes so far."""
    _brought: Watermark = attrs.field(factory=Watermark, init=False)
    """Changes that every member has."""
    _whole: bool = attrs.field(default=False, init=False)
    """Whether the next round has more than commits."""
    _commits: ConsumerOffsetTable = attrs.field(factory=ConsumerOffsetTable, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _tasks: trio.Nursery | None = attrs.field(default=None, init=False)
    _waits: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    _deposed: bool = attrs.field(default=False, init=False)

    def note_change(self) -> None:
        """Have all members copy the tables. Checkpoint: never."""
        self._noted, self._whole = self._noted + 1, True
        self._wake.set()

    async def wait(self) -> None:
        """Return when every member has all present changes. Raises: Rejected.

        Checkpoint: always.
        """
        with trio.move_on_after(0 if self._deposed else self.seconds) as limit:
            self._waits.add(limit)
            try:
                await self._brought.wait_reached(self._noted)
            finally:
                self._waits.remove(limit)
            return
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            "the change is stored here, and another broker, which may lack it, is the master:"
            " ask for it again"
            if self._deposed
            else "the change is stored here, and not every member of the sync state set has it"
            f" after {self.seconds:g} s: if this master fails now it may be lost; ask for it again",
        )

    def depose(self) -> None:
        """End all waits: the members follow another master. Checkpoint: never."""
        self._deposed = True
        for limit in self._waits:
            limit.cancel()

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, answer: Deferred
    ) -> Deferred:
        """Bring a commit to all members, then answer. Raises: Rejected. Checkpoint: never."""
        if self._tasks is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "this master is starting")
        self._commits.offset_table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._noted += 1
        self._wake.set()
        self._tasks.start_soon(self._answer, answer)
        return answer

    async def _answer(self, answer: Deferred) -> None:
        try:
            await self.wait()
        except Rejected as error:
            answer.fail(error)
        else:
            answer.finish(Response)

    async def run(self) -> None:
        """Run the task "replication-tables": one round after the other."""
        async with trio.open_nursery() as self._tasks:
            while True:
                await self._wake.wait()
                self._wake, noted = trio.Event(), self._noted
                body = b"" if self._whole else self._commits.encode()
                if len(body) > COMMITS_BYTES_MAX:
                    body = b""
                self._whole, self._commits = False, ConsumerOffsetTable()
                having = {self.leads.own_id}
                while missing := self.leads.counting - having:
                    async with trio.open_nursery() as round_of_calls:
                        for broker_id in missing:
                            round_of_calls.start_soon(self._tell, broker_id, body, having)
                    if not self.leads.counting <= having:
                        await trio.sleep(RETRY_SECONDS)
                self._brought.advance(noted)

    async def propose(self, members: frozenset[int], set_epoch: int) -> tuple[frozenset[int], int]:
        """Propose another set to the controllers when each broker that joins has copied the tables.

        Later changes wait for the joining brokers, since they count already.
        Raises: as ``ControllerMembership.propose``.
        """
        joining, having = members - self.leads.members, set[int]()
        with trio.move_on_after(JOIN_SECONDS):  # a slave that has just begun is soon ready
            while True:
                for broker_id in joining - having:
                    await self._tell(broker_id, b"", having)
                if joining <= having:
                    break
                await trio.sleep(RETRY_SECONDS / 2)
        if not joining <= having:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"{sorted(joining - having)} cannot copy the tables yet"
            )
        return await self.membership.propose(members, set_epoch)

    async def _tell(self, broker_id: int, body: bytes, having: set[int]) -> None:
        """Tell one member, and note whether it has the change."""
        address = self.membership.addresses.get(broker_id)
        if address is None:
            return
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, self.header, body)
        try:
            answer = await self.membership.controllers.caller.invoke(
                address, command, timeout=self.seconds
            )
        except RemotingError:
            return
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            having.add(broker_id)
