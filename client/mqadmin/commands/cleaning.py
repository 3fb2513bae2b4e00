"""Commands for clean-ups: cleanExpiredCQ, deleteExpiredCommitLog, cleanUnusedTopic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.cleaning import Cleaning
from triomq.client.admin.missing_brokers import with_missing
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import NO_BROKERS
from triomq.client.mqadmin.core.result import Result, answered

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

OPTIONS = (
    Option("-b, --brokerAddr ADDRESS", "one broker, host:port"),
    Option("-c, --cluster NAME", "all brokers of a cluster (default: of all clusters)"),
)


async def clean(admin: Admin, options: Values, *, what: Cleaning) -> Result:
    address = options.maybe_text("brokerAddr")
    cluster = options.maybe_text("cluster")
    addresses = (
        [address]
        if address is not None
        else [broker.address for broker in await admin.brokers(cluster)]
    )
    answers = await admin.clean(what, addresses)
    if address is None:
        missing = await admin.missing_brokers(cluster) or ()
        lost = {one.address: one for one in missing if one.address not in answers.values}
        answers = with_missing(answers, lost)
    return answered(
        answers,
        {"brokers": sorted(answers.some())},
        ["false" if answers.failures else "success"],
        notes=[] if addresses else [NO_BROKERS],
    )


def _command(name: str, what: Cleaning, remark: str) -> AdminCommand:
    return AdminCommand(name, partial(clean, what=what), effect=Effect.CHANGES).with_options(
        *OPTIONS
    )


COMMANDS = (
    _command(
        "deleteExpiredCommitLog",
        Cleaning.EXPIRED_COMMIT_LOG,
        "A file is expired when its last message is older than the broker's fileReservedTime. The"
        " broker answers at once and deletes in the background.",
    ),
    _command(
        "cleanExpiredCQ",
        Cleaning.EXPIRED_QUEUES,
        "Such a queue loses its numbering: its next message has offset 0. Queues of system topics"
        " are kept.",
    ),
    _command(
        "cleanUnusedTopic",
        Cleaning.UNUSED_TOPICS,
        "The messages stay in the commit log until that is deleted.",
    ),
)
