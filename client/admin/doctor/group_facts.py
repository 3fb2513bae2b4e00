"""Read what ``group_checks`` judges: offsets twice, members, settings, permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from triomq.client.admin.answers import read_body
from triomq.client.admin.doctor.dead_letter_facts import read_dead_letters
from triomq.client.admin.doctor.group_checks import GroupFacts, OffsetSample
from triomq.client.admin.explain.group_readings import group_configs, offsets_of
from triomq.client.admin.known_groups import connections_of, unknown_group
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import RouteNotFound, TrioMQError
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader
from triomq.remoting.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

MEMBERS_ASKED_MAX = 256


async def read_group_facts(admin: Admin, group: str, seconds: float) -> GroupFacts:
    """Return the facts about a group; the two samples are ``seconds`` apart.

    Raises: GroupNotFound if no broker knows the group; TrioMQError if no broker answers.
    """
    brokers = await admin.leaders()
    configs = await group_configs(admin, brokers)
    known = {name: table[group] for name, table in configs.some().items() if group in table}
    connections = await connections_of(admin, group)
    first = await _sample(admin, group, silent := dict(configs.reasons()))
    if not known and not connections.values and not first.offsets and not silent:
        raise unknown_group(group)
    addresses = {
        member.client_id: address
        for address, connection in connections.values.items()
        for member in connection.connections
    }
    members: dict[str, dict[str, str]] = {client_id: {} for client_id in addresses}
    for connection in connections.values.values():
        for member in connection.connections:
            members[member.client_id] |= {
                topic: data.sub_string for topic, data in connection.subscriptions.items()
            }
    topics = {topic for one in members.values() for topic in one}
    topics |= {queue.topic for queue in first.offsets}
    permissions = await _permissions(admin, topics)
    of_brokers = await _broker_permissions(admin, brokers)
    await trio.sleep(max(0.0, seconds - (trio.current_time() - first.at)))
    asked = sorted(addresses)[:MEMBERS_ASKED_MAX]
    running = await admin.for_each(
        asked, lambda client_id: _running(admin, addresses[client_id], group, client_id)
    )
    second = await _sample(admin, group, silent)
    names = {address: name for name, address in brokers.items()}
    for address, error in connections.failures.items():
        silent.setdefault(names.get(address, address), str(error))
    return GroupFacts(
        group=group,
        first=first,
        second=second,
        now_ms=now_ms(),
        members=members,
        message_model=next(
            (connection.message_model for connection in connections.values.values()), None
        ),
        running=running.values,
        silent_members=running.reasons(),
        configs=known,
        permissions=permissions,
        broker_permissions=of_brokers,
        silent_brokers=silent,
        dead=await read_dead_letters(admin, group, second.offsets, now_ms()),
        asked=len(brokers.keys() | silent.keys()),
    )


async def _sample(admin: Admin, group: str, silent: dict[str, str]) -> OffsetSample:
    """Return the offsets now; add the brokers that did not answer to ``silent``."""
    stats = await admin.consume_stats(group)
    for broker, reason in stats.reasons().items():
        silent.setdefault(broker, reason)
    return OffsetSample(at=trio.current_time(), offsets=offsets_of(stats))


async def _running(admin: Admin, address: str, group: str, client_id: str) -> ConsumerRunning:
    header = ConsumerRunningHeader(consumer_group=group, client_id=client_id)
    answer = await admin.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    return read_body(ConsumerRunning, answer)


async def _permissions(admin: Admin, topics: set[str]) -> dict[tuple[str, str], int]:
    """Return the permissions of topics in their routes."""
    found: dict[tuple[str, str], int] = {}
    for topic in sorted(topics):
        if topic.startswith(RETRY_PREFIX):
            continue
        try:
            route = await admin.route(topic)
        except RouteNotFound:
            continue
        found |= {(topic, data.broker_name): data.perm for data in route.queue_datas}
    return found


async def _broker_permissions(admin: Admin, brokers: Mapping[str, str]) -> dict[str, int]:
    """Return the setting ``brokerPermission`` of the brokers that tell it."""

    async def of_broker(name: str) -> int | None:
        try:
            answer = await admin.ask(brokers[name], RequestCode.GET_BROKER_CONFIG)
        except TrioMQError:
            return None  # silent brokers have their finding; rights may be missing
        for line in bytes(answer.body).decode("utf-8", "replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "brokerPermission" and value.strip().isdecimal():
                return int(value)
        return None

    answers = await admin.for_each(brokers, of_broker)
    return {name: value for name, value in answers.values.items() if value is not None}
