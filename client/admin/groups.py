"""Read a consumer group at brokers: its settings, its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers
from triomq.client.core.errors import GroupNotFound, GroupOffline, RequestNotSupported
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.headers.topic import GroupHeader

if TYPE_CHECKING:
    from triomq.client.admin.requests import AdminRequests


async def group_config(
    requests: AdminRequests, group: str, address: str
) -> SubscriptionGroupConfig | None:
    """Return a group's settings at one broker, None if it does not know the group.

    Brokers of 4.x do not know the request for one group, so they are asked for all groups. Those
    of 5.x create the group that they are asked for, so a dry run asks for all groups too.
    """
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    try:
        if requests.held is not None:
            return await _group_of_all(requests, group, address)
        return await requests.body(SubscriptionGroupConfig, address, code, GroupHeader(group=group))
    except GroupNotFound:
        return None
    except RequestNotSupported:
        return await _group_of_all(requests, group, address)


async def _group_of_all(
    requests: AdminRequests, group: str, address: str
) -> SubscriptionGroupConfig | None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    groups = await requests.body(SubscriptionGroupTable, address, code)
    return groups.subscription_group_table.get(group)


async def consumer_connections(
    requests: AdminRequests, group: str, addresses: Sequence[str]
) -> Answers[ConsumerConnection]:
    """Return the connected members of a group, by address; brokers without members are left out.

    Raises: GroupOffline if no broker has a member.
    """
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    header = ConsumerGroupHeader(consumer_group=group)
    if not addresses:
        reason = "no broker is registered; start one with `mqbroker -n ADDRESSES`"
        raise GroupOffline(ResponseCode.CONSUMER_NOT_ONLINE, reason, "the cluster", code.name)
    answers = await requests.fan_out(
        addresses, lambda address: requests.body(ConsumerConnection, address, code, header)
    )
    offline = [error for error in answers.failures.values() if isinstance(error, GroupOffline)]
    if offline and not answers.values:
        raise offline[0]
    failures = {
        address: error
        for address, error in answers.failures.items()
        if not isinstance(error, GroupOffline)
    }
    return Answers(answers.values, failures)
