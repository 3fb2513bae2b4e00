"""Read what consumer groups did with a message: offsets, members, filters, retries, traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triomq.client.admin import messages
from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.explain.key_search import copies_of
from triomq.client.admin.explain.outcomes import DELAYING_TOPICS, GroupReading, StoredCopy, selects
from triomq.client.admin.known_groups import connections_of
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.client.trace.trace_events import TraceEvent
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset, ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.names import (
    RETRY_PREFIX,
    dead_letter_topic,
    pop_retry_topics,
    retry_topic,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

FOUND_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
OWNERS_ASKED_MAX = 64
"""members that are asked for their queues: each may take seconds"""


async def group_configs(
    admin: Admin, brokers: Mapping[str, str]
) -> Answers[Mapping[str, SubscriptionGroupConfig]]:
    """Return the settings of all groups, by broker name.

    Brokers of 5.x create a group that they are asked for by its name, so this asks for all.
    """

    async def of_broker(name: str) -> Mapping[str, SubscriptionGroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await admin.ask(brokers[name], code)
        return read_body(SubscriptionGroupTable, answer).subscription_group_table

    return await admin.for_each(brokers, of_broker)


async def groups_of(admin: Admin, topic: str) -> tuple[list[str], dict[str, str]]:
    """Return the groups of a topic, and the brokers that did not answer.

    A retry topic and a dead-letter topic belong to the group in their name.
    """
    answers = await admin.topic_groups_by_broker(topic)
    names = {group for groups in answers.values.values() for group in groups}
    if topic.startswith(RETRY_PREFIX):
        names.add(topic.removeprefix(RETRY_PREFIX))
    return sorted(names), answers.reasons()


async def group_readings(
    admin: Admin,
    copy: StoredCopy,
    groups: Sequence[str],
    brokers: Mapping[str, str],
    events: Sequence[TraceEvent],
) -> tuple[list[GroupReading], dict[str, str]]:
    """Return what is known about each group and a record; and the brokers that did not answer."""
    topic, message = copy.message.topic, copy.message
    topics = {
        group: (retry_topic(group), *pop_retry_topics(group, topic), dead_letter_topic(group))
        for group in groups
    }
    failures: dict[str, str] = {}
    given_back: list[StoredCopy] = []
    if (unique_id := message.properties.get(UNIQ_KEY)) is not None and groups:
        wanted = {one for some in topics.values() for one in some} | set(DELAYING_TOPICS)
        found = await copies_of(
            admin,
            brokers,
            sorted(wanted),
            unique_id,
            lambda found: found.properties.get(UNIQ_KEY) == unique_id,
        )
        failures |= found.reasons()
        given_back = [one for some in found.values.values() for one in some]
    configs = await group_configs(admin, brokers)
    failures |= configs.reasons()

    async def read_group(group: str) -> GroupReading:
        stats = await admin.consume_stats(group)
        failures.update(stats.reasons())
        connections = await connections_of(admin, group)
        names = {address: name for name, address in brokers.items()}
        for address, error in connections.failures.items():
            failures.setdefault(names.get(address, address), str(error))
        members = {
            member.client_id: address
            for address, connection in connections.values.items()
            for member in connection.connections
        }
        first = next(iter(connections.values.values()), None)
        subscriptions = {
            name: data
            for connection in connections.values.values()
            for name, data in connection.subscriptions.items()
        }
        subscription = subscriptions.get(topic)
        offsets = offsets_of(stats)
        known = offsets.get(copy.queue)
        waits = known is None or known.consumer_offset <= message.queue_offset
        return GroupReading(
            group=group,
            offsets=offsets,
            failures=stats.reasons(),
            known=bool(
                members or offsets or any(group in table for table in configs.values.values())
            ),
            members=len(members),
            consume_type=first.consume_type if first is not None else None,
            message_model=first.message_model if first is not None else None,
            subscriptions=subscriptions,
            matches=None
            if subscription is None
            else await _matches(admin, brokers, copy, subscription),
            disabled_at=[
                broker
                for broker, known_groups in configs.values.items()
                if group in known_groups and not known_groups[group].consume_enable
            ],
            owners=await _owners(admin, group, copy.queue, members) if waits else None,
            copies=[one for one in given_back if one.topic in topics[group]],
            events=[event for event in events if event.kind == "Sub" and event.group == group],
        )

    readings = await admin.for_each(groups, read_group)
    readings.some()
    return [readings.values[group] for group in groups if group in readings.values], failures


def offsets_of(stats: Answers[ConsumeStats]) -> dict[MessageQueue, ConsumeOffset]:
    """Return the offsets of a group at the brokers that answered."""
    return {
        queue: offset
        for table in stats.values.values()
        for queue, offset in table.offset_table.items()
    }


async def _matches(
    admin: Admin, brokers: Mapping[str, str], copy: StoredCopy, subscription: SubscriptionData
) -> bool | None:
    """Return whether a subscription selects a record; for SQL its broker is asked."""
    known = selects(subscription, copy.message.tag)
    if known is not None or copy.broker not in brokers or subscription.class_filter_mode:
        return known
    offset, sql = copy.message.queue_offset, subscription.sub_string
    header = messages.pull_header(copy.queue, offset, 1, messages.TOOLS_GROUP, sql)
    try:
        answer = await admin.ask(brokers[copy.broker], RequestCode.PULL_MESSAGE, header)
    except BrokerError as error:
        return False if error.code in FOUND_NOTHING else None
    except TrioMQError:
        return None
    return any(message.queue_offset == offset for message in messages.records(answer))


async def _owners(
    admin: Admin, group: str, queue: MessageQueue, members: Mapping[str, str]
) -> list[str] | None:
    """Return the members that have a queue; None if not all of them told their queues."""
    if not members or len(members) > OWNERS_ASKED_MAX:
        return None
    answers = await admin.for_each(
        members, lambda client_id: admin.client_queues(members[client_id], group, client_id)
    )
    owners = [client_id for client_id, queues in answers.values.items() if queue in queues]
    return None if answers.failures and not owners else owners
