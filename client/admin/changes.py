"""What a request that ``--dry-run`` held back would change: the values before and after it.

The values before are read from the server that the request is for. A request without a reader here
is shown with its own fields. Passwords and keys are never shown.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from trio import lowlevel

from triomq.client.admin.answers import read_body, read_header
from triomq.client.admin.documents import group_document, members_of, topic_document
from triomq.client.admin.group_resets import END_OF_QUEUE
from triomq.client.admin.topics import altered
from triomq.client.core.errors import BrokerError, GroupNotFound, RequestNotSupported, TopicNotFound
from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.offsets import ConsumeStats, TopicStats
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.admin import ConsumeStatsHeader
from triomq.remoting.protocol.headers.auth import AclHeader, DeleteAclHeader, UserHeader
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
)
from triomq.remoting.protocol.headers.registration import (
    GetKvConfigResponseHeader,
    KvConfigHeader,
    PutKvConfigHeader,
)
from triomq.remoting.protocol.headers.topic import (
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteTopicHeader,
    TopicHeader,
)
from triomq.remoting.protocol.message_properties import KEYS, TAGS, UNIQ_KEY
from triomq.remoting.protocol.message_properties import parse_properties as parse_message_properties

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.unsent import UnsentRequest
    from triomq.remoting.protocol.headers.send import SendMessageHeader

Object = Mapping[str, Any]
H = TypeVar("H")
SECRET_WORDS = ("password", "secret", "credential")
"""parts of the names of values that are not shown"""
HIDDEN = "(hidden)"


@attrs.frozen(kw_only=True)
class Change:
    """One object at one server, before and after a request; None: it is not there."""

    server: str
    request: str
    """name of the request's code"""
    subject: str
    before: Object | None
    after: Object | None
    known: bool = True
    """False: the present values cannot be asked for, and ``after`` is the request itself"""

    @property
    def document(self) -> dict[str, object]:
        return members_of(self, "server", "request", "subject", "before", "after")

    @property
    def lines(self) -> list[str]:
        """Return a heading, and a line for each value that goes and each that comes."""
        old, new = self.before or {}, self.after or {}
        if not self.known:
            heading = f"{self.server}: would send {self.request}"
            return [heading, *(f"    {key} = {_text(value)}" for key, value in new.items())]
        kind = " (new)" if self.before is None else " (deleted)" if self.after is None else ""
        lines = [f"{self.server}: {self.subject}{kind}"]
        for key in dict.fromkeys([*old, *new]):
            if key in old and key in new and old[key] == new[key]:
                continue
            lines += [f"  - {key} = {_text(old[key])}"] if key in old else []
            lines += [f"  + {key} = {_text(new[key])}"] if key in new else []
        return lines if len(lines) > 1 or kind else [f"{lines[0]}: no change"]


async def changes_of(admin: Admin, held: UnsentRequest) -> list[Change]:
    """Return what a request would change, one entry for each object.

    Raises: TrioMQError if the server cannot be asked for the values before.
    """
    reader = READERS.get(held.code)
    return await reader(admin, held) if reader is not None else [_as_sent(held)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _change(
    held: UnsentRequest, subject: str, before: Object | None, after: Object | None
) -> Change:
    return Change(
        server=held.address,
        request=held.code.name,
        subject=subject,
        before=None if before is None else _without_secrets(before),
        after=None if after is None else _without_secrets(after, before),
    )


def _without_secrets(values: Object, before: Object | None = None) -> dict[str, object]:
    """Hide secrets; one that changes stays different from the one before."""
    return {
        key: value
        if value is None or not any(word in key.lower() for word in SECRET_WORDS)
        else HIDDEN
        if before is None or before.get(key) == value
        else f"{HIDDEN[:-1]}, new)"
        for key, value in values.items()
    }


def _as_sent(held: UnsentRequest) -> Change:
    fields: dict[str, object] = dict(request(held.code, held.header).ext or {})
    if held.body:
        try:
            body = json.loads(held.body)
        except ValueError:
            body = None
        fields |= body if isinstance(body, dict) else {"body": f"{len(held.body)} bytes"}
    change = _change(held, held.code.name, None, fields)
    return attrs.evolve(change, known=False)


# --- topics and groups


async def _topic(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("CreateTopicHeader", held.header)
    old = await admin.topic_config(header.topic, held.address)
    new = TopicConfig(
        topic_name=header.topic,
        read_queue_count=header.read_queue_count,
        write_queue_count=header.write_queue_count,
        perm=header.perm,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=altered(old.attributes if old is not None else {}, header.attributes or ""),
    )
    before = None if old is None else topic_document(old)
    return [_change(held, f"topic {header.topic}", before, topic_document(new))]


async def _topics(admin: Admin, held: UnsentRequest) -> list[Change]:
    changes = []
    for new in TopicConfigList.decode(held.body).topic_config_list:
        old = await admin.topic_config(new.topic_name, held.address)
        before = None if old is None else topic_document(old)
        changes.append(_change(held, f"topic {new.topic_name}", before, topic_document(new)))
    return changes


async def _deleted_topic(admin: Admin, held: UnsentRequest) -> list[Change]:
    topic = cast("DeleteTopicHeader", held.header).topic
    old = await admin.topic_config(topic, held.address)
    if old is None:
        return []
    before = {**topic_document(old), "messages": await _messages_of(admin, topic, held.address)}
    return [_change(held, f"topic {topic}", before, None)]


async def _messages_of(admin: Admin, topic: str, address: str) -> int:
    """Return how many messages lie in a topic's queues at one broker."""
    answer = await admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))
    return read_body(TopicStats, answer).message_count


