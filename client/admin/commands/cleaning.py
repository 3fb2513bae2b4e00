"""Commands that make brokers clean up: cleanExpiredCQ, deleteExpiredCommitLog, cleanUnusedTopic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, filled
from triomq.client.admin.cleaning import Cleaning
from triomq.client.admin.command import Command, Result

OPTIONS = (
    Option("b", "brokerAddr", "one broker, host:port", filled, placeholder="ADDRESS"),
    Option("c", "cluster", "all brokers of a cluster; without -b and -c those of all clusters", filled, placeholder="NAME"),
)


def cleaning(what: Cleaning) -> Callable[[Admin, Values], Awaitable[Result]]:
    """Return the command for one kind of clean-up."""

    async def run(admin: Admin, options: Values) -> Result:
        address = options.maybe_text("brokerAddr")
        addresses = [address] if address is not None else [broker.address for broker in await admin.brokers(options.maybe_text("cluster"))]
        answers = await admin.clean(what, addresses)
        answers.some()
        reasons = answers.reasons()
        return Result(
            document={"brokers": sorted(answers.values), "failures": reasons},
            blocks=["false" if reasons else "success"],
            failures=reasons,
            asked=answers.asked,
            notes=[] if addresses else ["no broker is registered at the name server; start one with `mqbroker -n ADDRESSES`"],
        )

    return run


def _command(name: str, group: str, summary: str, what: Cleaning, remark: str) -> Command:
    return Command(
        name=name,
        group=group,
        summary=summary,
        run=cleaning(what),
        options=OPTIONS,
        examples=(f"{name} -b 127.0.0.1:10911", f"{name} -c DefaultCluster -n 127.0.0.1:9876"),
        document='{"brokers": [address], "failures": {address: reason}}',
        remarks=(remark,),
    )


COMMANDS = (
    _command(
        "deleteExpiredCommitLog",
        "cluster",
        "have brokers delete expired commit log files now",
        Cleaning.EXPIRED_COMMIT_LOG,
        "A file is expired when its last message is older than the broker's fileReservedTime. The broker answers at once and deletes in the background.",
    ),
    _command(
        "cleanExpiredCQ",
        "cluster",
        "have brokers forget queues that have no message any more",
        Cleaning.EXPIRED_QUEUES,
        "Such a queue loses its numbering: its next message has offset 0. Queues of system topics stay.",
    ),
    _command(
        "cleanUnusedTopic",
        "topic",
        "have brokers delete the queues of topics that do not exist any more",
        Cleaning.UNUSED_TOPICS,
        "The messages stay in the commit log until that is deleted.",
    ),
)
