"""Commands about who may write or read where: wipeWritePerm, addWritePerm, updateTopicPerm."""

from __future__ import annotations

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled
from triomq.client.admin.calls import read_header
from triomq.client.admin.command import Command, Result
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.admin.errors import BrokerNotFound
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.route import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    WipeWritePermResponseHeader,
)


async def change_write_permission(admin: Admin, options: Values, code: RequestCode) -> Result:
    """Tell all name servers, and print how many topics each of them changed."""
    name = options.text("brokerName")
    wipe = code == RequestCode.WIPE_WRITE_PERM_OF_BROKER
    known = {broker.name for broker in await admin.brokers()}
    if name not in known:
        raise BrokerNotFound(name, known)

    async def one(address: str) -> int:
        answer = await admin.ask(address, code, BrokerNameHeader(name))
        if wipe:
            return read_header(WipeWritePermResponseHeader, answer).topic_count or 0
        return read_header(AddWritePermResponseHeader, answer).topic_count or 0

    answers = await admin.for_each(admin.namesrv_addresses, one)
    counts = answers.some()
    verb = "wipe" if wipe else "add"
    return Result(
        document={"brokerName": name, "nameServers": dict(counts), "failures": answers.reasons()},
        blocks=[f"{verb} write perm of broker[{name}] in name server[{address}] OK, {count}" for address, count in counts.items()],
        failures=answers.reasons(),
        asked=answers.asked,
        notes=[
            f"this holds until the broker registers changed topics; to keep clients from writing for good: mqadmin updateBrokerConfig -b ADDRESS -k brokerPermission -v {4 if wipe else 6}"
        ],
    )


async def wipe_write_perm(admin: Admin, options: Values) -> Result:
    """Keep producers away from a broker."""
    return await change_write_permission(admin, options, RequestCode.WIPE_WRITE_PERM_OF_BROKER)


async def add_write_perm(admin: Admin, options: Values) -> Result:
    """Let producers come back to a broker."""
    return await change_write_permission(admin, options, RequestCode.ADD_WRITE_PERM_OF_BROKER)


async def update_topic_perm(admin: Admin, options: Values) -> Result:
    """Change the permission of a topic, and nothing else of it."""
    topic, perm = options.text("topic"), options.number("perm")
    address, cluster = options.maybe_text("brokerAddr"), options.maybe_text("clusterName")
    if (address is None) == (cluster is None):
        raise UsageError("one of -b/--brokerAddr and -c/--clusterName is needed, and only one")
    brokers = await admin.topic_brokers(topic)  # a topic that does not exist shall not be created by this
    members = {broker.address for broker in await admin.brokers(cluster)} if cluster is not None else {address}
    addresses = [known for known in brokers.values() if known in members]
    if not addresses:
        raise BrokerNotFound(address or cluster or "", brokers.values(), f"with topic {topic!r}")

    async def one(target: str) -> tuple[int, int]:
        old = await admin.topic_config(topic, target)
        await admin.update_topic(topic, address=target, perm=perm)
        return (old.perm if old is not None else perm, perm)

    answers = await admin.for_each(addresses, one)
    changes = answers.some()
    return Result(
        document={"topic": topic, "brokers": {target: {"before": before, "perm": after} for target, (before, after) in changes.items()}, "failures": answers.reasons()},
        blocks=[
            f"new perm equals to the old one in {target}" if before == after else f"update topic perm from {before} to {after} in {target} success."
            for target, (before, after) in changes.items()
        ],
        failures=answers.reasons(),
        asked=answers.asked,
    )


def permission(text: str) -> int:
    """Read 2, 4 or 6."""
    if text.strip() not in ("2", "4", "6"):
        raise ValueError("use 2 (write), 4 (read) or 6 (both)")
    return int(text)


BROKER_NAME = Option("b", "brokerName", "the broker's name, not its address", filled, required=True, placeholder="NAME")
COUNTS = '{"brokerName", "nameServers": {address: number of topics}, "failures": {address: reason}}'

COMMANDS = (
    Command(
        name="wipeWritePerm",
        group="cluster",
        summary="keep producers away from a broker: its topics lose the write permission in all routes",
        run=wipe_write_perm,
        options=(BROKER_NAME,),
        examples=("wipeWritePerm -b broker-a",),
        document=COUNTS,
        remarks=("A broker that nobody knows is an error, not 0 topics.",),
    ),
    Command(
        name="addWritePerm",
        group="cluster",
        summary="let producers come back: the topics of a broker get permission 6 in all routes",
        run=add_write_perm,
        options=(BROKER_NAME,),
        examples=("addWritePerm -b broker-a",),
        document=COUNTS,
    ),
    Command(
        name="updateTopicPerm",
        group="topic",
        summary="change the permission of a topic",
        run=update_topic_perm,
        options=(
            TOPIC,
            Option("p", "perm", "2: write, 4: read, 6: both", permission, required=True, placeholder="PERM"),
            Option("b", "brokerAddr", "at one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "at all brokers of a cluster that have the topic", filled, placeholder="NAME"),
        ),
        examples=("updateTopicPerm -c DefaultCluster -t orders -p 4",),
        document='{"topic", "brokers": {address: {"before", "perm"}}, "failures": {address: reason}}',
    ),
)
