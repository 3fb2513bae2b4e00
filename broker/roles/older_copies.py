"""A slave's copies of compaction topics that are older than its log: pulled from its master.

Source: store/kv/MessageFetcher.java.
"""

from __future__ import annotations

import attrs

from triomq.broker.replication.slave import MasterAddress
from triomq.broker.services.registration import Caller
from triomq.broker.store.compaction.compacted_queue import CompactedQueue
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.names import SYSTEM_GROUP_PREFIX
from triomq.remoting.protocol.record_reader import split_records

GROUP = SYSTEM_GROUP_PREFIX + "COMPACTION"
"""A system group: every broker takes it, and lists no progress of it."""
PULL_MESSAGES = 1024
CALL_SECONDS = 10.0
GOES_ON = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@attrs.define(eq=False)
class OlderCopiesOfMaster:
    """Pulls what the master's log has deleted, before the slave copies from its own log."""

    caller: Caller
    master: MasterAddress
    store: MessageStore
    """This slave's own."""

    async def fill(self, queue: CompactedQueue) -> None:
        """Append the copies that are missing; nothing yet if the log is too far behind.

        Raises: RemotingError, and what ``CompactedQueue.append`` raises. Checkpoint: always.
        """
        address = self.master.remoting
        if address is None:
            raise RemoteProtocolError("the master's address is not known yet", "wait for it")
        end = queue.log_min if queue.log_end else await self._end_of_all(address, queue)
        if end is None:
            return
        offset = queue.copies.end_offset
        while offset < end and not queue.deleted:
            records, following = await self._pull(address, queue, offset)
            await queue.append(records)
            if following <= offset:
                break
            offset = following
        await queue.sync()
        if not queue.log_end:
            self._number_from(queue)
        queue.filled = True

    async def _end_of_all(self, address: str, queue: CompactedQueue) -> int | None:
        """Return the end of a queue of which the log has no message; None: it may get some yet.

        Once the log has all that the master's log had after it was asked, only copies are left.
        """
        topic, queue_id = queue.key
        header = GetMaxOffsetHeader(topic, queue_id)
        answer = await self.caller.invoke(
            address, request(RequestCode.GET_MAX_OFFSET, header), timeout=CALL_SECONDS
        )
        _check(answer.code, answer.remark)
        end = answer.header(OffsetResponseHeader).offset
        figures = await self.caller.invoke(
            address, request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout=CALL_SECONDS
        )
        _check(figures.code, figures.remark)
        log_end = KvTable.decode(figures.body).table.get("commitLogMaxOffset", "")
        caught_up = log_end.isdecimal() and self.store.indexed.value >= int(log_end)
        return end if caught_up and not queue.log_end else None

    async def _pull(
        self, address: str, queue: CompactedQueue, offset: int
    ) -> tuple[list[bytes], int]:
        topic, queue_id = queue.key
        header = PullMessageHeader(
            GROUP, topic, queue_id, offset, PULL_MESSAGES, SUBSCRIPTION, 0, 0, 0, "*"
        )
        answer = await self.caller.invoke(
            address, request(RequestCode.PULL_MESSAGE, header), timeout=CALL_SECONDS
        )
        if answer.code not in GOES_ON:
            _check(answer.code, answer.remark)
        following = answer.header(PullMessageResponseHeader).next_begin_offset
        found = answer.code == ResponseCode.SUCCESS
        return list(split_records([bytes(answer.body)] if found else [])), following

    def _number_from(self, queue: CompactedQueue) -> None:
        """Let the queue, of which the log has no message, go on after its copies."""
        end = queue.copies.end_offset
        if end:
            opened = self.store.queue_table.open(*queue.key)
            opened.next_offset = max(opened.next_offset, end)


def _check(code: int, remark: str | None) -> None:
    """Raises: RemoteProtocolError unless the master agreed."""
    if code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(
            f"the master answered {code} {remark} when asked for older copies", "see its log"
        )
