"""What an import of offsets must know: the ends of the queues, and which groups have members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import all_of, read_body
from triomq.client.admin.cluster_files.difference import ClusterStep
from triomq.client.admin.cluster_files.items import ItemKind
from triomq.client.admin.cluster_files.snapshot import BrokerItems
from triomq.client.core.errors import GroupNotFound, GroupOffline, TopicNotFound
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.offsets import TopicStats
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.headers.topic import TopicHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def within_queues(
    admin: Admin, steps: Sequence[ClusterStep], brokers: Mapping[str, BrokerItems]
) -> tuple[list[ClusterStep], list[str]]:
    """Return steps about offsets without what their queues do not have; and what that was.

    An offset behind the end of its queue would make the group skip the messages that come until
    then, so the group is set to the end.
    """
    numbered = {str(number): step for number, step in enumerate(steps)}

    async def ends(number: str) -> dict[str, int]:
        step = numbered[number]
        topic = step.name.partition("@")[0]
        address, code = brokers[step.place].address, RequestCode.GET_TOPIC_STATS_INFO
        try:
            answer = await admin.ask(address, code, TopicHeader(topic=topic))
        except TopicNotFound:
            return {}
        table = read_body(TopicStats, answer).offset_table
        return {str(queue.queue_id): known.max_offset for queue, known in table.items()}

    answers = await admin.for_each(numbered, ends)
    kept: list[ClusterStep] = []
    notes: list[str] = []
    for number, step in numbered.items():
        known = answers.values.get(number)
        if known is None:
            kept.append(step)  # it fails again when it is done, with its reason
            continue
        within, more = limited(step, known)
        notes += more
        kept += [within] if within.changed else []
    return kept, notes


def limited(step: ClusterStep, ends: Mapping[str, int]) -> tuple[ClusterStep, list[str]]:
    """Return a step with offsets within the queues, and what the file has otherwise.

    ``ends``: queue → the offset of its next message.
    """
    after = dict(step.before or {})
    notes: list[str] = []
    for queue in step.changed:
        offset = (step.after or {})[queue]
        where = f"{step.subject} queue {queue} at {step.place}"
        if queue not in ends:
            notes.append(f"{where}: the queue does not exist; its offset {offset} is left out")
        elif offset > ends[queue]:
            notes.append(
                f"{where}: offset {offset} is behind the end of the queue; set to the end,"
                f" {ends[queue]}"
            )
            after[queue] = ends[queue]
        else:
            after[queue] = offset
    return attrs.evolve(step, after=after), notes


async def groups_with_members(
    admin: Admin, steps: Iterable[ClusterStep], brokers: Mapping[str, BrokerItems]
) -> dict[str, int]:
    """Return the groups of steps about offsets that have members → their number.

    Raises: TrioMQError if a broker cannot tell.
    """
    groups = sorted(
        {step.name.partition("@")[2] for step in steps if step.kind is ItemKind.OFFSETS}
    )
    addresses = [broker.address for place, broker in brokers.items() if ":" not in place]
    asked = {f"{group}@{address}": (group, address) for group in groups for address in addresses}

    async def members(label: str) -> set[str]:
        group, address = asked[label]
        code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
        try:
            answer = await admin.ask(address, code, header)
        except (GroupOffline, GroupNotFound):
            return set()
        return {one.client_id for one in read_body(ConsumerConnection, answer).connections}

    answers = all_of(await admin.for_each(asked, members))
    clients: dict[str, set[str]] = {}
    for label, found in answers.items():
        clients.setdefault(asked[label][0], set()).update(found)
    return {group: len(found) for group, found in clients.items() if found}
