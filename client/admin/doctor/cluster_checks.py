"""Checks of a cluster: registered brokers, addresses, masters, clocks, disks, lag.

Every RocketMQ broker answers their requests.
"""

from __future__ import annotations

import ipaddress
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from triomq.client.admin.access import given_access
from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Values
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.doctor.controller_checks import controllers
from triomq.client.admin.doctor.endpoint_checks import endpoints
from triomq.client.admin.draining import stored_drain
from triomq.client.admin.missing_brokers import DISPLACED, UNREGISTERED, MissingBroker
from triomq.client.admin.server_settings import read_settings
from triomq.client.admin.times import request_seconds, seconds_text
from triomq.client.core.errors import NoNameServer, TrioMQError
from triomq.client.core.servers import namesrv_addresses
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.findings import Finding, Level, advice, ok, problem, unknown
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.offsets import ConsumeStats
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.names import TRACE_TOPIC

SKEW_SECONDS_MAX = 2.0
"""brokers report their clocks in whole seconds"""
DISK_ADVICE, DISK_PROBLEM = 0.75, 0.90
SYSTEM_GROUPS = ("CID_", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "%")


OpenAdmin = Callable[[Sequence[str]], AbstractAsyncContextManager[Admin]]
"""opens the administration at some name servers; its requests end with the command's time limit"""


async def examine_cluster(values: Values) -> list[Finding]:
    """Return all findings; an unreachable cluster is a finding, too.

    Without name servers the list is empty; with --cluster that is an error.

    Raises: NoNameServer, SettingsError.
    """
    try:
        namesrvs = namesrv_addresses(values.maybe_text("namesrvAddr"))
    except NoNameServer:
        if values.flag("cluster"):
            raise
        return []
    tls, credentials = given_access(values)
    seconds = values.number("timeout")
    deadline = trio.current_time() + seconds

    @asynccontextmanager
    async def open_admin(addresses: Sequence[str]) -> AsyncIterator[Admin]:
        async with Admin(
            addresses, timeout_seconds=request_seconds(seconds), tls=tls, credentials=credentials
        ) as admin:
            admin.limit_to(deadline - trio.current_time())
            yield admin

    return await examine(namesrvs, open_admin, values.number("lag"))


async def examine(
    namesrvs: Sequence[str], open_admin: OpenAdmin, lag_max: int | None
) -> list[Finding]:
    """Return all findings; ``lag_max`` None leaves out the lag of groups."""
    findings, tables = await name_servers(namesrvs, open_admin)
    if not tables:
        return findings
    async with open_admin(list(tables)) as admin:
        brokers = await admin.brokers()
        findings += agreement(tables)
        findings += groups_of_brokers(brokers)
        findings += missing(await admin.missing_brokers() or ())
        answered_at: dict[str, float] = {}

        async def status_of(address: str) -> dict[str, str]:
            status = await admin.broker_status(address)
            answered_at[address] = time.time()
            return status

        statuses = await admin.for_each([broker.address for broker in brokers], status_of)
        for broker in brokers:
            status = statuses.values.get(broker.address)
            failure = statuses.failures.get(broker.address)
            here = answered_at.get(broker.address, 0.0)
            findings += broker_findings(broker, status, failure, here)
        findings += await drains(admin, [broker for broker in brokers if broker.id == 0])
        settings = await read_settings(admin, list(statuses.values), RequestCode.GET_BROKER_CONFIG)
        findings += await endpoints(brokers, settings.values)
        findings += await controllers(admin, brokers, settings.values)
        findings.append(traces(await admin.topics()))
        if lag_max is not None:
            findings += await lags(admin, lag_max)
    return findings


async def name_servers(
    namesrvs: Sequence[str], open_admin: OpenAdmin
) -> tuple[list[Finding], dict[str, ClusterTable]]:
    """Ask all name servers at the same time; return findings, and the tables of their answers."""
    answers: dict[str, ClusterTable | TrioMQError] = {}

    async def ask(address: str) -> None:
        try:
            async with open_admin([address]) as admin:
                answers[address] = await admin.cluster()
        except TrioMQError as error:
            answers[address] = error

    async with trio.open_nursery() as nursery:
        for address in namesrvs:
            nursery.start_soon(ask, address)
    findings: list[Finding] = []
    tables: dict[str, ClusterTable] = {}
    for address in namesrvs:
        answer = answers[address]
        if isinstance(answer, ClusterTable):
            tables[address] = answer
            found = f"{len(answer.broker_addr_table)} broker names"
            findings.append(ok("name server", address, found))
        else:
            found = " ".join(str(answer).split())
            fix = "start it, or remove it from namesrvAddr of brokers and clients"
            why = (
                "clients that ask this name server find no broker; without any name server, new"
                " clients cannot start"
            )
            findings.append(problem("name server", address, found, fix, why))
    return findings, tables


