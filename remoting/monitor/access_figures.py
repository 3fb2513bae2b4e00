"""Figures of access control, of the audit log and of quotas, the same for every kind of server."""

from __future__ import annotations

from collections.abc import Iterator

from triomq.remoting.access.control import Check
from triomq.remoting.access.quotas import Quotas
from triomq.remoting.audit.decision_log import outcomes
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.monitor.metrics import Family, Sample, family


def access_figures(notes: DecisionNotes) -> Iterator[Family]:
    """Yield what was refused, and what became of the entries of the audit log if there is one."""
    if notes.control.authenticates or notes.control.admin_networks:
        yield family(
            "triomq_access_refusals_total",
            [Sample(notes.control.refusals[check], {"check": check.value}) for check in Check],
        )
    if notes.log is not None:
        yield family(
            "triomq_audit_entries_total",
            [Sample(count, {"outcome": outcome}) for outcome, count in outcomes(notes.log)],
        )


def quota_figures(quotas: Quotas) -> Family:
    """Return what was refused because of quotas."""
    return family(
        "triomq_quota_refusals_total",
        [
            Sample(count, {"quota": quota, "unit": unit})
            for (quota, unit), count in quotas.refused.items()
        ],
    )
