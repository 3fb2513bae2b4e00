"""Commands about permissions: wipeWritePerm, addWritePerm, updateTopicPerm."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_header
from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.errors import BrokerMissing
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    WipeWritePermResponseHeader,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def change_write_permission(admin: Admin, options: Values, *, wipe: bool) -> Result:
    """Change the permission at all name servers, and print the number of topics at each."""
    name = options.text("brokerName")
    kind: type[WipeWritePermResponseHeader | AddWritePermResponseHeader]
    if wipe:
        code, kind = RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermResponseHeader
    else:
        code, kind = RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermResponseHeader
    known = {broker.name for broker in await admin.brokers()}
    if name not in known:
        raise BrokerMissing(name, known)

    async def change_at(address: str) -> int:
        answer = await admin.ask(address, code, BrokerNameHeader(name))
        return read_header(kind, answer).topic_count or 0

    answers = await admin.for_each(admin.namesrv_addresses, change_at)
    note = (
        "this holds until the broker registers changed topics; for a change that lasts: mqadmin"
        f" broker {'drain' if wipe else 'undrain'} {name}"
    )
    counts, verb = answers.some(), "wipe" if wipe else "add"
    return answered(
        answers,
        {"brokerName": name, "nameServers": dict(counts)},
        [
            f"{verb} write perm of broker[{name}] in name server[{address}] OK, {count}"
            for address, count in counts.items()
        ],
        notes=[note],
    )


async def update_topic_perm(admin: Admin, options: Values) -> Result:
    topic, perm = options.text("topic"), options.number("perm")
    chosen = await chosen_brokers(admin, options, masters_only=False)
    # Fails for an unknown topic: this command must not create topics.
    brokers = await admin.topic_brokers(topic)
    addresses = [known for known in brokers.values() if known in chosen]
    if not addresses:
        wanted = options.maybe_text("brokerAddr") or options.text("clusterName")
        raise BrokerMissing(wanted, brokers.values(), f"with topic {topic!r}")

    async def change_at(target: str) -> tuple[int, int]:
        old = await admin.topic_config(topic, target)
        await admin.update_topic(topic, address=target, perm=perm)
        return (old.perm if old is not None else perm, perm)

    answers = await admin.for_each(addresses, change_at)
    changes = answers.some()
    documents = {target: {"before": old, "perm": new} for target, (old, new) in changes.items()}
    return answered(
        answers,
        {"topic": topic, "brokers": documents},
        [
            f"new perm equals to the old one in {target}"
            if before == after
            else f"update topic perm from {before} to {after} in {target} success."
            for target, (before, after) in changes.items()
        ],
    )


def permission(text: str) -> int:
    """Read 2, 4 or 6."""
    if text.strip() not in ("2", "4", "6"):
        raise ValueError("use 2 (write), 4 (read) or 6 (both)")
    return int(text)


BROKER_NAME = Option("-b, --brokerName NAME", "the broker's name, not its address", required=True)

COMMANDS = (
    AdminCommand(
        "wipeWritePerm", partial(change_write_permission, wipe=True), effect=Effect.CHANGES
    ).with_options(BROKER_NAME),
    AdminCommand(
        "addWritePerm", partial(change_write_permission, wipe=False), effect=Effect.CHANGES
    ).with_options(BROKER_NAME),
    AdminCommand("updateTopicPerm", update_topic_perm, effect=Effect.CHANGES).with_options(
        TOPIC,
        Option("-p, --perm PERM", "2: write, 4: read, 6: both", permission, required=True),
        Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
        Option("-c, --clusterName NAME", "at all brokers of a cluster that have the topic"),
    ),
)
