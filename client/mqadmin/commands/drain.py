"""The commands brokerDrain and brokerUndrain (maintenance), and brokerForget (the end)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.controllers import groups_at
from triomq.client.admin.documents import count_of
from triomq.client.admin.draining import (
    Drained,
    Hindrance,
    Unread,
    allow_writes,
    controllers_of,
    elect,
    hindrance_of,
    stop_writes,
    takes_all,
)
from triomq.client.admin.errors import BrokerMissing
from triomq.client.admin.missing_brokers import BrokerLeft
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.account_copy import names
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.output import tell_progress
from triomq.client.mqadmin.core.result import Document, Result, answered, table_of
from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_WRITE

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress

POLL_SECONDS = 1.0
"""pause between two reads of the lag: RocketMQ's consumers commit every 5 s"""
SHOWN_GROUPS_MAX = 3
"""groups that a line of progress names"""


async def named_master(admin: Admin, name: str) -> BrokerAddress:
    """Return the master with that name or address. Raises: BrokerMissing, BrokerLeft."""
    masters = await admin.brokers(masters_only=True)
    for broker in masters:
        if name in (broker.name, broker.address):
            return broker
    for lost in await admin.missing_brokers() or ():
        if lost.id == MASTER_ID and name in (lost.name, lost.address):
            raise BrokerLeft(lost)
    raise BrokerMissing(name, {broker.name for broker in masters})


async def drain(admin: Admin, options: Values) -> Result:
    broker = await named_master(admin, options.text("broker"))
    controllers = await controllers_of(admin, broker)
    if controllers:
        return await drain_master(admin, broker, controllers, options)
    warning = f"no other broker of cluster {broker.cluster} takes messages: sends fail meanwhile"
    notes = [warning] if await takes_all(admin, broker) else []
    drained, wiped = await stop_writes(admin, broker)
    found: Hindrance | None = Hindrance((), 0)
    failures = wiped.reasons()
    if not options.flag("dry-run"):
        tell_progress(
            f"{broker.name} is closed to producers, also after Ctrl-C, until mqadmin broker undrain"
        )
        try:
            found = await wait_until_free(admin, broker, drained, options)
        except TrioMQError as error:
            failures[broker.address] = str(error)
            found = None
    groups = [] if found is None else found.unread
    document: Document = {
        "brokerName": broker.name,
        "brokerAddr": broker.address,
        "before": drained.before,
        "brokerPermission": drained.before & ~PERM_WRITE,
        "movedTo": None,
        "drained": found is not None and not found,
        "producerSeconds": None if found is None else found.producer_seconds,
        "groups": [{"group": one.group, "lag": one.lag, "queues": one.queues} for one in groups],
        "nameServers": dict(wiped.values),
    }
    table = table_of(document["groups"], {"Group": "group", ">Lag": "lag", ">Queues": "queues"})
    return Result(
        document=document,
        blocks=[*([table] if groups else []), verdict(broker.name, found)],
        failures=failures,
        asked=wiped.asked + 1,
        notes=notes,
        bad_news=not document["drained"],
    )


async def drain_master(
    admin: Admin, broker: BrokerAddress, controllers: Sequence[str], options: Values
) -> Result:
    """Let another member of the set be the master, and wait until it is whole again."""
    import trio  # as below

    leader, before, chosen = await elect(admin, broker, controllers)
    members = {one.broker_id for one in before.in_sync_replicas}
    moved, whole = False, False
    if not options.flag("dry-run"):
        # Within the time limit of the command's requests.
        with trio.move_on_after(max(options.number("timeout") - POLL_SECONDS, 0)):
            while not (moved and whole):
                await trio.sleep(POLL_SECONDS / 10)
                found = await groups_at(admin, leader, [broker.name])
                now = found.get(broker.name, before)
                moved = now.master_broker_id == chosen.broker_id
                whole = members <= {one.broker_id for one in now.in_sync_replicas}
    document: Document = {
        "brokerName": broker.name,
        "brokerAddr": broker.address,
        "before": None,
        "brokerPermission": None,
        "movedTo": chosen.broker_address,
        "drained": moved and whole,
        "producerSeconds": 0,
        "groups": [],
        "nameServers": {},
    }
    state = "is the master" if moved else "is not the master yet"
    safe = "is safe to stop" if moved and whole else "is not in its set yet: do not stop it"
    return Result(
        document=document,
        blocks=[f"{chosen.broker_address} {state} of {broker.name}; {broker.address} {safe}"],
        bad_news=not document["drained"],
    )


