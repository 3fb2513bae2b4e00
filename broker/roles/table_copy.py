"""The tables that a slave copies from its master beside the log.

These are topics, groups, offsets of consumers and progress of delayed messages and transactions.
The slave copies them every few seconds, and at once when a master of TrioMQ says through the
replication stream that something has changed. A table whose version is known is not replaced.
Source: broker/slave/SlaveSynchronize.java (there every 60 s, in 4.9 every 10 s).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from triomq.broker.replication.slave import MasterAddress
from triomq.broker.roles.held_tables import HeldTables
from triomq.broker.roles.pop_handover import PopHandover
from triomq.broker.services.access_table import AccessTable
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.offsets import ConsumerOffsets, by_group
from triomq.broker.services.pop.request_modes import RequestModes
from triomq.broker.services.pop.revive_records import REVIVE_GROUP
from triomq.broker.services.registration import Caller
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.errors import StoreError
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.store import MessageStore
from triomq.remoting.access.changes import copied_table
from triomq.remoting.core.errors import RemoteProtocolError, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.assignment import MessageRequestModeTable
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    MovedOffsetTable,
)
from triomq.remoting.protocol.bodies.schema import decode_array
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP

logger = logging.getLogger(__name__)

TABLE_BYTES_MAX = 256 * 1024 * 1024
"""Largest table that a slave copies. Its own master sends it, and a slave is useless without it."""
PERIOD_SECONDS = 3.0
CALL_SECONDS = 10.0
TRANSACTION_KEYS = tuple(f"{topic}@{TRANSACTION_GROUP}" for topic in (HALF_TOPIC, OP_HALF_TOPIC))
"""Where a table of offsets says how far transactions are done."""
REVIVED = f"@{REVIVE_GROUP}"
"""How a key ends of which the offsets say how far check points of POP are done."""


@attrs.frozen
class OwnReport:
    """What consumers have committed at a slave, and what of it its master must take over."""

    found: list[tuple[str, str, int, int]] = attrs.field(factory=list)
    commits: dict[tuple[str, str, int], tuple[int, bool]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class TableCopy:
    """Keeps the tables of a slave copies of its master's."""

    caller: Caller
    master: MasterAddress
    changes: Watermark
    """Grows whenever the master says that its tables have changed."""
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    delayed: DelayedMessages
    store: MessageStore
    """This slave's own."""
    timers: Timers | None = None
    pops: PopHandover | None = None
    access: AccessTable | None = None
    """Set where users are authenticated."""
    modes: RequestModes | None = None
    acting_address: str | None = None
    """Where this slave is, if it may act for its master."""
    period_seconds: float = PERIOD_SECONDS
    compare_ends: Callable[[int, Callable[[], Awaitable[int]]], Awaitable[None]] | None = None
    """Takes the end of this log, and what asks for the end of the master's."""
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while tables are replaced: commits that the master tells wait until then."""
    _copied: Watermark = attrs.field(factory=Watermark, init=False)
    """Which of ``changes`` these copies have."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _delays: HeldTables[DelayOffsetTable] = attrs.field(factory=HeldTables, init=False)
    _timer_points: HeldTables[TimerCheckPoint] = attrs.field(factory=HeldTables, init=False)
    _progress: HeldTables[dict[str, dict[int, int]]] = attrs.field(factory=HeldTables, init=False)
    """Of transactions and check points of POP."""

    async def run(self) -> None:
        """Run the task "table-copy"."""
        while True:
            seen = self.changes.value
            address, changed = self.master.remoting, self.master.changed
            self.use_progress()
            if address is None:
                await changed.wait()
                continue
            try:
                await self._announce(address)
                async with self._turn:
                    report = await self.copy_all(address)
                self._copied.advance(seen)
                await self._report(address, report)
            except (RemotingError, ValueError) as error:
                self._limit.warning(
                    logger,
                    "cannot copy the tables of master %s: %s; next try in %g s",
                    address,
                    error,
                    self.period_seconds,
                )
            with trio.move_on_after(self.period_seconds):
                await self.changes.wait_beyond(seen)

    async def _announce(self, address: str) -> None:
        """Tell a master that may be starting from whom it must take over. Raises: RemotingError."""
        if self.acting_address is not None:
            header = ExchangeHaAddressHeader(master_address=self.acting_address)
            command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, header)
            await self.caller.invoke(address, command, timeout=CALL_SECONDS)

    async def copy_now(self) -> None:
        """Copy everything from now on, and return when this disk has it. The caller sets the
        deadline.
        """
        wanted = self.changes.value + 1
        self.changes.advance(wanted)
        await self._copied.wait_reached(wanted)
        for table in (self.topics, self.groups):
            await table.settled()

    async def take_commits(self, table: ConsumerOffsetTable) -> None:
        """Take over commits that the master tells before the next copy. Raises: ValueError."""
        async with self._turn:
            for group, topics in by_group(table).items():
                for topic, queues in topics.items():
                    for queue_id, offset in queues.items():
                        self.offsets.commit(group, topic, queue_id, offset, from_master=True)

    async def copy_all(self, address: str) -> OwnReport:
        """Copy everything once; return what the master must take over.

        Raises: RemotingError, ValueError.
        """
        report = OwnReport()
        log_end = self.store.appended.value
        if self.compare_ends is not None:
            await self.compare_ends(log_end, partial(self._log_end, address))
        topics = TopicTable.decode(await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG))
        if topics.data_version != self.topics.version.current and topics.topic_config_table:
            # A table with fewer changes than ours is not its next version: the master's config
            # directory was emptied, or is an old copy.
            older = topics.data_version.counter < self.topics.version.current.counter
            gone = self.topics.replace(topics)
            if older and gone:
                logger.error(
                    "the master's table of topics is older than its previous one and lacks %s"
                    " topics (%s): their queues stay here; if the topics are really gone, mqadmin"
                    " cleanUnusedTopic deletes them",
                    len(gone),
                    ", ".join(sorted(gone)[:10]),
                )
                gone = []
            for name in gone:
                self.offsets.forget_topic(name)
                try:
                    self.store.delete_topic(name)
                except StoreError as error:
                    logger.error(
                        "topic %s is gone on the master, but its queues stay here: %s; when the"
                        " disk is well again, mqadmin broker delete-unused-topics deletes them",
                        name,
                        error,
                    )
        if topics.topic_config_table:
            self.topics.complete_to = log_end
        groups = SubscriptionGroupTable.decode(
            await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        )
        if groups.data_version != self.groups.version.current:
            self.groups.replace(groups)
        body = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, empty=True)
        if body:
            if self.pops is not None:
                await self.pops.report(address, partial(self._log_end, address))
            table = MovedOffsetTable.decode(body)
            await self._hold_progress(address, table)
            report = self._replace_offsets(table)
        await self._copy_delays(address)
        await self._copy_timers(address)
        await self._copy_access(address)
        await self._copy_modes(address)
        self.use_progress()
        return report

    async def _copy_access(self, address: str) -> None:
        """Copy users and rules, which Java's slaves do not. Raises: RemotingError."""
        if self.access is None:
            return
        users = decode_array(User, await self._ask(address, RequestCode.AUTH_LIST_USER))
        rules = decode_array(Acl, await self._ask(address, RequestCode.AUTH_LIST_ACL))
        self.access.replace(copied_table(users, rules))

    async def _copy_modes(self, address: str) -> None:
        """Copy how groups read topics. Raises: RemotingError."""
        body = await self._ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, empty=True)
        if body and self.modes is not None:
            self.modes.replace(MessageRequestModeTable.decode(body).message_request_mode_map)

    async def _copy_delays(self, address: str) -> None:
        """Hold the progress of delayed messages together with the end of the master's log.

        The log up to that end contains all that is delivered by then.
        """
        body = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET, empty=True)
        if not body:
            return
        table, newest = DelayOffsetTable.decode(body), self._delays.newest
        if newest is not None and newest.offset_table == table.offset_table:
            return
        self._delays.hold(await self._log_end(address), table)

    async def _hold_progress(self, address: str, table: ConsumerOffsetTable) -> None:
        """Hold the progress of transactions and of POP in the same way: offsets of groups of the
        master's.
        """
        progress = {
            key: dict(offsets) for key, offsets in table.offset_table.items() if is_progress(key)
        }
        if progress != self._progress.newest:
            self._progress.hold(await self._log_end(address), progress)

    def _replace_progress(self, table: ConsumerOffsetTable) -> None:
        """Put the progress that this slave's log supports into a copied table."""
        usable = self._progress.take(self.store.flushed.value)
        if usable is None:
            usable = {
                f"{topic}@{group}": dict(offsets)
                for group in (TRANSACTION_GROUP, REVIVE_GROUP)
                for topic, offsets in self.offsets.committed.get(group, {}).items()
                if is_progress(f"{topic}@{group}")
            }
        for key in [key for key in table.offset_table if is_progress(key)]:
            del table.offset_table[key]
        table.offset_table.update({key: offsets for key, offsets in usable.items() if offsets})

    async def _copy_timers(self, address: str) -> None:
        """Hold the progress of timed messages in the same way; 4.9 has none."""
        if self.timers is None:
            return
        body = await self._ask(address, RequestCode.GET_TIMER_CHECK_POINT, empty=True)
        if not body:
            return
        point, newest = TimerCheckPoint.decode(body), self._timer_points.newest
        if newest is None or (point.last_read_ms, point.master_queue_offset) != (
            newest.last_read_ms,
            newest.master_queue_offset,
        ):
            self._timer_points.hold(await self._log_end(address), point)

    async def _log_end(self, address: str) -> int:
        """Return the end of the master's log. Raises: RemotingError."""
        figures = KvTable.decode(
            await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        ).table
        log_end = figures.get("commitLogMaxOffset", "")
        if not log_end.isdecimal():
            raise RemoteProtocolError(
                "its figures do not say where its log ends (commitLogMaxOffset)",
                "see the master's log",
            )
        return int(log_end)

    def use_progress(self) -> None:
        """Take over the newest progress that the log on this slave's disk supports."""
        table = self._delays.take(self.store.flushed.value)
        if table is not None:
            self.delayed.replace(table)
        point = self._timer_points.take(self.store.flushed.value)
        if point is not None and self.timers is not None:
            self.timers.follow(point)

    async def report_commits(self, address: str) -> None:
        """Report now what consumers have committed here. Raises: RemotingError, ValueError.

        A master that starts needs it before consumers find it.
        """
        if self.pops is not None:
            await self.pops.report(address, partial(self._log_end, address))
        body = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, empty=True)
        table = MovedOffsetTable.decode(body) if body else MovedOffsetTable()
        await self._report(address, self._replace_offsets(table))

    async def _ask(self, address: str, code: int, *, empty: bool = False) -> bytes:
        """Return the body of a table. Raises: RemoteProtocolError.

        With ``empty``, return nothing if the master has no such table: Java answers with an error.
        """
        answer = await self.caller.invoke(address, request(code), timeout=CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            if empty:
                return b""
            raise RemoteProtocolError(
                f"it answered {answer.code} {answer.remark}", "see the master's log"
            )
        return bytes(answer.body)

    def _replace_offsets(self, table: MovedOffsetTable) -> OwnReport:
        """Copy the offsets; return what consumers committed here while the master was away."""
        self._replace_progress(table)
        found, own = self.offsets.replace(table, self.store.max_offset), self.offsets.own
        return OwnReport(found, {} if own is None else dict(own.commits))

    async def _report(self, address: str, report: OwnReport) -> None:
        """Send the master what it must take over. No round of a ``SetTables`` may wait for it."""
        found = report.found
        for group, topic, queue_id, offset in found:
            header = UpdateConsumerOffsetHeader(group, topic, queue_id, offset)
            answer = await self.caller.invoke(
                address, request(RequestCode.UPDATE_CONSUMER_OFFSET, header), timeout=CALL_SECONDS
            )
            if answer.code != ResponseCode.SUCCESS:
                logger.warning(
                    "the master does not take the offset %s of group %s for %s-%s: %s %s",
                    offset,
                    group,
                    topic,
                    queue_id,
                    answer.code,
                    answer.remark,
                )
        if found:
            logger.info(
                "reported %s offsets that consumers committed here to the master", len(found)
            )
        if self.offsets.own is not None:
            self.offsets.own.forget(report.commits)


def is_progress(key: str) -> bool:
    """Return whether a row of offsets says how far a broker's own work is done."""
    return key in TRANSACTION_KEYS or key.endswith(REVIVED)
