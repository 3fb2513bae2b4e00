"""The command brokerDisk: what fills the disk of a broker, and when it is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.disk_use import DiskUse, disk_use
from triomq.client.admin.documents import members_of
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.places import MASTERS, beside_missing, chosen_brokers
from triomq.client.mqadmin.core.result import (
    Columns,
    Document,
    Result,
    Row,
    Table,
    answered,
    table_of,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
TOPICS = 10


async def broker_disk(admin: Admin, options: Values) -> Result:
    addresses = await chosen_brokers(admin, options)
    top = options.number("top")
    answers = await beside_missing(
        admin,
        options,
        await admin.for_each(addresses, lambda address: disk_use(admin, address, top)),
    )
    uses = {address: answers.some()[address] for address in addresses if address in answers.values}
    blocks = [block for address, use in uses.items() for block in use_blocks(address, use)]
    return answered(answers, {"brokers": {at: document(use) for at, use in uses.items()}}, blocks)


def document(use: DiskUse) -> Document:
    return {
        "usedRatio": use.used_ratio,
        "totalBytes": use.total,
        "logBytes": use.log,
        "hourBytes": use.hour,
        "dayBytes": use.day,
        "fileReservedTime": use.kept_hours,
        "neededBytes": use.needed,
        "thresholds": [
            members_of(each, "setting", "effect", "ratio", "hoursAtHourRate", "hoursAtDayRate")
            for each in use.thresholds
        ],
        "topics": [
            {"topic": t.topic, "hourBytes": t.hour, "dayBytes": t.day, "heldBytes": t.held}
            for t in use.topics
        ],
        "topicCount": use.topic_count,
    }


def use_blocks(address: str, use: DiskUse) -> list[Table | str]:
    rows = document(use)
    hours = (">At hour's rate", "hoursAtHourRate"), (">At day's rate", "hoursAtDayRate")
    head = (
        f"{address}: {use.used_ratio:.1%} of {size(use.total)} used, {size(use.log)} by the log;"
        f" stored {size(use.hour)} in the last hour, {size(use.day)} a day\n"
        f"files are kept for {use.kept_hours} h: the log needs {size(use.needed)} at the day's rate"
    )
    reached: Columns = {
        "Threshold": "setting",
        ">At": lambda row: f"{row['ratio']:.0%}",
        "Above it": "effect",
        **{title: duration_of(key) for title, key in hours},
    }
    topics: Columns = {
        "Topic": "topic",
        ">Last hour": size_of("hourBytes"),
        ">Last day": size_of("dayBytes"),
        ">Held": size_of("heldBytes"),
    }
    return [
        head,
        table_of(rows["thresholds"], reached, ("Above it",)),
        table_of(rows["topics"], topics),
    ]


def size(count: int | None) -> str:
    """Return bytes in the largest unit of which there is one; an unknown number as ``?``."""
    if count is None:
        return "?"
    value, position = float(count), 0
    while value >= 1024 and position < len(UNITS) - 1:
        value, position = value / 1024, position + 1
    return f"{value:.1f} {UNITS[position]}" if position else f"{count} B"


def size_of(key: str) -> Callable[[Row], str]:
    return lambda row: size(row[key])


def duration_of(key: str) -> Callable[[Row], str]:
    """Return the cell of a time until a threshold: now, in hours, or in days."""

    def cell(row: Row) -> str:
        hours = row[key]
        if hours is None:
            return "never"
        if hours == 0:
            return "reached"
        return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"

    return cell


COMMANDS = (
    AdminCommand("brokerDisk", broker_disk).with_options(
        *MASTERS, Option("--top N", "show the N topics that store most", whole(1), default=TOPICS)
    ),
)
