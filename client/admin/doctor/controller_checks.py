"""Checks of controllers, and of what they know: masters and sync state sets.

The settings of brokers in controller mode name the controllers, Java's too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import Answers
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.controllers import groups_at, metadata_at, named_controllers
from triomq.remoting.core.findings import Finding, ok, problem, unknown
from triomq.remoting.protocol.bodies.controller import GroupReplicas
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader


async def controllers(
    admin: Admin, brokers: Iterable[BrokerAddress], settings: Mapping[str, Mapping[str, str]]
) -> list[Finding]:
    """Ask all controllers that the brokers name; ``settings``: of brokers, by address."""
    names, addresses = named_controllers(brokers, settings)
    known = await admin.for_each(addresses, lambda address: metadata_at(admin, address))
    findings = list(members(known))
    leaders = {found.controller_leader_address for found in known.values.values()} - {None, ""}
    tables = await admin.for_each(
        sorted(filter(None, leaders)), lambda leader: groups_at(admin, leader, names)
    )
    for leader, failure in tables.failures.items():
        findings.append(unknown("controller", f"{leader} groups", " ".join(str(failure).split())))
    groups = {name: group for table in tables.values.values() for name, group in table.items()}
    return findings + [group_finding(name, group) for name, group in sorted(groups.items())]


def members(known: Answers[ControllerMetadataHeader]) -> Iterator[Finding]:
    """Check that each controller answers, and knows who leads."""
    for address, failure in known.failures.items():
        fix = "start it again with its folder, or remove it from controllerAddr of the brokers"
        why = "failovers need a majority of the controllers"
        yield problem("controller", address, " ".join(str(failure).split()), fix, why)
    for address, found in known.values.items():
        leader = found.controller_leader_address
        if leader:
            text = "leads" if found.is_leader else f"follows {leader}"
            yield ok("controller", address, text)
        else:
            fix = "start a majority of controllerDLegerPeers, and let them reach each other"
            why = "no slave becomes master when a master dies"
            yield problem("controller", address, "knows no leader", fix, why)


def group_finding(name: str, group: GroupReplicas) -> Finding:
    """Check that a group has a living master, and each of its brokers all confirmed messages."""
    check, lead = f"{name} sync state set", group.master_broker_id
    master = next((one for one in group.in_sync_replicas if one.broker_id == lead), None)
    missing = sorted(
        {one.broker_id: one for one in group.not_in_sync_replicas}
        | {one.broker_id: one for one in group.in_sync_replicas if not one.alive}
    )
    ids = ", ".join(map(str, missing))
    if master is None or not master.alive:
        fix = "start a broker of its set: `mqadmin broker replicas` names them (docs/failover.md)"
        found = "no living master" + (f"; not alive or not in the set: {ids}" if ids else "")
        return problem("controller", check, found, fix, "the group takes no messages")
    if missing:
        return problem(
            "controller",
            check,
            f"master {master.broker_id}; not alive or not in the set: {ids}",
            "start it again, and see its log; if it is gone for good: `mqadmin controller clean`",
            "it cannot take over, and with fewer members than minInSyncReplicas (2) no message is"
            " taken",
        )
    count = len(group.in_sync_replicas)
    return ok("controller", check, f"{count} of {count}, master epoch {group.master_epoch}")
