"""The commands brokerDrain and brokerUndrain: a broker before and after its maintenance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from triomq.client.admin.accounts import names
from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.command import AdminCommand, Effect, Result, Table
from triomq.client.admin.draining import Unread, allow_writes, stop_writes, unread
from triomq.client.admin.errors import BrokerNotFound
from triomq.client.admin.progress_lines import tell_progress
from triomq.client.errors import TrioMQError
from triomq.remoting.protocol.bodies.route import PERM_WRITE

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin, BrokerAddress

LOOK_SECONDS = 1.0
"""pause between two looks at the lag: RocketMQ's consumers commit every 5 s"""
SHOWN_GROUPS_MAX = 3
"""groups that a line of progress names"""


async def named_master(admin: Admin, name: str) -> BrokerAddress:
    """Return the master with that name or address. Raises: BrokerNotFound."""
    masters = await admin.brokers(masters_only=True)
    for broker in masters:
        if name in (broker.name, broker.address):
            return broker
    raise BrokerNotFound(name, {broker.name for broker in masters})


async def drain(admin: Admin, options: Values) -> Result:
    broker = await named_master(admin, options.text("broker"))
    before, wiped = await stop_writes(admin, broker)
    ignored: Collection[str] = options.value("ignore") or ()
    left: Sequence[Unread] | None = []
    failures = wiped.reasons()
    if not options.flag("dry-run"):
        tell_progress(f"{broker.name} takes no more messages (brokerPermission {before} before)")
        try:
            left = await wait_until_read(admin, broker, ignored, options.number("timeout"))
        except TrioMQError as error:
            failures[broker.address] = str(error)
            left = None
    drained = left is not None and not left
    document: dict[str, Any] = {
        "brokerName": broker.name,
        "brokerAddr": broker.address,
        "before": before,
        "brokerPermission": before & ~PERM_WRITE,
        "drained": drained,
        "groups": [
            {"group": one.group, "lag": one.lag, "queues": one.queues} for one in left or ()
        ],
        "nameServers": dict(wiped.values),
    }
    table = Table(
        ("Group", ">Lag", ">Queues"), [[one.group, one.lag, one.queues] for one in left or ()]
    )
    return Result(
        document=document,
        blocks=[*([table] if left else []), verdict(broker.name, left, options)],
        failures=failures,
        asked=wiped.asked + 1,
        bad_news=not drained,
    )


def verdict(name: str, left: Sequence[Unread] | None, options: Values) -> str:
    """Return what to do now."""
    if left is None:
        return f"{name} takes no more messages; whether all are read is unknown: call this again"
    if left:
        return (
            f"{name} takes no more messages, but is not safe to stop: {len(left)} groups have not"
            f" read all of it after {options.number('timeout')} s; call this again with a longer"
            " --timeout, or leave groups out with --ignore"
        )
    return f"{name} is safe to stop; afterwards: mqadmin broker undrain {name}"


async def wait_until_read(
    admin: Admin, broker: BrokerAddress, ignored: Collection[str], timeout: int
) -> Sequence[Unread]:
    """Wait until no group has unread messages on a broker; return those that have, at the end.

    Raises: TrioMQError if the broker does not tell.
    """
    import trio  # not for the help: start-up time

    left: Sequence[Unread] = await unread(admin, broker.address, ignored)
    shown = ""
    # Within the time limit of the command's requests.
    with trio.move_on_after(max(timeout - LOOK_SECONDS, 0)):
        while left:
            line = unread_line(broker.name, left)
            if line != shown:
                tell_progress(line)
                shown = line
            await trio.sleep(LOOK_SECONDS)
            left = await unread(admin, broker.address, ignored)
    return left


def unread_line(name: str, left: Sequence[Unread]) -> str:
    """Return a line of progress."""
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


BROKER = Option("BROKER", "the broker's name, or its address host:port", required=True)
PERMANENT = (
    "It changes the broker's setting brokerPermission, which lasts over its restart: name servers"
    " alone forget a wiped permission (`broker wipe-write`) when the broker registers changed"
    " topics. The earlier value is kept in the name servers' key-value table (namespace"
    " TRIOMQ_DRAIN) until `broker undrain`."
)

COMMANDS = (
    AdminCommand(
        name="brokerDrain",
        run=drain,
        effect=Effect.CHANGES,
        options=(
            BROKER,
            Option("--ignore GROUPS", "do not wait for these groups, joined by commas", names),
        ),
        examples=(
            "brokerDrain broker-a --timeout 600",
            "brokerDrain broker-a --ignore audit,test",
        ),
        document=(
            '{"brokerName", "brokerAddr", "before", "brokerPermission", "drained", "groups":'
            ' [{"group", "lag", "queues"}], "nameServers": {address: number of topics}, "failures":'
            " {server: reason}}"
        ),
        remarks=(
            "It waits until every group has read what it has offsets for on that broker, at most"
            " --timeout, and shows the lag on stderr. The exit code is 0 if the broker is safe to"
            " stop, and 1 if messages are unread; writes stay stopped then, and a second call goes"
            " on waiting.\n"
            f"{PERMANENT}\n"
            "Delayed messages and open transactions stay in its store, and go on when it is back."
        ),
    ),
    AdminCommand(
        name="brokerUndrain",
        run=undrain,
        effect=Effect.CHANGES,
        options=(BROKER,),
        examples=("brokerUndrain broker-a",),
        document=(
            '{"brokerName", "brokerAddr", "brokerPermission", "nameServers": [address], "failures":'
            " {address: reason}}"
        ),
        remarks=(
            "The broker gets the brokerPermission that it had before `broker drain`, registers, and"
            " all name servers show the permissions of its topics again."
        ),
    ),
)
