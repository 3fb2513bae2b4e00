"""Messages: find them, read them, see what happened to them, send them again."""

from __future__ import annotations

import trio
from starlette.responses import Response

from triomq.client.admin.errors import TraceTopicMissing
from triomq.client.admin.message_preview import body_of, preview
from triomq.client.admin.messages import TOOLS_GROUP
from triomq.client.admin.resend.message_copy import origin_topic
from triomq.client.admin.times import now_ms
from triomq.client.console.core import reading
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.message_text import FORMS, ShownBody, show_body
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.sending import send_again
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage

SHOWN_MAX = 200
HOUR_MS = 3_600_000
OFFSET_MAX = 2**63 - 1


async def messages(visit: PageVisit) -> Response:
    """Search by id, key or time."""
    query, admin = visit.query, visit.console.admin
    topic, by = query.text("topic"), query.text("by") or "time"
    timed = by == "time" and visit.refusal is None
    found: reading.FoundMessages | None = None
    end = query.moment_ms("end", now_ms()) if timed else now_ms()
    begin = query.moment_ms("begin", end - HOUR_MS) if timed else end - HOUR_MS
    if topic and visit.refusal is None:
        if by == "id" and query.text("id"):
            found = await reading.with_id(admin, topic, query.text("id"))
        elif by == "key" and query.text("key"):
            found = await reading.with_key(admin, topic, query.text("key"))
        elif timed:
            if begin > end:
                raise FormInvalid("messages.order")
            found = await reading.in_time(admin, topic, begin, end, count=SHOWN_MAX)
        else:
            await trio.lowlevel.checkpoint()
    else:
        await trio.lowlevel.checkpoint()
    return visit.page(
        "messages.html",
        topic=topic,
        by=by,
        id=query.text("id"),
        key=query.text("key"),
        begin=query.text("begin"),
        end=query.text("end"),
        found=found,
        preview=preview,
    )


async def chosen_message(visit: PageVisit, fields: FormFields) -> tuple[str, StoredMessage]:
    """Return broker name and message that an address or form names.

    It is named by queue and offset, or by id. Raises: FormInvalid if there is none.
    """
    topic, admin = fields.needed("topic"), visit.console.admin
    if fields.text("broker"):
        queue = MessageQueue(topic, fields.text("broker"), fields.whole("queue", 0, 65_535))
        message = await reading.at_offset(admin, queue, fields.whole("offset", 0, OFFSET_MAX))
        if message is not None:
            return queue.broker_name, message
    elif fields.text("id"):
        for pair in (await reading.with_id(admin, topic, fields.text("id"))).messages:
            return pair
    raise FormInvalid("messages.none", topic=topic[:100])


async def message(visit: PageVisit) -> Response:
    """Show one message with its trace, and which groups are past it."""
    broker, found = await chosen_message(visit, visit.asked)
    trace: object = None
    groups: dict[str, bool | None] | None = None
    problems: list[str] = []
    traced = True

    async def read_trace() -> None:
        nonlocal trace, traced
        try:
            history = await visit.console.admin.message_trace(found.message_id)
            trace = history.events
            problems.extend(f"{name}: {why}" for name, why in history.answers.reasons().items())
        except TraceTopicMissing:
            traced = False
        except TrioMQError as error:
            problems.append(str(error))

    async def read_groups() -> None:
        nonlocal groups
        try:
            groups = await _passed(visit, broker, found)
        except TrioMQError as error:
            problems.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_trace)
        nursery.start_soon(read_groups)
    return visit.page(
        "message.html",
        broker=broker,
        message=found,
        body=await trio.to_thread.run_sync(_shown, found, visit.query.text("form")),
        forms=FORMS,
        origin=origin_topic(found),
        trace=trace,
        traced=traced,
        groups=groups,
        problems=problems,
    )


async def _passed(visit: PageVisit, broker: str, found: StoredMessage) -> dict[str, bool | None]:
    """Return each group of the topic with whether it is past the message; None if unknown."""
    admin = visit.console.admin
    queue = MessageQueue(found.topic, broker, found.queue_id)
    answered = (await admin.topic_groups_by_broker(found.topic)).values
    names = [name for name in answered.get(broker, []) if name != TOOLS_GROUP]

    async def group_passed(group: str) -> bool | None:
        stats = (await admin.consume_stats(group, found.topic)).values.get(broker)
        offset = stats.offset_table.get(queue) if stats is not None else None
        return None if offset is None else offset.consumer_offset > found.queue_offset

    answers = await admin.for_each(names[:50], group_passed)
    return {name: answers.values.get(name) for name in names[:50]}


async def resend(visit: PageVisit) -> Response:
    """Send a copy to the topic, or only to one group of it."""
    form = visit.form
    _, found = await chosen_message(visit, form)
    group = form.text("group")
    topic = origin_topic(found) or found.topic
    await visit.change(
        "message.resend",
        found.message_id,
        lambda: send_again(visit.console, found, topic, group),
        after={"topic": topic, "group": group or None},
    )
    visit.done("messages.resent", id=found.message_id, target=group or topic)
    return visit.go("/messages", topic=topic, by="id", id=found.message_id)


PAGES = (
    Page("GET", "/messages", messages, form=messages),
    Page("GET", "/message", message),
    Page("POST", "/message/resend", resend, UserRole.OPERATOR, change=True, form=message),
)


def _shown(message: StoredMessage, form: str) -> ShownBody:
    """Run in a thread: a body that is compressed well takes some milliseconds."""
    return show_body(body_of(message), form)
