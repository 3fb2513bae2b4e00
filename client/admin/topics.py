"""Read, create or change a topic at one broker, and wait until the name servers show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio

from triomq.client.admin.answers import Answers
from triomq.client.core.errors import RequestNotSupported, TopicNotFound, TrioMQError
from triomq.remoting.protocol.bodies.route import PERM_READ, PERM_WRITE, QueueData, TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import KvConfigHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader, DeleteTopicHeader, TopicHeader
from triomq.remoting.protocol.names import DEFAULT_TOPIC, ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    from triomq.client.admin.requests import AdminRequests
    from triomq.remoting.protocol.command import Command

DEFAULT_QUEUES = 8
DEFAULT_PERM = PERM_READ | PERM_WRITE
ROUTE_POLL_SECONDS = 0.01


async def topic_config(requests: AdminRequests, topic: str, address: str) -> TopicConfig | None:
    """Return a topic's settings at one broker, None if it does not have the topic.

    Brokers of 4.x do not know the request for one topic, so they are asked for all topics.
    """
    try:
        return await requests.body(
            TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=topic)
        )
    except TopicNotFound:
        return None
    except RequestNotSupported:
        topics = await requests.body(TopicTable, address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return topics.topic_config_table.get(topic)


async def update(
    requests: AdminRequests, topic: str, address: str, changes: Mapping[str, Any], attributes: str
) -> TopicConfig:
    """Create or change a topic at one broker; return its new settings.

    ``changes``: new values by attribute of ``TopicConfig``. ``attributes``: ``+key=value,-key``.
    """
    old = await topic_config(requests, topic, address) or TopicConfig(
        topic_name=topic,
        read_queue_count=DEFAULT_QUEUES,
        write_queue_count=DEFAULT_QUEUES,
        perm=DEFAULT_PERM,
    )
    new = attrs.evolve(old, **changes, attributes=altered(old.attributes, attributes))
    header = CreateTopicHeader(
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        read_queue_count=new.read_queue_count,
        write_queue_count=new.write_queue_count,
        perm=new.perm,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=new.topic_sys_flag,
        order=new.order,
        attributes=attributes,
    )
    await requests.server(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return new


async def delete(
    requests: AdminRequests, topic: str, brokers: Iterable[str], cluster: str | None
) -> Answers[Command]:
    """Delete a topic at these brokers, then at every name server, with its order configuration."""
    namesrvs, ask = requests.namesrv_addresses, requests.servers
    header = DeleteTopicHeader(topic=topic)
    at_brokers = await ask(brokers, RequestCode.DELETE_TOPIC_IN_BROKER, header)
    header = DeleteTopicHeader(topic=topic, cluster_name=cluster)
    at_namesrvs = await ask(namesrvs, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    order = KvConfigHeader(namespace=ORDER_TOPIC_CONFIG, key=topic)
    await ask(namesrvs, RequestCode.DELETE_KV_CONFIG, order)
    return Answers(
        {**at_brokers.values, **at_namesrvs.values}, {**at_brokers.failures, **at_namesrvs.failures}
    )


async def wait_route(
    requests: AdminRequests, topic: str, configs: Mapping[str, TopicConfig]
) -> None:
    """Wait until every name server that answers shows these settings, by broker address.

    A dry run changed nothing, so it does not wait. One that was silent a moment ago is passed.
    """
    if requests.held is not None:
        return

    async def wait_at(namesrv: str) -> None:
        while not await _route_shows(requests, namesrv, topic, configs):  # noqa: ASYNC110  (the state is in another process)
            await trio.sleep(ROUTE_POLL_SECONDS)

    async with trio.open_nursery() as nursery:
        for namesrv in requests.namesrv_addresses:
            if not requests.names.is_silent(namesrv, trio.current_time()):
                nursery.start_soon(wait_at, namesrv)


async def _route_shows(
    requests: AdminRequests, namesrv: str, topic: str, configs: Mapping[str, TopicConfig]
) -> bool:
    try:
        route = await requests.body(
            TopicRoute, namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic=topic)
        )
    except TopicNotFound:
        return not configs
    except TrioMQError:
        return True  # no client gets a route from a name server that is down
    queues = {data.broker_name: data for data in route.queue_datas}
    shown = {
        address: queues.get(data.broker_name)
        for data in route.broker_datas
        for address in data.broker_addrs.values()
    }
    return all(_shows(shown.get(address), config) for address, config in configs.items())


def _shows(data: QueueData | None, config: TopicConfig) -> bool:
    """Return whether a route's entry matches these settings.

    A broker may announce fewer permissions than the topic has.
    """
    if data is None:
        return False
    same_queues = (data.read_queue_count, data.write_queue_count) == (
        config.read_queue_count,
        config.write_queue_count,
    )
    return same_queues and not data.perm & ~config.perm


def altered(old: Mapping[str, str], changes: str) -> dict[str, str]:
    """Return attributes after a change ``+key=value,-key``."""
    new = dict(old)
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, _, value = change[1:].partition("=")
        if change.startswith("+"):
            new[key] = value
        else:
            new.pop(key, None)
    return new
