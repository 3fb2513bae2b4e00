"""What a slave copies from its master beside the log: topics, groups, offsets of consumers, progress of delayed messages.

Every few seconds, and at once when a master of ours says through the replication stream that something has changed.  A table whose version is known is not
replaced.  Source: broker/slave/SlaveSynchronize.java (there every 60 s, in 4.9 every 10 s).
"""

from __future__ import annotations

import logging
from typing import Protocol

import attrs
import trio

from triomq.broker.replication.slave import MasterAddress
from triomq.broker.services.copied_progress import CopiedProgress
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.offsets import ConsumerOffsets, OwnCommits
from triomq.broker.services.registration import Caller
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.errors import StoreError
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import RemoteProtocolError, RemotingError
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader

logger = logging.getLogger(__name__)

TABLE_BYTES_MAX = 256 * 1024 * 1024
"""of a table that a slave copies: its own master sends it, and a slave without it is none"""
PERIOD_SECONDS = 3.0
CALL_SECONDS = 10.0


class Changes(Protocol):
    """Where a slave hears that its master's tables have changed."""

    tables_changed: trio.Event


@attrs.define(eq=False)
class TableCopy:
    """Keeps the tables of a slave copies of its master's."""

    master: MasterAddress
    changes: Changes
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    delayed: DelayedMessages
    store: MessageStore
    """This slave's own."""
    period_seconds: float = PERIOD_SECONDS
    copied: int = attrs.field(default=0, init=False)
    """How often everything was copied."""
    copied_at: float | None = attrs.field(default=None, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _delays: CopiedProgress[DelayOffsetTable] = attrs.field(factory=CopiedProgress, init=False)

    def __attrs_post_init__(self) -> None:
        if self.offsets.own is None:
            self.offsets.own = OwnCommits()

    async def run(self, caller: Caller) -> None:
        """The task "table-copy"."""
        while True:
            self.changes.tables_changed = trio.Event()
            address, changed = self.master.remoting, self.master.changed
            self.use_progress()
            if address is None:
                await changed.wait()
                continue
            try:
                await self.copy_all(caller, address)
            except (RemotingError, ValueError) as error:
                self._limit.log(logger, logging.WARNING, "cannot copy the tables of master %s: %s; next try in %g s", address, error, self.period_seconds)
            with trio.move_on_after(self.period_seconds):
                await self.changes.tables_changed.wait()

    async def copy_all(self, caller: Caller, address: str) -> None:
        """One round.  Raises RemotingError, ValueError."""
        log_end = self.store.appended.value
        topics = TopicTable.decode(await self._ask(caller, address, RequestCode.GET_ALL_TOPIC_CONFIG))
        if topics.data_version != self.topics.version.current and topics.topic_config_table:
            # A table that has changed less often than ours is not its next version: the master's config directory was emptied, or is an old copy.
            older = topics.data_version.counter < self.topics.version.current.counter
            gone = self.topics.replace(topics)
            if older and gone:
                logger.error(
                    "the master's table of topics is older than what it told before and lacks %s topics (%s): their queues stay here; "
                    "if the topics are really gone, mqadmin cleanUnusedTopic deletes them",
                    len(gone),
                    ", ".join(sorted(gone)[:10]),
                )
                gone = []
            for name in gone:
                self.offsets.forget_topic(name)
                try:
                    self.store.delete_topic(name)
                except StoreError as error:
                    logger.error("topic %s is gone on the master, but its queues stay here: %s; when the disk is well again, mqadmin cleanUnusedTopic deletes them", name, error)
        if topics.topic_config_table:
            self.topics.complete_to = log_end
        groups = SubscriptionGroupTable.decode(await self._ask(caller, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        if groups.data_version != self.groups.version.current:
            self.groups.replace(groups)
        body = await self._ask(caller, address, RequestCode.GET_ALL_CONSUMER_OFFSET, empty=True)
        if body:
            await self._tell_own_commits(caller, address, ConsumerOffsetTable.decode(body))
        await self._copy_delays(caller, address)
        self.use_progress()
        self.copied += 1
        self.copied_at = trio.current_time()

    async def _copy_delays(self, caller: Caller, address: str) -> None:
        """Hold the progress of delayed messages together with the end of the master's log, which has all that is delivered by then."""
        body = await self._ask(caller, address, RequestCode.GET_ALL_DELAY_OFFSET, empty=True)
        if not body:
            return
        table, newest = DelayOffsetTable.decode(body), self._delays.newest
        if newest is not None and newest.offset_table == table.offset_table:
            return
        figures = KvTable.decode(await self._ask(caller, address, RequestCode.GET_BROKER_RUNTIME_INFO)).table
        log_end = figures.get("commitLogMaxOffset", "")
        if not log_end.isdecimal():
            raise RemoteProtocolError("its figures do not say where its log ends (commitLogMaxOffset)", "see the master's log")
        self._delays.hold(int(log_end), table)

    def use_progress(self) -> None:
        """Take over the newest progress that the log on this slave's disk supports."""
        table = self._delays.take(self.store.flushed.value)
        if table is not None:
            self.delayed.replace(table)

    async def tell(self, caller: Caller, address: str) -> None:
        """Say now what consumers have committed here: a master that starts wants to know before it is found.  Raises RemotingError, ValueError."""
        body = await self._ask(caller, address, RequestCode.GET_ALL_CONSUMER_OFFSET, empty=True)
        await self._tell_own_commits(caller, address, ConsumerOffsetTable.decode(body) if body else ConsumerOffsetTable())

    async def _ask(self, caller: Caller, address: str, code: int, *, empty: bool = False) -> bytes:
        """The body of a table; with `empty`, nothing if the master has none, which Java calls an error."""
        answer = await caller.invoke(address, request(code), timeout=CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            if empty:
                return b""
            raise RemoteProtocolError(f"it answered {answer.code} {answer.remark}", "see the master's log")
        return bytes(answer.body)

    async def _tell_own_commits(self, caller: Caller, address: str, table: ConsumerOffsetTable) -> None:
        """Copy the offsets; what consumers committed here while the master was away goes to the master."""
        own = self.offsets.own
        found, told = self.offsets.replace(table, self.store.max_offset), dict(own.commits) if own is not None else {}
        for group, topic, queue_id, offset in found:
            header = UpdateConsumerOffsetHeader(group, topic, queue_id, offset)
            answer = await caller.invoke(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, header), timeout=CALL_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                logger.warning("the master does not take the offset %s of group %s for %s-%s: %s %s", offset, group, topic, queue_id, answer.code, answer.remark)
        if found:
            logger.info("told the master %s offsets that consumers committed here", len(found))
        if own is not None:
            own.forget(told)