def agreement(tables: Mapping[str, ClusterTable]) -> list[Finding]:
    """Check that every name server knows the same brokers: they do not talk to each other."""
    known = {
        address: {
            (name, broker_id, where)
            for name, data in table.broker_addr_table.items()
            for broker_id, where in data.broker_addrs.items()
        }
        for address, table in tables.items()
    }
    all_brokers = set().union(*known.values())
    if not all_brokers:
        fix = (
            "start brokers with `mqbroker -n ADDRESSES`, or read their logs for the reason why"
            " they cannot register"
        )
        found = "no broker is registered"
        return [problem("cluster", "brokers", found, fix, "no topic has a route")]
    findings = [
        problem(
            "name server",
            f"{address} agrees",
            f"does not know {', '.join(sorted(missing))}",
            "name all name servers in namesrvAddr of every broker",
            "clients find other brokers at other name servers",
        )
        for address, brokers in known.items()
        if (
            missing := [
                f"{name}:{broker_id} at {where}" for name, broker_id, where in all_brokers - brokers
            ]
        )
    ]
    return findings or [ok("cluster", "name servers agree", f"{len(all_brokers)} brokers")]


def groups_of_brokers(brokers: Iterable[BrokerAddress]) -> Iterator[Finding]:
    """Check that every broker name has a master: without it, no messages are accepted."""
    groups: dict[str, set[int]] = defaultdict(set)
    for broker in brokers:
        groups[broker.name].add(broker.id)
    for name, ids in sorted(groups.items()):
        if MASTER_ID not in ids:
            found = f"only slaves ({', '.join(map(str, sorted(ids)))})"
            fix = "start its master again, or promote a slave (docs/deploy.md)"
            yield problem("cluster", name, found, fix, "its queues can be read, but not written")
        else:
            found = "master alone" if len(ids) == 1 else f"master and {len(ids) - 1} slaves"
            yield ok("cluster", name, found)


def missing(brokers: Iterable[MissingBroker]) -> Iterator[Finding]:
    """Name the brokers that left in the last day, and places that two living ones claim."""
    places: dict[str, list[str]] = {}
    for broker in brokers:
        name = f"{broker.name}:{broker.id}"
        if broker.leave == DISPLACED:
            places.setdefault(name, []).append(broker.address)
            continue
        yield Finding(
            # One that was stopped in order is not a problem of itself.
            Level.ADVICE if broker.leave == UNREGISTERED else Level.PROBLEM,
            "broker",
            f"{name} is missing",
            f"{broker.since}, it was at {broker.address}",
            f"start it again; if it is gone for good: `mqadmin broker forget {broker.name}`",
            "nobody reads its messages meanwhile"
            if broker.id == MASTER_ID
            else "its master has a copy less",
        )
    for name, addresses in places.items():
        yield problem(
            "broker",
            f"{name} lives twice",
            f"at {' and '.join(sorted(set(addresses)))}, which register in turn",
            "stop the one that you do not want; what it has stored can be read from its store"
            " (docs/replication.md, when logs part)",
            "clients reach one of the two at a time, and not the messages of the other",
        )


def traces(topics: Iterable[str]) -> Finding:
    """Tell whether clients can trace messages. Without the topic, that is off by intention."""
    if TRACE_TOPIC in topics:
        return ok("cluster", "message traces", f"topic {TRACE_TOPIC} exists")
    found = (
        f"no broker has topic {TRACE_TOPIC}: clients with message traces on warn and drop them; to"
        " have traces, set traceTopicEnable=true on a broker"
    )
    return ok("cluster", "message traces", found)


async def drains(admin: Admin, masters: Sequence[BrokerAddress]) -> list[Finding]:
    """Find brokers that are closed to producers since a drain."""
    names = {broker.name for broker in masters}
    stored = await admin.for_each(names, lambda name: stored_drain(admin, name))
    return [
        advice(
            "broker",
            f"{name} drain",
            f"closed to producers since {seconds_text(found.since_ms)}",
            f"after its maintenance: `mqadmin broker undrain {name}`",
            "`mqadmin broker drain` was called",
        )
        for name, found in sorted(stored.values.items())
        if found is not None
    ]


