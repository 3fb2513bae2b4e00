"""Commands that send a file of settings, and the command that prints a queue's index.

updateTopicList, updateSubGroupList, queryCq.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, ask_each, chosen_brokers
from triomq.client.mqadmin.core.result import Document, Result, Table, answered
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupList
from triomq.remoting.protocol.bodies.offsets import ConsumeQueueEntries
from triomq.remoting.protocol.bodies.topics import TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import QueryConsumeQueueHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.bodies.schema import JsonBody

B = TypeVar("B", bound="JsonBody")


def read_list(options: Values, kind: type[B], member: str, what: str) -> B:
    """Return the body with the JSON list of a file.

    Raises: SettingsError.
    """
    path = Path(options.text("filename"))
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror or error}; name a file of settings"
        ) from None
    except ValueError as error:
        raise SettingsError(
            f"{path} is not JSON: {error}; write a list of settings, [{{…}}, …]"
        ) from None
    if not isinstance(found, list):
        raise SettingsError(f"{path} is not a list; write [{{…}}, …]")
    try:
        return kind.decode(json.dumps({member: found}).encode())
    except RemotingError as error:
        raise SettingsError(f"{path} is not a list of {what}: {error}") from None


async def send_list(
    admin: Admin, options: Values, code: RequestCode, body: bytes, names: list[str]
) -> Result:
    """Send a list to the brokers that the options name."""
    addresses = await chosen_brokers(admin, options)
    answers = await ask_each(admin, addresses, code, body=body)
    return answered(
        answers,
        {"names": names, "brokers": sorted(answers.values)},
        [f"{len(names)} settings are in effect at {target}" for target in answers.values],
    )


async def update_topics(admin: Admin, options: Values) -> Result:
    topics = read_list(options, TopicConfigList, "topicConfigList", "topics")
    names = [config.topic_name for config in topics.topic_config_list]
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    return await send_list(admin, options, code, topics.encode(), names)


async def update_groups(admin: Admin, options: Values) -> Result:
    groups = read_list(options, SubscriptionGroupList, "groupConfigList", "groups")
    names = [config.group_name for config in groups.group_config_list]
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    return await send_list(admin, options, code, groups.encode(), names)


async def query_cq(admin: Admin, options: Values) -> Result:
    topic, queue_id = options.text("topic"), options.number("queue")
    header = QueryConsumeQueueHeader(
        topic,
        queue_id,
        options.number("index"),
        options.number("count"),
        options.maybe_text("consumer"),
    )
    address = options.maybe_text("broker")
    addresses = {
        name: known
        for name, known in (await admin.topic_brokers(topic)).items()
        if address in (None, known)
    } or {str(address): str(address)}
    answers = await ask_each(admin, addresses.values(), RequestCode.QUERY_CONSUME_QUEUE, header)
    pages = {
        target: read_body(ConsumeQueueEntries, answer) for target, answer in answers.values.items()
    }
    document: dict[str, Document] = {
        target: {
            "minIndex": page.min_queue_index,
            "maxIndex": page.max_queue_index,
            "entries": [
                {
                    "index": header.index + number,
                    "commitLogOffset": entry.log_offset,
                    "size": entry.size_bytes,
                    "tagsCode": entry.tags_code,
                    "matches": entry.matches,
                }
                for number, entry in enumerate(page.entries)
            ],
        }
        for target, page in pages.items()
    }
    columns = (">Index", ">CommitLog Offset", ">Size", ">Tags Code", "Matches")
    blocks: list[Table | str] = []
    for target, page in document.items():
        blocks.append(f"{target}: min {page['minIndex']}, max {page['maxIndex']}")
        entries = [[str(value).lower() for value in row.values()] for row in page["entries"]]
        blocks.append(Table(columns, entries))
    return answered(answers, {"topic": topic, "queueId": queue_id, "brokers": document}, blocks)


COMMANDS = (
    AdminCommand("updateTopicList", update_topics, effect=Effect.CHANGES).with_options(
        *MASTERS, Option("-f, --filename FILE", "a JSON list of topic settings", required=True)
    ),
    AdminCommand("updateSubGroupList", update_groups, effect=Effect.CHANGES).with_options(
        *MASTERS, Option("-f, --filename FILE", "a JSON list of group settings", required=True)
    ),
    AdminCommand("queryCq", query_cq).with_options(
        TOPIC,
        Option("-q, --queue ID", "the queue", whole(0), required=True),
        Option("-i, --index OFFSET", "the first entry", whole(0), required=True),
        Option("-c, --count N", "number of entries", whole(1, 1024), default=10),
        Option("-b, --broker ADDRESS", "only this broker, host:port"),
        Option("-g, --consumer GROUP", "show whether entries match the subscription of this group"),
    ),
)
