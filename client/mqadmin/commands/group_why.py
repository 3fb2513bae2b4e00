"""The command groupWhy: what holds a consumer group back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.doctor.group_checks import GroupFacts, hindrances
from triomq.client.admin.documents import count_of
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.findings_table import finding_documents, findings_table
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.core.findings import Finding, Level

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def group_why(admin: Admin, options: Values) -> Result:
    # Imported here: its module needs Trio, which the help of a command does without.
    from triomq.client.admin.doctor.group_facts import read_group_facts

    seconds, timeout = options.number("seconds"), options.number("timeout")
    if seconds >= timeout:
        raise UsageError(
            f"--seconds {seconds} leaves no time for answers within --timeout {timeout}: give"
            f" --timeout {seconds + 30}"
        )
    facts = await read_group_facts(admin, options.text("group"), seconds)
    findings = hindrances(facts)
    holding = [one for one in findings if one.level in (Level.PROBLEM, Level.ADVICE)]
    document = {
        "group": facts.group,
        "ok": not holding,
        "members": len(facts.members),
        "lag": facts.lag,
        "queues": len(facts.second.offsets),
        "seconds": round(facts.seconds, 3),
        "findings": finding_documents(findings, "subject"),
    }
    table = findings_table(findings, {level: level.value for level in Level})
    return Result(
        document=document,
        blocks=[*([table] if findings else []), summary(facts, holding)],
        failures=dict(facts.silent_brokers),
        asked=facts.asked,
        bad_news=bool(holding),
    )


def summary(facts: GroupFacts, holding: list[Finding]) -> str:
    """Return the last line of the text."""
    behind = count_of(facts.lag, "message")
    state = (
        f"group {facts.group}: {len(facts.members)} members, {behind} behind in"
        f" {len(facts.second.offsets)} queues"
    )
    if not holding:
        return f"Nothing holds it back; {state}"
    return f"{len(holding)} finding{'s' if len(holding) > 1 else ''}; {state}"


COMMANDS = (
    AdminCommand("groupWhy", group_why).with_options(
        Option("GROUP", "the group", required=True),
        Option(
            "--seconds N", "time between the two samples of its offsets", whole(1, 600), default=5
        ),
    ),
)
