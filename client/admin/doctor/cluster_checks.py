"""Checks of a cluster, by the questions that every RocketMQ broker answers: who is there, reachable from here, whole, on time, keeping up."""

from __future__ import annotations

import ipaddress
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from triomq.client.admin.admin import Admin, BrokerAddress
from triomq.client.admin.doctor.finding import Finding, Level, ok
from triomq.client.errors import TrioMQError
from triomq.remoting.address import parse_address
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import MASTER_ID

SKEW_SECONDS_MAX = 2.0
"""what a broker says about its clock is whole seconds"""
DISK_ADVICE, DISK_PROBLEM = 0.75, 0.90
SYSTEM_GROUPS = ("CID_", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "%")


@attrs.frozen(kw_only=True)
class Approach:
    """How servers are spoken to."""

    namesrvs: Sequence[str]
    make: type[Admin] = Admin
    options: Mapping[str, object] = attrs.field(factory=dict)

    def admin(self, addresses: Sequence[str]) -> Admin:
        return self.make(addresses, **self.options)  # type: ignore[arg-type]


async def examine_cluster(approach: Approach, lag_max: int) -> list[Finding]:
    """All findings; a cluster that cannot be reached is one of them."""
    findings, tables = await name_servers(approach)
    if not tables:
        return findings
    async with approach.admin(list(tables)) as admin:
        brokers = await admin.brokers()
        findings += agreement(tables)
        findings += list(groups_of_brokers(brokers))
        statuses = await admin.statuses(brokers)
        here = time.time()
        for broker in brokers:
            findings += broker_findings(broker, statuses.values.get(broker.address), statuses.failures.get(broker.address), here)
        findings += await lags(admin, lag_max)
    return findings


async def name_servers(approach: Approach) -> tuple[list[Finding], dict[str, ClusterTable]]:
    """Ask each name server by itself."""
    findings: list[Finding] = []
    tables: dict[str, ClusterTable] = {}
    for address in approach.namesrvs:
        try:
            async with approach.admin([address]) as admin:
                tables[address] = await admin.cluster()
        except TrioMQError as error:
            findings.append(
                Finding(
                    "name server", address, Level.PROBLEM, " ".join(str(error).split()),
                    "clients that ask it find nobody, and with the last one the cluster is gone for new clients",
                    "start it, or take it off namesrvAddr of brokers and clients",
                )
            )
        else:
            findings.append(ok("name server", address, f"{len(tables[address].broker_addr_table)} broker names"))
    return findings, tables


def agreement(tables: Mapping[str, ClusterTable]) -> list[Finding]:
    """Every name server must know the same brokers: they do not talk to each other."""
    known = {
        address: {(name, broker_id, where) for name, data in table.broker_addr_table.items() for broker_id, where in data.broker_addrs.items()}
        for address, table in tables.items()
    }
    everybody = set().union(*known.values())
    if not everybody:
        return [
            Finding("cluster", "brokers", Level.PROBLEM, "no broker is registered", "no topic has a route", "start brokers with `mqbroker -n ADDRESSES`, or look at their logs: they say why they cannot register")
        ]
    findings = []
    for address, some in known.items():
        missing = sorted(f"{name}:{broker_id}" for name, broker_id, _ in everybody - some)
        if missing:
            findings.append(
                Finding(
                    "name server", f"{address} agrees", Level.PROBLEM, f"does not know {', '.join(missing)}",
                    "what a client finds depends on which name server it asks", "name all name servers in namesrvAddr of every broker",
                )
            )
    return findings or [ok("cluster", "name servers agree", f"{len(everybody)} brokers")]


def groups_of_brokers(brokers: Iterable[BrokerAddress]) -> Iterator[Finding]:
    """A broker name without master takes no messages."""
    groups: dict[str, set[int]] = defaultdict(set)
    for broker in brokers:
        groups[broker.name].add(broker.id)
    for name, ids in sorted(groups.items()):
        if MASTER_ID not in ids:
            yield Finding(
                "cluster", name, Level.PROBLEM, f"only slaves ({', '.join(map(str, sorted(ids)))})", "its queues can be read and not written", "start its master again, or make a slave the master (docs/deploy.md)"
            )
        else:
            yield ok("cluster", name, "master alone" if len(ids) == 1 else f"master and {len(ids) - 1} slaves")