async def _sent(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("SendMessageHeader", held.header)
    properties = parse_message_properties(header.properties or "")
    await lowlevel.checkpoint()
    after = {
        "topic": header.topic,
        "queueId": header.queue_id,
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "bodyBytes": len(held.body),
    }
    return [_change(held, f"copy of message {properties.get(UNIQ_KEY, '')}", None, after)]


async def _group_change(
    admin: Admin, held: UnsentRequest, name: str, new: SubscriptionGroupConfig | None
) -> Change:
    old = await admin.group_config(name, held.address)
    before = None if old is None else group_document(old)
    return _change(held, f"group {name}", before, None if new is None else group_document(new))


async def _group(admin: Admin, held: UnsentRequest) -> list[Change]:
    new = SubscriptionGroupConfig.decode(held.body)
    change = await _group_change(admin, held, new.group_name, new)
    if new.attributes:
        # A request has changes of attributes only: ``+key`` and ``-key``.
        change = attrs.evolve(change, after={**(change.after or {}), **new.attributes})
    return [change]


async def _groups(admin: Admin, held: UnsentRequest) -> list[Change]:
    configs = SubscriptionGroupList.decode(held.body).group_config_list
    return [await _group_change(admin, held, new.group_name, new) for new in configs]


async def _deleted_group(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("DeleteGroupHeader", held.header)
    changes = [await _group_change(admin, held, header.group, None)]
    if header.clean_offset:
        offsets = await _offsets(admin, held.address, header.group, None)
        changes.append(_change(held, f"offsets of group {header.group}", offsets, None))
    return [change for change in changes if change.before is not None]


# --- offsets


async def _offsets(
    admin: Admin, address: str, group: str, topic: str | None
) -> dict[str, object] | None:
    """Return a group's offsets at a broker by the names of the queues; None for no such group."""
    header = ConsumeStatsHeader(group, topic)
    try:
        answer = await admin.ask(address, RequestCode.GET_CONSUME_STATS, header)
    except (GroupNotFound, TopicNotFound):
        return None
    table = read_body(ConsumeStats, answer).offset_table
    return {
        _queue_name(queue.topic, queue.queue_id): offsets.consumer_offset
        for queue, offsets in sorted(table.items())
        if offsets.consumer_offset >= 0
    }


def _queue_name(topic: str, queue_id: int) -> str:
    return f"{topic} queue {queue_id}"


async def _reset(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("ResetOffsetHeader", held.header)
    config = await admin.topic_config(header.topic, held.address)
    count = 0 if config is None else config.read_queue_count
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for queue_id in range(count) if header.queue_id < 0 else [header.queue_id]:
        name = _queue_name(header.topic, queue_id)
        asked = QueryConsumerOffsetHeader(header.group, header.topic, queue_id, False)
        with contextlib.suppress(BrokerError):  # the group has no offset there yet
            answer = await admin.ask(held.address, RequestCode.QUERY_CONSUMER_OFFSET, asked)
            before[name] = read_header(OffsetResponseHeader, answer).offset
        after[name] = await _reset_target(admin, held.address, header, queue_id)
    subject = f"offsets of group {header.group} in topic {header.topic}"
    return [_change(held, subject, before or None, after)]


async def _reset_target(
    admin: Admin, address: str, header: ResetOffsetHeader, queue_id: int
) -> int:
    if header.offset is not None:
        return header.offset
    if header.timestamp == END_OF_QUEUE:
        code, position = RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(header.topic, queue_id)
        answer = await admin.ask(address, code, position)
    else:
        search = SearchOffsetHeader(header.topic, queue_id, header.timestamp)
        answer = await admin.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    return read_header(OffsetResponseHeader, answer).offset


async def _cloned(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("CloneGroupOffsetHeader", held.header)
    before = await _offsets(admin, held.address, header.target_group, header.topic)
    source = await _offsets(admin, held.address, header.source_group, header.topic)
    subject = f"offsets of group {header.target_group} in topic {header.topic}"
    return [_change(held, subject, before, {**(before or {}), **(source or {})})]


# --- settings of servers


def _settings(reading: RequestCode) -> Reader:
    async def changed_settings(admin: Admin, held: UnsentRequest) -> list[Change]:
        answer = await admin.ask(held.address, reading)
        present = parse_properties(bytes(answer.body).decode(errors="replace"))
        new = parse_properties(held.body.decode())
        before = {key: present[key] for key in new if key in present}
        return [_change(held, "settings", before, new)]

    return changed_settings


async def _kv(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("PutKvConfigHeader | KvConfigHeader", held.header)
    before = None
    try:
        asked = KvConfigHeader(header.namespace, header.key)
        answer = await admin.ask(held.address, RequestCode.GET_KV_CONFIG, asked)
        before = {header.key: read_header(GetKvConfigResponseHeader, answer).value}
    except BrokerError:
        pass  # the name server's answer when there is no such value
    after = {header.key: header.value} if isinstance(header, PutKvConfigHeader) else None
    if before is None and after is None:
        return []
    return [_change(held, f"namespace {header.namespace}", before, after)]


# --- users and rules


async def _present(
    admin: Admin, held: UnsentRequest, code: RequestCode, header: object
) -> dict[str, object] | None:
    """Return what a broker has of a user; None if it refuses: it does not know the user."""
    try:
        answer = await admin.ask(held.address, code, header)
    except RequestNotSupported:
        raise
    except BrokerError:
        return None
    return cast("dict[str, object] | None", json.loads(bytes(answer.body) or b"null"))


async def _user(admin: Admin, held: UnsentRequest) -> list[Change]:
    header = cast("UserHeader", held.header)
    before = await _present(admin, held, RequestCode.AUTH_GET_USER, header)
    if held.code == RequestCode.AUTH_DELETE_USER:
        return [] if before is None else [_change(held, f"user {header.username}", before, None)]
    new = {key: value for key, value in _plain(User, held.body).items() if value is not None}
    return [_change(held, f"user {header.username}", before, {**(before or {}), **new})]


async def _acl(admin: Admin, held: UnsentRequest) -> list[Change]:
    subject = cast("AclHeader | DeleteAclHeader", held.header).subject
    before = _rules(await _present(admin, held, RequestCode.AUTH_GET_ACL, AclHeader(subject)))
    if held.code == RequestCode.AUTH_DELETE_ACL:
        resource = cast("DeleteAclHeader", held.header).resource
        left = {key: value for key, value in (before or {}).items() if resource not in (None, key)}
        return [_change(held, f"rules of {subject}", before, left or None)] if before else []
    after = {**(before or {}), **(_rules(_plain(Acl, held.body)) or {})}
    return [_change(held, f"rules of {subject}", before, after)]


def _plain(kind: type[User | Acl], body: bytes) -> dict[str, object]:
    return cast("dict[str, object]", json.loads(kind.decode(body).encode()))


def _rules(acl: Object | None) -> dict[str, object] | None:
    """Return resource → its rule."""
    if acl is None:
        return None
    return {
        str(entry.get("resource")): {
            key: value for key, value in entry.items() if key != "resource" and value is not None
        }
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    }


Reader = Callable[["Admin", "UnsentRequest"], Awaitable[list[Change]]]
READERS: Mapping[RequestCode, Reader] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: _deleted_topic,
    RequestCode.SEND_MESSAGE_V2: _sent,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _deleted_group,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _reset,
    RequestCode.CLONE_GROUP_OFFSET: _cloned,
    RequestCode.UPDATE_BROKER_CONFIG: _settings(RequestCode.GET_BROKER_CONFIG),
    RequestCode.UPDATE_NAMESRV_CONFIG: _settings(RequestCode.GET_NAMESRV_CONFIG),
    RequestCode.UPDATE_CONTROLLER_CONFIG: _settings(RequestCode.GET_CONTROLLER_CONFIG),
    RequestCode.PUT_KV_CONFIG: _kv,
    RequestCode.DELETE_KV_CONFIG: _kv,
    RequestCode.AUTH_CREATE_USER: _user,
    RequestCode.AUTH_UPDATE_USER: _user,
    RequestCode.AUTH_DELETE_USER: _user,
    RequestCode.AUTH_CREATE_ACL: _acl,
    RequestCode.AUTH_UPDATE_ACL: _acl,
    RequestCode.AUTH_DELETE_ACL: _acl,
}
