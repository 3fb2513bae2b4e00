"""Commands that take a file of settings, and the one that looks into an index: updateTopicList, updateSubGroupList, queryCq."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, filled, whole
from triomq.client.admin.calls import read_body
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.errors import SettingsError
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupList
from triomq.remoting.protocol.bodies.offsets import ConsumeQueueEntries
from triomq.remoting.protocol.bodies.topics import TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import QueryConsumeQueueHeader

BROKERS = (
    Option("b", "brokerAddr", "at one broker, host:port", filled, placeholder="ADDRESS"),
    Option("c", "clusterName", "at all masters of a cluster", filled, placeholder="NAME"),
)


def read_list(options: Values) -> list[Any]:
    """The JSON list of a file; `SettingsError` if it is none."""
    path = Path(options.text("filename"))
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}; name a file of settings") from None
    except ValueError as error:
        raise SettingsError(f"{path} is no JSON: {error}; write a list of settings, [{{…}}, …]") from None
    if not isinstance(found, list):
        raise SettingsError(f"{path} holds no list; write [{{…}}, …]")
    return found


async def tell(admin: Admin, options: Values, code: RequestCode, body: bytes, names: list[str]) -> Result:
    """Send the list to the brokers that are meant."""
    address = options.maybe_text("brokerAddr")
    addresses = [address] if address is not None else [broker.address for broker in await admin.brokers(options.text("clusterName"), masters_only=True)]
    answers = await admin.for_each(addresses, lambda target: admin.ask(target, code, body=body))
    answers.some()
    return Result(
        document={"names": names, "brokers": sorted(answers.values), "failures": answers.reasons()},
        blocks=[f"{len(names)} settings are in effect at {target}" for target in answers.values],
        failures=answers.reasons(),
        asked=answers.asked,
    )


async def update_topics(admin: Admin, options: Values) -> Result:
    """Create or replace many topics."""
    try:
        configs = TopicConfigList.decode(json.dumps({"topicConfigList": read_list(options)}).encode())
    except RemotingError as error:
        raise SettingsError(f"{options.text('filename')} holds no list of topics: {error}") from None
    names = [config.topic_name for config in configs.topic_config_list]
    return await tell(admin, options, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, configs.encode(), names)


async def update_groups(admin: Admin, options: Values) -> Result:
    """Create or replace many consumer groups."""
    try:
        configs = SubscriptionGroupList.decode(json.dumps({"groupConfigList": read_list(options)}).encode())
    except RemotingError as error:
        raise SettingsError(f"{options.text('filename')} holds no list of groups: {error}") from None
    names = [config.group_name for config in configs.group_config_list]
    return await tell(admin, options, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, configs.encode(), names)


async def query_cq(admin: Admin, options: Values) -> Result:
    """Print entries of a queue's index."""
    topic, queue_id = options.text("topic"), options.number("queue")
    header = QueryConsumeQueueHeader(topic, queue_id, options.number("index"), options.number("count"), options.maybe_text("consumer"))
    address = options.maybe_text("broker")
    addresses = {name: known for name, known in (await admin.topic_brokers(topic)).items() if address in (None, known)} or {str(address): str(address)}
    answers = await admin.for_each(addresses.values(), lambda target: admin.ask(target, RequestCode.QUERY_CONSUME_QUEUE, header))
    pages = {target: read_body(ConsumeQueueEntries, answer) for target, answer in answers.some().items()}
    document = {
        target: {
            "minIndex": page.min_queue_index,
            "maxIndex": page.max_queue_index,
            "entries": [
                {"index": header.index + number, "commitLogOffset": entry.log_offset, "size": entry.size_bytes, "tagsCode": entry.tags_code, "matches": entry.matches}
                for number, entry in enumerate(page.entries)
            ],
        }
        for target, page in pages.items()
    }
    columns = tuple(Column(title, right=True) for title in ("Index", "CommitLog Offset", "Size", "Tags Code"))
    blocks: list[Table | str] = []
    for target, page in document.items():
        blocks.append(f"{target}: min {page['minIndex']}, max {page['maxIndex']}")
        blocks.append(Table((*columns, Column("Matches")), [[str(value).lower() for value in row.values()] for row in page["entries"]]))  # type: ignore[attr-defined]
    return Result(document={"topic": topic, "queueId": queue_id, "brokers": document, "failures": answers.reasons()}, blocks=blocks, failures=answers.reasons(), asked=answers.asked)


LIST_DOCUMENT = '{"names": [name], "brokers": [address], "failures": {address: reason}}'

COMMANDS = (
    Command(
        name="updateTopicList",
        group="topic",
        summary="create or replace many topics out of a file",
        run=update_topics,
        options=(*BROKERS, Option("f", "filename", "a JSON list of topic settings", filled, required=True, placeholder="FILE")),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("updateTopicList -c DefaultCluster -f topics.json",),
        document=LIST_DOCUMENT,
        remarks=("Our brokers take all topics of the list, or none of them.",),
    ),
    Command(
        name="updateSubGroupList",
        group="consumer",
        summary="create or replace many consumer groups out of a file",
        run=update_groups,
        options=(*BROKERS, Option("f", "filename", "a JSON list of group settings", filled, required=True, placeholder="FILE")),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("updateSubGroupList -c DefaultCluster -f groups.json",),
        document=LIST_DOCUMENT,
    ),
    Command(
        name="queryCq",
        group="message",
        summary="print entries of a queue's index as they lie at the broker",
        run=query_cq,
        options=(
            TOPIC,
            Option("q", "queue", "the queue", whole(0), required=True, placeholder="ID"),
            Option("i", "index", "the first entry", whole(0), required=True, placeholder="OFFSET"),
            Option("c", "count", "how many", whole(1, 1024), default=10, placeholder="N"),
            Option("b", "broker", "only this broker, host:port", filled, placeholder="ADDRESS"),
            Option("g", "consumer", "show what the subscription of this group lets through", filled, placeholder="GROUP"),
        ),
        examples=("queryCq -t orders -q 0 -i 100 -g billing",),
        document='{"topic", "queueId", "brokers": {address: {"minIndex", "maxIndex", "entries": [{"index", "commitLogOffset", "size", "tagsCode", "matches"}]}}, '
        '"failures": {address: reason}}',
    ),
)