def verdict(name: str, found: Hindrance | None) -> str:
    """Return what to do now."""
    if found is None:
        return f"{name} is closed to producers; whether all is read is unknown: call this again"
    if not found:
        return f"{name} is safe to stop; afterwards: mqadmin broker undrain {name}"
    reasons = []
    if found.unread:
        groups = count_of(len(found.unread), "group")
        reasons.append(f"not all of it is read by {groups} (--ignore leaves out)")
    if found.producer_seconds:
        reasons.append(f"producers with an old route may send for {found.producer_seconds} s more")
    return (
        f"{name} is not safe to stop yet: {', and '.join(reasons)}; it stays closed: call this"
        " again with a longer --timeout"
    )


async def wait_until_free(
    admin: Admin, broker: BrokerAddress, drained: Drained, options: Values
) -> Hindrance:
    """Wait until nothing keeps a broker from being stopped; return what does at the end.

    Raises: TrioMQError if the broker does not tell.
    """
    import trio  # not for the help: start-up time

    ignored: Collection[str] = options.value("ignore") or ()

    found = await hindrance_of(admin, broker.address, drained, ignored)
    shown = ""
    # Within the time limit of the command's requests.
    with trio.move_on_after(max(options.number("timeout") - POLL_SECONDS, 0)):
        while found:
            line = unread_line(broker.name, found.unread)
            if line != shown:
                tell_progress(line)
                shown = line
            await trio.sleep(POLL_SECONDS)
            found = await hindrance_of(admin, broker.address, drained, ignored)
    return found


def unread_line(name: str, left: Sequence[Unread]) -> str:
    """Return a line of progress."""
    if not left:
        return f"{name}: all is read; producers may have an old route"
    more = len(left) - SHOWN_GROUPS_MAX
    groups = ", ".join(f"{one.group} {one.lag}" for one in left[:SHOWN_GROUPS_MAX])
    return f"{name}: not yet read: {groups}" + (f" and {more} groups" if more > 0 else "")


async def undrain(admin: Admin, options: Values) -> Result:
    broker = await named_master(admin, options.text("broker"))
    permission, stored, answers = await allow_writes(admin, broker)
    notes = [] if stored else [f"{broker.name} was not drained by mqadmin broker drain"]
    if not permission & PERM_WRITE:
        notes.append(
            f"{broker.name} had brokerPermission {permission} before the drain, so clients still"
            f" cannot write: mqadmin broker set -b {broker.address} -k brokerPermission -v"
            f" {permission | PERM_WRITE}"
        )
    return Result(
        document={
            "brokerName": broker.name,
            "brokerAddr": broker.address,
            "brokerPermission": permission,
            "nameServers": sorted(answers.values),
        },
        blocks=[f"{broker.name} has brokerPermission {permission}; clients follow within 30 s"],
        failures=answers.reasons(),
        asked=answers.asked + 1,
        notes=notes,
    )


async def forget(admin: Admin, options: Values) -> Result:
    name = options.text("broker")
    answers = await admin.forget_broker(name)
    informed = sorted(answers.some())
    line = f"{name} does not count as missing any more"
    return answered(answers, {"brokerName": name, "nameServers": informed}, [line])


BROKER = Option("BROKER", "the broker's name, or its address host:port", required=True)

COMMANDS = (
    AdminCommand("brokerDrain", drain, effect=Effect.CHANGES).with_options(
        BROKER, Option("--ignore GROUPS", "do not wait for these groups, joined by commas", names)
    ),
    AdminCommand("brokerUndrain", undrain, effect=Effect.CHANGES).with_options(BROKER),
    AdminCommand("brokerForget", forget, effect=Effect.CHANGES).with_options(
        Option("BROKER", "the broker's name", required=True)
    ),
)
