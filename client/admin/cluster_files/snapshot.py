"""Read what the brokers of a cluster have, for export, comparison and change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.accounts import listed
from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.broker_metadata import broker_metadata
from triomq.client.admin.cluster_files.fields import DEFAULT_POLICY, is_own_topic, retry_policy
from triomq.client.admin.cluster_files.items import (
    ClusterDocument,
    ClusterItem,
    ItemKind,
    ItemSettings,
    item_of,
)
from triomq.client.admin.documents import group_document, topic_document
from triomq.client.admin.errors import MasterMissing
from triomq.client.admin.missing_brokers import with_missing
from triomq.client.core.errors import BrokerError, RequestNotSupported
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import ListAclsHeader, ListUsersHeader
from triomq.remoting.protocol.names import is_system_group

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress

Items = Mapping[str, ItemSettings]
NOT_CONFIGURED = "not configured"
"""in how Java's brokers without access control refuse to list users"""


@attrs.frozen(kw_only=True)
class BrokerItems:
    """What one broker has."""

    address: str
    kinds: Mapping[ItemKind, Items | None]
    """a slave has users and rules only; None: the broker has no access control"""
    group_configs: Mapping[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    """with the members that no file has, which a change must keep"""


async def read_cluster(
    admin: Admin, cluster: str, *, offsets: bool, but: Iterable[str] = ()
) -> Answers[BrokerItems]:
    """Return what each broker has, by its name; a slave with access control is ``name:id``.

    ``but``: names of brokers that are not asked.

    Raises: ClusterNotFound, MasterMissing.
    """
    brokers = [one for one in await admin.brokers(cluster) if one.name not in but]
    masters = {one.name: one for one in brokers if one.id == 0}
    if not masters:
        raise MasterMissing(cluster)
    answers = await admin.for_each(
        masters, lambda name: _master(admin, masters[name], offsets=offsets)
    )
    slaves = {
        f"{one.name}:{one.id}": one
        for one in brokers
        if one.id != 0
        and one.name in answers.values
        and answers.values[one.name].kinds[ItemKind.USERS] is not None
    }
    lost = {
        one.name: one
        for one in await admin.missing_brokers(cluster) or ()
        if one.id == 0 and one.name not in but
    }
    answers = with_missing(answers, lost)
    others = await admin.for_each(slaves, lambda place: _slave(admin, slaves[place]))
    return Answers({**answers.values, **others.values}, {**answers.failures, **others.failures})


def present_of(answers: Answers[BrokerItems]) -> dict[str, Mapping[ItemKind, Items | None]]:
    """Return the items of the brokers that answered, for a comparison."""
    return {place: broker.kinds for place, broker in answers.values.items()}


def exported(cluster: str, answers: Answers[BrokerItems], *, offsets: bool) -> ClusterDocument:
    """Return the document that describes what the brokers have."""
    present = present_of(answers)
    wanted = [kind for kind in ItemKind if offsets or kind is not ItemKind.OFFSETS]
    sections: dict[ItemKind, dict[str, ClusterItem]] = {}
    for kind in wanted:
        known = {place: kinds[kind] for place, kinds in present.items() if kind in kinds}
        at = {place: items for place, items in known.items() if items is not None}
        if not at:
            continue
        names = sorted({name for items in at.values() for name in items})
        sections[kind] = {
            name: ClusterItem(
                None, {place: items[name] for place, items in at.items() if name in items}
            )
            if kind is ItemKind.OFFSETS
            else _without_equal_slaves({place: items.get(name) for place, items in at.items()})
            for name in names
        }
    masters = [place for place in present if ":" not in place]
    return ClusterDocument(
        cluster=cluster,
        brokers=sorted(masters),
        missing=sorted(answers.failures),
        sections=sections,
    )


def _without_equal_slaves(settings: Mapping[str, ItemSettings | None]) -> ClusterItem:
    """Return the item of these settings; a slave that is as its master is not named."""
    masters = {place: own for place, own in settings.items() if ":" not in place}
    if not any(own is not None for own in masters.values()):
        return item_of(settings)
    item = item_of(masters)
    different = {place: own for place, own in settings.items() if item.at(place) != own}
    return attrs.evolve(item, special={**item.special, **different})


async def _master(admin: Admin, broker: BrokerAddress, *, offsets: bool) -> BrokerItems:
    metadata = await broker_metadata(admin, broker.address, special=False)
    kinds: dict[ItemKind, Items | None] = await _access(admin, broker.address)
    kinds[ItemKind.TOPICS] = {
        name: {
            **_without(topic_document(config), "topicName"),
            "attributes": dict(sorted(config.attributes.items())),
        }
        for name, config in metadata.topics.items()
        if not is_own_topic(name)
    }
    groups = {name: config for name, config in metadata.groups.items() if not is_system_group(name)}
    kinds[ItemKind.GROUPS] = {name: _group(config) for name, config in groups.items()}
    if offsets:
        answer = await admin.ask(broker.address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        kinds[ItemKind.OFFSETS] = {
            key: {str(queue): offset for queue, offset in sorted(queues.items()) if offset >= 0}
            for key, queues in read_body(ConsumerOffsetTable, answer).offset_table.items()
            if _is_users(key, kinds[ItemKind.TOPICS] or {})
        }
    return BrokerItems(address=broker.address, kinds=kinds, group_configs=groups)


async def _slave(admin: Admin, broker: BrokerAddress) -> BrokerItems:
    return BrokerItems(address=broker.address, kinds=await _access(admin, broker.address))


def _is_users(key: str, topics: Items) -> bool:
    """Return whether the offsets of ``topic@group`` belong to a file."""
    topic, _, group = key.partition("@")
    return topic in topics and not is_system_group(group)


def _without(document: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in document.items() if key != name}


def _group(config: SubscriptionGroupConfig) -> ItemSettings:
    document = _without(group_document(config), "groupName")
    return {
        **document,
        "groupRetryPolicy": retry_policy(document["groupRetryPolicy"]),
        "attributes": dict(sorted(config.attributes.items())),
    }


async def _access(admin: Admin, address: str) -> dict[ItemKind, Items | None]:
    """Return users without their passwords, and rules."""
    try:
        header, code = ListUsersHeader(None), RequestCode.AUTH_LIST_USER
        users = await listed(admin, address, code, header, User)
        code = RequestCode.AUTH_LIST_ACL
        rules = await listed(admin, address, code, ListAclsHeader(None, None), Acl)
    except RequestNotSupported:
        return {ItemKind.USERS: None, ItemKind.RULES: None}
    except BrokerError as error:
        if NOT_CONFIGURED in error.remark:
            return {ItemKind.USERS: None, ItemKind.RULES: None}
        raise
    return {
        ItemKind.USERS: {
            str(user.username): {
                key: value
                for key, value in (("userType", user.user_type), ("userStatus", user.user_status))
                if value is not None
            }
            for user in users
        },
        ItemKind.RULES: {str(acl.subject): _rules(acl) for acl in rules},
    }


def _rules(acl: Acl) -> ItemSettings:
    return {
        f"{'' if policy.policy_type == 'Custom' else DEFAULT_POLICY}{entry.resource}": {
            "actions": sorted(entry.actions or []),
            "sourceIps": sorted(entry.source_ips or []),
            "decision": entry.decision,
        }
        for policy in acl.policies or []
        for entry in policy.entries or []
    }
