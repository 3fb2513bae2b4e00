"""The command doctor: look for known problems on this machine and in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.doctor.machine import MachineFacts
from triomq.client.admin.doctor.machine_checks import examine
from triomq.client.admin.documents import count_of
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.findings_table import finding_documents, findings_table
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.core.findings import Finding, Level, count_levels

ORDER = (Level.PROBLEM, Level.ADVICE, Level.UNKNOWN, Level.OK)


async def doctor(values: Values) -> Result:
    """Run the checks. A problem means exit code 1, with --strict advice does, too."""
    # Imports Trio: start-up time of the help.
    from triomq.client.admin.doctor.cluster_checks import examine_cluster

    findings = (
        [] if values.flag("cluster") else examine(machine_of(values), write=values.flag("fsync"))
    )
    findings += await examine_cluster(values)
    return result(findings, strict=values.flag("strict"), everything=values.flag("all"))


def machine_of(values: Values) -> MachineFacts:
    """This machine, with the folder and the process that the options name."""
    return MachineFacts(
        folder=Path(values.text("dir")).expanduser(), pid=str(values.maybe_number("pid") or "self")
    )


def result(
    findings: Sequence[Finding], *, strict: bool = False, everything: bool = False
) -> Result:
    """Return the findings, problems first; those that are ok or unknown only with --all."""
    counts = count_levels(findings)
    shown = [
        finding
        for level in (ORDER if everything else ORDER[:2])
        for finding in findings
        if finding.level is level
    ]
    document = {
        "ok": counts[Level.PROBLEM] == 0,
        "findings": finding_documents(findings, "area"),
        "counts": {level.value: counts[level] for level in ORDER},
    }
    summary = ", ".join(f"{counts[level]} {level.value}" for level in ORDER)
    table = findings_table(shown, {level: level.value for level in ORDER})
    return Result(
        document=document,
        blocks=[*([table] if shown else []), f"{count_of(len(findings), 'check')}: {summary}"],
        bad_news=counts[Level.PROBLEM] > 0 or (strict and counts[Level.ADVICE] > 0),
    )


COMMANDS: Sequence[AdminCommand] = (
    AdminCommand("doctor", local=doctor).with_options(
        Option("--dir FOLDER", "folder of the store", default="~/store"),
        Option(
            "--pid PID",
            "process whose limits are checked, for instance a broker (default: this process)",
            whole(1),
        ),
        Option(
            "--fsync", "also measure the time of a small write with fsync; writes to the folder"
        ),
        Option("--cluster", "check the cluster only"),
        Option(
            "--lag MESSAGES",
            "largest lag of a group that is ok, in messages",
            whole(0),
            default=100_000,
        ),
        Option("--all", "list all findings"),
        Option("--strict", "advice counts as a problem"),
    ),
)
