"""The command topicTail: show the messages of a topic as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.documents import broker_message_document
from triomq.client.admin.message_preview import preview
from triomq.client.admin.resend.selection import MessageSelection
from triomq.client.admin.times import instant_ms, milliseconds_text, now_ms
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.exit_codes import EXIT_OK, EXIT_PARTIAL
from triomq.client.mqadmin.core.resend_command import KEY, TAG
from triomq.client.mqadmin.core.result import Lines

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.record import StoredMessage


async def tail(admin: Admin, options: Values, show: Callable[[Lines], None]) -> int:
    from triomq.client.admin.tail.topic_tail import TopicTail  # not for the help: start-up time

    as_json = options.flag("json")

    def show_message(broker: str, message: StoredMessage) -> None:
        if as_json:
            show(Lines(documents=[broker_message_document(message, broker)]))
        else:
            show(Lines(texts=[message_line(broker, message)]))

    def say(line: str) -> None:
        show(Lines(notes=[line]) if as_json else Lines(texts=[line]))

    following = TopicTail(
        admin=admin,
        topic=options.text("topic"),
        selection=MessageSelection(
            limit=options.maybe_number("limit") or sys.maxsize,
            begin_ms=options.value("from"),
            key=options.maybe_text("key"),
            tags=options.value("tag") or frozenset(),
        ),
        sql=options.maybe_text("filter") or "",
        started_ms=now_ms(),
        step_seconds=options.number("timeout"),
        show=show_message,
        say=say,
    )
    await following.follow()
    return EXIT_PARTIAL if following.reports.failing else EXIT_OK


def message_line(broker: str, message: StoredMessage) -> str:
    """Return a message in one line; ``-`` stands for no key and no tag."""
    cells = (
        milliseconds_text(message.store_timestamp),
        f"{broker}:{message.queue_id}:{message.queue_offset}",
        message.message_id,
        ",".join(message.keys) or "-",
        message.tag or "-",
        preview(message) or "-",
    )
    return "  ".join(" ".join(cell.split()) for cell in cells)


COMMANDS = (
    AdminCommand("topicTail", follow=tail, effect=Effect.FOLLOWS).with_options(
        Option("TOPIC", "name of the topic", required=True),
        Option(
            "--from TIME",
            "begin with messages stored then or later, for instance -1h (without it: with new"
            " messages)",
            instant_ms,
        ),
        TAG,
        KEY,
        Option(
            "--filter SQL",
            "only messages whose properties fulfil this condition, for instance 'price > 10';"
            " brokers need enablePropertyFilter=true",
        ),
        Option("--limit N", "end after this number of messages", whole(1)),
    ),
)
