"""The command messageReplay: send the messages of a time range again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.resend.searching import search
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.resend_command import (
    BROKER_NAME,
    FROM,
    ID,
    KEY,
    SENDING,
    TAG,
    TO,
    selection_of,
    send_found,
    sending_ends_at,
)
from triomq.client.mqadmin.core.result import Result

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def replay(admin: Admin, options: Values) -> Result:
    topic, ends_at = options.text("topic"), sending_ends_at(options)
    found = await search(admin, topic, selection_of(options), options.maybe_text("brokerName"))
    target = options.maybe_text("to-topic")
    return await send_found(admin, options, found, {"topic": topic}, ends_at=ends_at, topic=target)


COMMANDS = (
    AdminCommand(
        "messageReplay",
        replay,
        effect=Effect.SENDS,
        copies="a copy of each of these messages, to all groups of its topic",
    ).with_options(
        TOPIC,
        attrs.evolve(FROM, required=True),
        TO,
        KEY,
        TAG,
        ID,
        BROKER_NAME,
        Option(
            "--to-topic TOPIC",
            "where the copies go (default: the same topic; for retries and dead letters the"
            " topic that they were sent to first)",
        ),
        *SENDING,
    ),
)