def broker_findings(
    broker: BrokerAddress,
    status: Mapping[str, str] | None,
    failure: TrioMQError | None,
    here: float,
) -> Iterator[Finding]:
    """Check a broker: address, clock, disk, refused requests, and subscriptions of groups."""
    name = f"{broker.name}:{broker.id}"
    if status is None:
        yield problem(
            "broker",
            f"{name} address",
            f"{broker.address}: {' '.join(str(failure).split())}",
            "set brokerIP1 to an address or name that clients reach, and publish listenPort and"
            " listenPort - 2 under the same numbers (docs/deploy.md)",
            "it is registered under this address: a client that cannot reach it can neither send"
            " nor consume",
        )
        return
    yield advertised(name, broker.address)
    if parted := status.get("logsParted"):
        fix, why = "see docs/replication.md, when logs part", "this slave serves nothing"
        yield problem("broker", f"{name} log", parted, fix, why)
    skew = clock_skew(status, here)
    if skew is not None:
        if abs(skew) > SKEW_SECONDS_MAX:
            found = f"{skew:+.0f} s against this machine"
            fix = "synchronise the clocks of all machines (chrony)"
            why = "store times, retention, delayed messages and searches by time are off by that"
            yield problem("broker", f"{name} clock", found, fix, why)
        else:
            yield ok("broker", f"{name} clock", f"within {SKEW_SECONDS_MAX:g} s")
    try:
        disk = max(
            float(status.get("commitLogDiskRatio", -1)),
            float(status.get("consumeQueueDiskRatio", -1)),
        )
    except ValueError:
        disk = -1.0
    if disk >= DISK_ADVICE:
        level = Level.PROBLEM if disk >= DISK_PROBLEM else Level.ADVICE
        fix = "enlarge the disk, or lower fileReservedTime"
        why = "above 85 % files are deleted early, above 90 % messages are refused"
        yield Finding(level, "broker", f"{name} disk", f"{disk:.0%} used", fix, why)
    for key, value in status.items():
        if key.startswith("refused_"):
            found = f"{key.removeprefix('refused_')}: {value} since its start"
            fix = "see docs/operations.md, busy answers"
            why = "clients got SYSTEM_BUSY and had to retry"
            yield advice("broker", f"{name} refusals", found, fix, why)
        elif key.startswith("subscriptionMismatch_"):
            group, found = key.removeprefix("subscriptionMismatch_"), f"at {broker.name}: {value}"
            fix = "subscribe all members to the same topics and tags, or use several groups"
            why = "members with different subscriptions skip messages that other members want"
            yield problem("group", group, found, fix, why)


def advertised(name: str, address: str) -> Finding:
    """Check that an address that answers here is not known to this machine only."""
    host, _ = parse_address(address)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        fix, why = "set brokerIP1 when clients run elsewhere", "only this machine can reach it"
        return advice("broker", f"{name} address", address, fix, why)
    return ok("broker", f"{name} address", address)


def clock_skew(status: Mapping[str, str], here: float) -> float | None:
    """Return the seconds that a broker's clock is ahead of ours.

    The broker's time is its start plus its uptime in whole seconds.
    """
    words = status.get("runtime", "").split()
    try:
        days, hours, minutes, seconds = (int(words[index]) for index in (1, 3, 5, 7))
        boot = int(status["bootTimestamp"]) / 1000
    except (KeyError, IndexError, ValueError):
        return None
    return boot + ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5 - here


async def lags(admin: Admin, lag_max: int) -> list[Finding]:
    """Check the lag of all groups."""
    names = {
        name
        for some in (await admin.groups()).values.values()
        for name in some
        if not name.startswith(SYSTEM_GROUPS)
    }
    answers = await admin.for_each(sorted(names), admin.consume_stats)
    behind = {name: _lag(stats) for name, stats in answers.values.items()}
    findings = [
        advice(
            "group",
            name,
            f"{lag} messages behind",
            f"see mqadmin group lag -g {name}; add members or queues, or reset the offset",
            "messages older than fileReservedTime are deleted, read or unread",
        )
        for name, lag in behind.items()
        if lag > lag_max
    ]
    unasked = len(answers.failures) + sum(bool(stats.failures) for stats in answers.values.values())
    if unasked:
        found = f"{unasked} of {len(names)} groups could not be checked at every broker"
        if not findings:
            found += f"; no queue of the other groups is more than {lag_max} messages behind"
        findings.append(unknown("group", "lag", found))
    elif names and not findings:
        found = f"none of {len(names)} groups is more than {lag_max} messages behind"
        findings.append(ok("group", "lag", found))
    return findings


def _lag(stats: Answers[ConsumeStats]) -> int:
    return sum(
        max(0, queue.broker_offset - queue.consumer_offset)
        for answer in stats.values.values()
        for queue in answer.offset_table.values()
    )
