"""The topics and groups of brokers, without those of the system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import Answers, read_body
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicNames, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


@attrs.frozen
class Metadata:
    """The topics and groups of one broker, without those of the system."""

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]


async def broker_metadata(admin: Admin, address: str, *, special: bool) -> Metadata:
    """Return topics and groups of a broker; ``special``: with retry and dead-letter topics."""
    topics = read_body(TopicTable, await admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG))
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    system = set(read_body(TopicNames, await admin.ask(address, code)).topic_list)
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    groups = read_body(SubscriptionGroupTable, await admin.ask(address, code))
    return Metadata(
        {
            name: config
            for name, config in topics.topic_config_table.items()
            if name not in system and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
        },
        {
            name: config
            for name, config in groups.subscription_group_table.items()
            if name not in SYSTEM_GROUPS and not name.startswith(SYSTEM_GROUP_PREFIX)
        },
    )


def merged(
    answers: Answers[Metadata],
) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig], list[str]]:
    """Return the topics and groups of all brokers, and where brokers differ."""
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    different: set[str] = set()
    for metadata in answers.some().values():
        for name, topic in metadata.topics.items():
            different |= {f"topic {name}"} if topics.get(name, topic) != topic else set()
            known = topics.setdefault(name, topic)
            topics[name] = attrs.evolve(
                known,
                read_queue_count=max(known.read_queue_count, topic.read_queue_count),
                write_queue_count=max(known.write_queue_count, topic.write_queue_count),
            )
        for name, group in metadata.groups.items():
            different |= {f"group {name}"} if groups.get(name, group) != group else set()
            groups.setdefault(name, group)
    return topics, groups, sorted(different)
