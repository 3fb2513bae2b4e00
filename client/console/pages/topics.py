"""Topics: list, create, change, delete, route, status, groups, test message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio
from starlette.responses import Response

from triomq.client.admin.answers import all_of
from triomq.client.admin.cluster_view import MESSAGE_TYPE, TopicRow
from triomq.client.admin.messages import TOOLS_GROUP
from triomq.client.console.core.forms import FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.reading import wait_readable
from triomq.client.console.core.sending import send_new
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import TrioMQError
from triomq.client.sending.encoding import TAG_LENGTH_MAX, check_tag
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.names import TOPIC_LENGTH_MAX, topic_complaint

KINDS = ("normal", "retry", "dead", "system", "all")
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
PERMS = {"6": 6, "4": 4, "2": 2, "0": 0}
QUEUES_MAX = 1024
KEYS_MAX = 64
READABLE_SECONDS = 2.0
COLUMNS: Mapping[str, Callable[[TopicRow], str | float | None]] = {
    "name": lambda row: row.name,
    "type": lambda row: row.message_type,
    "read": lambda row: row.read_queues,
    "write": lambda row: row.write_queues,
    "rate": lambda row: row.get_rate,
}
"""by which the list can be sorted"""


async def topics(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    kind = visit.query.text("kind") or "normal"
    rows = [row for row in visit.console.poller.view.topics.values() if kind in ("all", row.kind)]
    listed = visit.listed(rows, COLUMNS, lambda row: row.name)
    return visit.page("topics.html", kind=kind, kinds=KINDS, **listed)


async def topic(visit: PageVisit) -> Response:
    """Show one topic, asked of its brokers now."""
    name, admin = visit.asked.needed("name"), visit.console.admin
    route = await admin.route(name)
    addresses = {
        data.broker_name: data.broker_addrs[min(data.broker_addrs)]
        for data in route.broker_datas
        if data.broker_addrs
    }

    async def config_of(broker: str) -> TopicConfig | None:
        return await admin.topic_config(name, addresses[broker])

    parts, problems = await visit.ask(
        stats=partial(admin.topic_stats, name),
        groups=partial(admin.topic_groups_by_broker, name),
        configs=partial(admin.for_each, addresses, config_of),
    )
    row = visit.console.poller.view.topics.get(name)
    for broker in () if row is None else row.brokers:
        if broker not in addresses:
            problems.append(visit.text("topics.gone", broker=broker))
    stats, groups = parts["stats"], parts["groups"]
    queues = (
        sorted(
            (queue, offsets)
            for table in (stats.values.values() if stats is not None else ())
            for queue, offsets in table.offset_table.items()
        )
        if stats is not None
        else []
    )
    configs = parts["configs"].values if parts["configs"] is not None else {}
    return visit.page(
        "topic.html",
        name=name,
        route=route,
        queues=queues,
        stats=stats,
        groups=None
        if groups is None
        else sorted({group for some in groups.values.values() for group in some} - {TOOLS_GROUP}),
        configs={broker: config for broker, config in configs.items() if config is not None},
        problems=problems,
        perms=PERMS,
    )


async def show_create(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    return visit.page(
        "topic_create.html", types=MESSAGE_TYPES, clusters=visit.console.poller.view.clusters
    )


async def create(visit: PageVisit) -> Response:
    name, form = visit.form.needed("name"), visit.form
    if topic_complaint(name) is not None:
        raise FormInvalid("form.name", "name", most=TOPIC_LENGTH_MAX)
    if name in visit.console.poller.view.topics:
        raise FormInvalid("topics.exists", "name", name=name)
    kind = form.text("type")
    if kind not in MESSAGE_TYPES:
        raise FormInvalid("form.choose", "type")
    queues, cluster = form.whole("queues", 1, QUEUES_MAX, 8), form.needed("cluster")
    attributes = "" if kind == "NORMAL" else f"+{MESSAGE_TYPE}={kind}"
    await visit.change(
        "topic.create",
        name,
        lambda: visit.console.admin.create_topic(
            name, queues=queues, cluster=cluster, attributes=attributes
        ),
        after={"cluster": cluster, "queues": queues, "messageType": kind},
    )
    visit.done("topics.created", name=name)
    return visit.go("/topic", name=name)


def _settings(config: TopicConfig) -> dict[str, object]:
    return {
        "readQueueNums": config.read_queue_count,
        "writeQueueNums": config.write_queue_count,
        "perm": config.perm,
    }


async def update(visit: PageVisit) -> Response:
    """Change queues and permission at one broker of the topic, or at all of them."""
    form, admin = visit.form, visit.console.admin
    name, broker = form.needed("name"), form.text("broker")
    brokers = await admin.topic_brokers(name)
    chosen = {broker: brokers[broker]} if broker in brokers else brokers
    if broker and broker not in brokers:
        raise FormInvalid("topics.not_there", "broker", name=name, broker=broker[:100])
    changes: dict[str, Any] = {
        "read_queues": form.whole("read_queues", 1, QUEUES_MAX),
        "write_queues": form.whole("write_queues", 1, QUEUES_MAX),
        "perm": PERMS.get(form.text("perm")),
    }
    if changes["perm"] is None:
        raise FormInvalid("form.choose", "perm")

    async def config_of(one: str) -> TopicConfig | None:
        return await admin.topic_config(name, chosen[one])

    before = {
        one: _settings(config)
        for one, config in (await admin.for_each(chosen, config_of)).values.items()
        if config is not None
    }

    async def do() -> None:
        for address in chosen.values():
            all_of(await admin.update_topic(name, address=address, **changes))

    await visit.change(
        "topic.update",
        name,
        do,
        before=before,
        after={
            "brokers": sorted(chosen),
            "readQueueNums": changes["read_queues"],
            "writeQueueNums": changes["write_queues"],
            "perm": changes["perm"],
        },
    )
    visit.done("topics.updated", name=name)
    return visit.go("/topic", name=name)


async def delete(visit: PageVisit) -> Response:
    name = visit.confirmed()
    row = visit.console.poller.view.topics.get(name)

    async def do() -> None:
        all_of(await visit.console.admin.delete_topic(name))

    await visit.change(
        "topic.delete", name, do, before=None if row is None else {"brokers": row.brokers}
    )
    visit.done("topics.deleted", name=name)
    return visit.go("/topics")


async def send(visit: PageVisit) -> Response:
    """Send a test message."""
    form, name = visit.form, visit.form.needed("name")
    body, tag, keys = form.raw("body"), form.text("tag"), form.text("keys").split()[:KEYS_MAX]
    if not body:
        raise FormInvalid("topics.no_body", "body")
    try:
        check_tag(tag or "-")
    except TrioMQError:
        raise FormInvalid("topics.bad_tag", "tag", most=TAG_LENGTH_MAX) from None
    receipt = await visit.change(
        "message.send",
        name,
        lambda: send_new(visit.console, name, body.encode(), tag=tag or None, keys=keys),
        after={"bytes": len(body.encode()), "tag": tag, "keys": keys},
    )
    visit.done(
        "topics.sent",
        id=receipt.message_id,
        broker=receipt.queue.broker_name,
        queue=receipt.queue.queue_id,
    )
    with trio.move_on_after(READABLE_SECONDS):
        await wait_readable(visit.console.admin, receipt.queue, receipt.queue_offset)
    return visit.go(
        "/message",
        topic=name,
        broker=receipt.queue.broker_name,
        queue=str(receipt.queue.queue_id),
        offset=str(receipt.queue_offset),
    )


PAGES = (
    Page("GET", "/topics", topics),
    Page("GET", "/topic", topic),
    Page("GET", "/topics/create", show_create, role=UserRole.OPERATOR),
    Page("POST", "/topics/create", create, UserRole.OPERATOR, change=True, form=show_create),
    Page("POST", "/topic/update", update, UserRole.OPERATOR, change=True, form=topic),
    Page("POST", "/topic/delete", delete, UserRole.ADMIN, change=True, form=topic),
    Page("POST", "/topic/send", send, UserRole.OPERATOR, change=True, form=topic),
)