def broker_findings(broker: BrokerAddress, status: Mapping[str, str] | None, failure: TrioMQError | None, here: float) -> Iterator[Finding]:
    """One broker: the address that it advertises, its clock, its disk, refused requests, groups that do not agree."""
    who = f"{broker.name}:{broker.id}"
    if status is None:
        yield Finding(
            "broker", f"{who} address", Level.PROBLEM, f"{broker.address}: {' '.join(str(failure).split())}",
            "it is registered under this address, and who cannot reach it can neither send nor consume",
            "set brokerIP1 to an address or name that clients reach, publish listenPort and listenPort - 2 under the same numbers (docs/deploy.md)",
        )
        return
    yield advertised(who, broker.address)
    skew = clock_skew(status, here)
    if skew is not None:
        if abs(skew) > SKEW_SECONDS_MAX:
            yield Finding(
                "broker", f"{who} clock", Level.PROBLEM, f"{skew:+.0f} s against this machine", "store times, retention, delayed messages and searches by time are off by as much",
                "synchronise the clocks of all machines (chrony)",
            )
        else:
            yield ok("broker", f"{who} clock", f"within {SKEW_SECONDS_MAX:g} s")
    try:
        disk = max(float(status.get("commitLogDiskRatio", -1)), float(status.get("consumeQueueDiskRatio", -1)))
    except ValueError:
        disk = -1.0
    if disk >= DISK_ADVICE:
        level = Level.PROBLEM if disk >= DISK_PROBLEM else Level.ADVICE
        yield Finding("broker", f"{who} disk", level, f"{disk:.0%} used", "above 85 % files go before their time, above 90 % messages are refused", "enlarge it, or lower fileReservedTime")
    for key, value in status.items():
        if key.startswith("refused_"):
            yield Finding(
                "broker", f"{who} refusals", Level.ADVICE, f"{key.removeprefix('refused_')}: {value} since its start", "clients were answered SYSTEM_BUSY and had to try again", "docs/operations.md, busy answers"
            )
        elif key.startswith("subscriptionMismatch_"):
            yield Finding(
                "group", key.removeprefix("subscriptionMismatch_"), Level.PROBLEM, f"at {broker.name}: {value}",
                "members that do not subscribe the same skip messages that are meant for others", "give all members of the group the same topics and tags, or groups of their own",
            )


def advertised(who: str, address: str) -> Finding:
    """An address that answers here may still be one that only this machine knows."""
    host, _ = parse_address(address)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        return Finding("broker", f"{who} address", Level.ADVICE, address, "it is reached from this machine only", "set brokerIP1 when clients run elsewhere")
    return ok("broker", f"{who} address", address)


def clock_skew(status: Mapping[str, str], here: float) -> float | None:
    """Seconds that a broker's clock is ahead of ours: its start and the time since then, in whole seconds, make its now."""
    words = status.get("runtime", "").split()
    try:
        days, hours, minutes, seconds = (int(words[index]) for index in (1, 3, 5, 7))
        boot = int(status["bootTimestamp"]) / 1000
    except (KeyError, IndexError, ValueError):
        return None
    return boot + ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5 - here


async def lags(admin: Admin, lag_max: int) -> list[Finding]:
    """Groups that are far behind."""
    names = {name for some in (await admin.groups()).values.values() for name in some if not name.startswith(SYSTEM_GROUPS)}
    findings, behind = [], 0
    for name in sorted(names):
        stats = await admin.consume_stats(name)
        lag = sum(max(0, queue.broker_offset - queue.consumer_offset) for answer in stats.values.values() for queue in answer.offset_table.values())
        if lag > lag_max:
            behind += 1
            findings.append(
                Finding(
                    "group", name, Level.ADVICE, f"{lag} messages behind", "messages that are older than fileReservedTime go whether they were read or not",
                    f"mqadmin consumerProgress -g {name} shows where; add members or queues, or reset the offset",
                )
            )
    if names and not behind:
        findings.append(ok("group", "lag", f"none of {len(names)} groups is more than {lag_max} messages behind"))
    return findings
