"""doctor: look for what is known to hurt, on this machine and in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triomq.client.admin.arguments import Option, Values, filled, whole
from triomq.client.admin.command import Column, Command, Result, Table, request_seconds
from triomq.client.admin.doctor.cluster_checks import Approach, examine_cluster
from triomq.client.admin.doctor.finding import Finding, Level
from triomq.client.admin.doctor.machine import Machine
from triomq.client.admin.doctor.machine_checks import examine
from triomq.client.config import namesrv_addresses
from triomq.client.errors import NoNameServer, SettingsError
from triomq.remoting.client.access import read_credentials
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls


async def doctor(values: Values) -> Result:
    """Examine; problems end with exit code 1, advice does not unless --strict says so."""
    findings = [] if values.flag("cluster") else examine(machine_of(values), write=values.flag("fsync"))
    approach = cluster_approach(values)
    if approach is not None:
        findings += await examine_cluster(approach, values.number("lag"))
    return result(findings, strict=values.flag("strict"), everything=values.flag("all"))


def machine_of(values: Values) -> Machine:
    """This machine, with the folder and the process that the options name."""
    return Machine(folder=Path(values.text("dir")).expanduser(), pid=str(values.maybe_number("pid") or "self"))


def cluster_approach(values: Values) -> Approach | None:
    """How to reach the cluster, None when no name server is named anywhere and --cluster does not insist."""
    try:
        namesrvs = namesrv_addresses(values.maybe_text("namesrvAddr"))
    except NoNameServer:
        if values.flag("cluster"):
            raise
        return None
    tls, credentials = values.maybe_text("tls"), values.maybe_text("credentials")
    try:
        options = {
            "timeout_seconds": request_seconds(values.number("timeout")),
            "tls": Tls.from_file(tls) if tls is not None else None,
            "credentials": read_credentials(Path(credentials)) if credentials is not None else None,
        }
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    return Approach(namesrvs=namesrvs, options=options)


def result(findings: Sequence[Finding], *, strict: bool = False, everything: bool = False) -> Result:
    """Say first what is wrong; what is well is counted, and listed with --all."""
    order = [Level.PROBLEM, Level.ADVICE, Level.UNKNOWN, Level.OK]
    counts = {level: sum(finding.level is level for finding in findings) for level in order}
    shown = [finding for level in order for finding in findings if finding.level is level and (everything or level in order[:2])]
    rows = [[finding.level.value, finding.area, finding.check, finding.found, "; ".join(filter(None, (finding.why, finding.fix)))] for finding in shown]
    columns = (Column("Level"), Column("Area"), Column("Check"), Column("Found"), Column("Why, and what to do"))
    summary = ", ".join(f"{count} {level.value}" for level, count in counts.items())
    document = {
        "ok": counts[Level.PROBLEM] == 0,
        "counts": {level.value: count for level, count in counts.items()},
        "findings": [
            {"area": finding.area, "check": finding.check, "level": finding.level.value, "found": finding.found, "why": finding.why or None, "fix": finding.fix or None}
            for finding in findings
        ],
    }
    bad = counts[Level.PROBLEM] > 0 or (strict and counts[Level.ADVICE] > 0)
    return Result(document=document, blocks=[*([Table(columns, rows)] if rows else []), f"{len(findings)} checks: {summary}"], bad_news=bad)


COMMANDS: Sequence[Command] = (
    Command(
        name="doctor",
        group="cluster",
        summary="look for what is known to hurt, on this machine (limits, memory, disk, clock, ports, Python) and in the cluster, each with its fix",
        local=doctor,
        options=(
            Option("", "dir", "where the store lies or will lie", filled, default="~/store", placeholder="FOLDER", ours=True),
            Option("", "pid", "process whose limits count, such as a running broker's (default: this one)", whole(1), placeholder="PID", ours=True),
            Option("", "fsync", "also measure how long a small write takes to be safe; writes to the folder", None, ours=True),
            Option("", "cluster", "the cluster only", None, ours=True),
            Option("", "lag", "messages that a group may be behind", whole(0), default=100_000, placeholder="MESSAGES", ours=True),
            Option("", "all", "list also what is well", None, ours=True),
            Option("", "strict", "advice counts as a problem", None, ours=True),
        ),
        examples=("doctor", "doctor --dir /data/store --fsync --all", "doctor --cluster -n 'ns1:9876;ns2:9876' --json"),
        document='{"ok", "counts": {level: n}, "findings": [{"area", "check", "level": "problem"|"advice"|"unknown"|"ok", "found", "why", "fix"}]}',
        remarks=(
            "The exit code is 1 when there is a problem among the findings; advice alone does not change it unless --strict is given.",
            "The cluster is looked at when name servers are known, from this machine: run it where the clients run to see what they see.",
        ),
    ),
)
