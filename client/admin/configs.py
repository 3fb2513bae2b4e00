"""The settings of one topic or group at one broker. Brokers of 4.x do not know the requests for one: they tell all of them."""

from __future__ import annotations

from triomq.client.admin.calls import Calls
from triomq.client.errors import GroupNotFound, RequestNotSupported, TopicNotFound
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.topic import GroupHeader, TopicHeader


async def topic_config(calls: Calls, topic: str, address: str) -> TopicConfig | None:
    """Return a topic's settings, None if the broker does not have the topic."""
    try:
        return await calls.body(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=topic))
    except TopicNotFound:
        return None
    except RequestNotSupported:
        topics = await calls.body(TopicTable, address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return topics.topic_config_table.get(topic)


async def group_config(calls: Calls, group: str, address: str) -> SubscriptionGroupConfig | None:
    """Return a group's settings, None if the broker does not know the group."""
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    try:
        return await calls.body(SubscriptionGroupConfig, address, code, GroupHeader(group=group))
    except GroupNotFound:
        return None
    except RequestNotSupported:
        groups = await calls.body(SubscriptionGroupTable, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return groups.subscription_group_table.get(group)
