"""Moving a group to other offsets, at brokers of 4.x and 5.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.missing_brokers import names_beside, with_missing
from triomq.client.core.errors import BrokerFailed, GroupOffline
from triomq.remoting.protocol.bodies.offsets import QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader, UpdateConsumerOffsetHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

END_OF_QUEUE = -1
"""the timestamp that means the end of each queue"""


NEVER_CONNECTED = "consumer group <"
"""how brokers of 4.x refuse a group that had no member since they started"""


Offsets = Mapping[MessageQueue, int]


async def reset(
    admin: Admin, header: ResetOffsetHeader, brokers: Mapping[str, str]
) -> Answers[Offsets]:
    """Make each broker move the group.

    Brokers of 4.x only ask connected members, and refuse groups that had none; without members, the
    offsets are written one by one.
    """

    async def reset_at(address: str) -> Offsets:
        try:
            answer = await admin.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            return read_body(QueueOffsets, answer).offset_table
        except GroupOffline:
            pass
        except BrokerFailed as error:
            if NEVER_CONNECTED not in error.remark:
                raise
        name = next(name for name, known in brokers.items() if known == address)
        return await write_offsets(admin, header, name, address)

    return await admin.for_each(brokers.values(), reset_at)


async def reset_everywhere(admin: Admin, header: ResetOffsetHeader) -> Answers[Offsets]:
    """Make each broker of the topic move the group; one that left may have it, too."""
    brokers = await admin.topic_brokers(header.topic)
    answers = await reset(admin, header, brokers)
    return with_missing(answers, names_beside(brokers, await admin.missing_brokers()))


async def write_offsets(
    admin: Admin, header: ResetOffsetHeader, broker_name: str, address: str
) -> Offsets:
    """Look up the offsets, and commit them for the group."""
    written: dict[MessageQueue, int] = {}
    for queue in await admin.queues(header.topic, broker_name):
        if header.queue_id not in (-1, queue.queue_id):
            continue
        if header.offset is not None:
            offset = header.offset
        elif header.timestamp == END_OF_QUEUE:
            offset = await admin.max_offset(queue)
        else:
            offset = await admin.offset_by_time(queue, header.timestamp)
        commit = UpdateConsumerOffsetHeader(header.group, header.topic, queue.queue_id, offset)
        await admin.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        written[queue] = offset
    return written
