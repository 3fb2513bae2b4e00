"""PopHandover: a slave gives its master what it has done about POP in the master's place.

Check points go as timed messages to the master's revive topic, acknowledgements as a batch (200151)
of a client: a Java master takes both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs

from triomq.broker.services.pop.acting_records import ActingAcks, ActingPoint, ActingRecords
from triomq.broker.services.pop.pop_log import QueueKey
from triomq.broker.services.pop.pops import Pops, position_point
from triomq.broker.services.pop.revive_records import revive_topic
from triomq.broker.services.registration import Caller
from triomq.broker.services.remote_sender import INNER_PRODUCER, STORED
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.check_point import CHECK_POINT_TAG, LEAD_MS, Key
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody, offset_bits
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import (
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    properties_text,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC

CALL_SECONDS = 10.0
ACKS_A_BATCH = 500


@attrs.define(eq=False)
class Reported:
    """What this broker has sent to the master."""

    log_end: int
    """End of the master's log with it."""
    points: set[Key] = attrs.field(factory=set)
    acks: dict[Key, int] = attrs.field(factory=dict)
    """With the number of offsets: there may be more since."""
    positions: dict[QueueKey, int] = attrs.field(factory=dict)


@attrs.define(eq=False)
class PopHandover:
    """Reports to the master, and forgets what the master has. ``pops``: None if it never acts."""

    caller: Caller
    records: ActingRecords
    cluster: str
    own_end: Callable[[], int]
    """How much of the log the disk of this slave has."""
    pops: Pops | None = None
    _reported: Reported | None = attrs.field(default=None, init=False)
    """Until this slave has it in its log it keeps it: it may become the master."""

    async def report(self, address: str, log_end: Callable[[], Awaitable[int]]) -> None:
        """Report everything, unless this slave acts now.

        ``log_end``: returns the end of the master's log.

        Raises: RemotingError.
        """
        self.forget_reported()
        records, pops = self.records, self.pops
        if pops is not None:
            if not pops.closed:
                return
            pops.commit_ahead()
        before = self._reported or Reported(0)
        points = [each for each in records.points.items() if each[0] not in before.points]
        acks = [
            (key, each)
            for key, each in records.acks.items()
            if before.acks.get(key) != len(each.offsets)
        ]
        positions = {
            key: offset
            for key, offset in records.positions.items()
            if before.positions.get(key) != offset
        }
        if not points and not acks and not positions:
            return
        for queue, offset in positions.items():
            done = ActingPoint(position_point(queue, offset), set(), 0)
            await self._send_point(address, done)
        for key, known in points:
            if not known.read:
                await self._send_point(address, known)
            gone = set(known.point.offsets) - known.left
            if known.own and gone:
                acks.append((key, ActingAcks(known.point.visible_at, known.revive_queue, gone)))
        for begin in range(0, len(acks), ACKS_A_BATCH):
            await self._send_acks(address, acks[begin : begin + ACKS_A_BATCH])
        for _, known in points:
            known.own = False  # it is in the master's log
        self._reported = Reported(
            await log_end(),
            before.points | {key for key, _ in points},
            before.acks | {key: len(each.offsets) for key, each in acks},
            before.positions | positions,
        )
        self.forget_reported()

    def forget_reported(self) -> None:
        """Forget what was reported, and is in the log of this slave. Checkpoint: never."""
        reported, records = self._reported, self.records
        if reported is not None and reported.log_end <= self.own_end():
            self._reported = None
            same = [
                key
                for key, count in reported.acks.items()
                if key in records.acks and len(records.acks[key].offsets) == count
            ]
            records.forget(reported.points, same)
            for queue, offset in reported.positions.items():
                if records.positions.get(queue) == offset:
                    del records.positions[queue]

    async def _send_point(self, address: str, known: ActingPoint) -> None:
        point = known.point
        properties = {
            TAGS: CHECK_POINT_TAG,
            UNIQ_KEY: point.unique_key,
            TIMER_DELIVER_MS: str(point.visible_at - LEAD_MS),
        }
        header = SendMessageHeader(
            producer_group=INNER_PRODUCER,
            topic=revive_topic(self.cluster),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=8,
            queue_id=known.revive_queue,
            sys_flag=0,
            born_timestamp=point.pop_time,
            flag=0,
            properties=properties_text(properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        command = request(RequestCode.SEND_MESSAGE_V2, header, point.encode())
        answer = await self.caller.invoke(address, command, timeout=CALL_SECONDS)
        if answer.code not in STORED:
            raise _refused("a check point", answer.code, answer.remark)

    async def _send_acks(self, address: str, acks: Sequence[tuple[Key, ActingAcks]]) -> None:
        for broker_name in {key[5] for key, _ in acks}:
            body = BatchAckBody(
                broker_name, [_batch_ack(key, each) for key, each in acks if key[5] == broker_name]
            )
            command = request(RequestCode.BATCH_ACK_MESSAGE, None, body.encode())
            answer = await self.caller.invoke(address, command, timeout=CALL_SECONDS)
            if answer.code not in STORED:  # this slave may not follow yet
                raise _refused("acknowledgements", answer.code, answer.remark)


def _batch_ack(key: Key, acks: ActingAcks) -> BatchAck:
    """``topic`` is the real one, a retry topic too: then it is not named a second time."""
    topic, group, queue_id, start, pop_time, _ = key
    return BatchAck(
        consumer_group=group,
        topic=topic,
        start_offset=start,
        queue_id=queue_id,
        revive_queue_id=acks.revive_queue,
        pop_time=pop_time,
        invisible_ms=acks.visible_at - pop_time,
        bits=offset_bits(start, sorted(each for each in acks.offsets if each >= start)),
    )


def _refused(what: str, code: int, remark: str | None) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the master does not take {what} of POP: it answered {code} {remark}", "see its log"
    )
