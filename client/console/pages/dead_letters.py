"""Dead letters of a group: browse, filter, send again one or many, export."""

from __future__ import annotations

import json
from collections import Counter

import trio
from starlette.responses import Response

from triomq.client.admin.explain.resent_copies import sent_again_ms
from triomq.client.admin.message_preview import body_of, preview
from triomq.client.admin.resend.message_copy import origin_topic
from triomq.client.admin.times import now_ms
from triomq.client.console.core import reading
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.paging import page_of
from triomq.client.console.core.sending import send_again
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import RouteNotFound, TrioMQError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message_document import message_document
from triomq.remoting.protocol.message_properties import FAILURE
from triomq.remoting.protocol.names import DLQ_PREFIX
from triomq.remoting.protocol.record import StoredMessage

DAY_MS = 24 * 3_600_000
READ_MAX = 2000
RESENT_MAX = 100
"""dead letters that one form sends again"""
EMPTY = reading.FoundMessages(messages=[], more=False, problems=[])


async def _found(visit: PageVisit, fields: FormFields) -> reading.FoundMessages:
    """Return the dead letters that group, time and text choose."""
    group = fields.needed("group")
    end = fields.moment_ms("end", now_ms())
    begin = fields.moment_ms("begin", end - 7 * DAY_MS)
    try:
        found = await reading.in_time(
            visit.console.admin,
            DLQ_PREFIX + group,
            begin,
            end,
            count=READ_MAX,
            per_queue=READ_MAX // 2,
        )
    except RouteNotFound:
        return EMPTY
    wanted = fields.text("search").encode()
    if not wanted:
        return found
    return reading.FoundMessages(
        messages=[
            (broker, message)
            for broker, message in found.messages
            if wanted in body_of(message)
            or wanted.decode() in (message.message_id, message.tag, *message.keys)
        ],
        more=found.more,
        problems=found.problems,
    )


async def dead_letters(visit: PageVisit) -> Response:
    query, group = visit.query, visit.asked.text("group")
    groups = sorted(
        row.name.removeprefix(DLQ_PREFIX)
        for row in visit.console.poller.view.topics.values()
        if row.kind == "dead"
    )
    found = table = again = None
    if group and (visit.refusal is None or visit.form.text("group")):
        found = await _found(visit, visit.asked)
        table = page_of(found.messages, query.text("page"))
        again = await sent_again_ms(
            visit.console.admin, group, [message for _, message in table.rows]
        )
    else:
        await trio.lowlevel.checkpoint()
    return visit.page(
        "dead_letters.html",
        group=group,
        groups=groups,
        found=found,
        table=table,
        begin=query.text("begin"),
        end=query.text("end"),
        search=query.text("search"),
        preview=preview,
        origin_topic=origin_topic,
        failure=FAILURE,
        again=again,
    )


async def export(visit: PageVisit) -> Response:
    """Return the chosen dead letters as lines of JSON, in mqadmin's form."""
    found = await _found(visit, visit.query)
    lines = [
        json.dumps({"brokerName": broker, **message_document(message)}, ensure_ascii=False)
        for broker, message in found.messages
    ]
    name = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_"
        for letter in visit.query.needed("group")
    )
    return Response(
        "".join(f"{line}\n" for line in lines),
        media_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="dead-letters-{name}.jsonl"'},
    )


async def resend(visit: PageVisit) -> Response:
    """Send the marked dead letters again: to the group only, or to their topic."""
    form = visit.form
    group, marked = form.needed("group"), form.all("message")
    if not marked:
        raise FormInvalid("dead.none_marked")
    if len(marked) > RESENT_MAX:
        raise FormInvalid("dead.too_many", count=RESENT_MAX)
    only_group = form.text("to") != "topic"
    counts: Counter[str] = Counter()
    problems: list[str] = []

    async def resend_marked(mark: str) -> None:
        place, message = await _marked(visit, group, mark)
        topic = origin_topic(message)
        if topic is None:
            problems.append(visit.text("dead.no_origin", place=place))
            return
        try:
            await send_again(visit.console, message, topic, group if only_group else "")
            counts[topic] += 1
        except TrioMQError as error:
            problems.append(f"{place}: {error}")

    async def do() -> None:
        for mark in marked:  # one after the other: the order of the messages stays
            await resend_marked(mark)
        if problems:
            raise FormInvalid("dead.failed", problems="; ".join(problems[:5]))

    after: dict[str, object] = {"messages": list(marked), "onlyGroup": only_group}
    await visit.change("dead_letters.resend", group, do, after=after)
    visit.done("dead.resent", count=sum(counts.values()), group=group)
    return visit.go("/dead-letters", group=group)


async def _marked(visit: PageVisit, group: str, mark: str) -> tuple[str, StoredMessage]:
    """Return the dead letter that ``broker:queue:offset`` names."""
    broker, _, rest = mark.rpartition(":")[0].rpartition(":")
    queue_id, offset = rest, mark.rpartition(":")[2]
    if not (queue_id.isdigit() and offset.isdigit() and len(mark) < 300):
        raise FormInvalid("dead.bad_mark")
    queue = MessageQueue(DLQ_PREFIX + group, broker, int(queue_id))
    message = await reading.at_offset(visit.console.admin, queue, int(offset))
    if message is None:
        raise FormInvalid("dead.gone", place=mark)
    return mark, message


PAGES = (
    Page("GET", "/dead-letters", dead_letters, form=dead_letters),
    Page("GET", "/dead-letters/export", export),
    Page("POST", "/dead-letters/resend", resend, UserRole.OPERATOR, change=True, form=dead_letters),
)
