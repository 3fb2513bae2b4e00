"""Create a group or change its settings, after a preview of what changes at each broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from starlette.responses import Response

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import Answers, problem_lines
from triomq.client.admin.changes import Change
from triomq.client.admin.documents import GROUP_FIELDS, group_document
from triomq.client.admin.missing_brokers import BrokerLeft
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.users import UserRole
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.names import GROUP_LENGTH_MAX, group_complaint

SWITCHES = ("consumeEnable", "consumeBroadcastEnable", "consumeMessageOrderly")
NUMBERS = {"retryMaxTimes": (-1, 100_000), "retryQueueNums": (0, 1024)}
NEW = group_document(SubscriptionGroupConfig(group_name=""))


@attrs.frozen
class GroupPlan:
    """The settings that a group shall have at the masters of a cluster."""

    name: str
    cluster: str
    settings: Mapping[str, Any]
    """by RocketMQ's names"""

    async def carry_out(self, admin: Admin) -> Answers[SubscriptionGroupConfig]:
        changes = {GROUP_FIELDS[name]: value for name, value in self.settings.items()}
        return await admin.update_group(
            self.name, lambda config: attrs.evolve(config, **changes), cluster=self.cluster
        )

    async def preview(self, visit: PageVisit) -> tuple[list[Change], list[str]]:
        """Return what it would change, and who did not answer."""
        async with visit.console.trial() as admin:
            problems = problem_lines(await self.carry_out(admin))
            changes, unknown = await admin.changes()
        return changes, problems + [f"{server}: {why}" for server, why in unknown.items()]


def read_plan(form: FormFields) -> GroupPlan:
    """Read the form. Raises: FormInvalid."""
    name = form.needed("name")
    if group_complaint(name) is not None:
        raise FormInvalid("form.name", "name", most=GROUP_LENGTH_MAX)
    switches = {key: form.text(key) == "true" for key in SWITCHES}
    numbers = {key: form.whole(key, *limits) for key, limits in NUMBERS.items()}
    return GroupPlan(name, form.needed("cluster"), switches | numbers)


async def show_form(
    visit: PageVisit, changes: list[Change] | None = None, problems: list[str] | None = None
) -> Response:
    """Show the form, with the present settings of a group that exists or what the user wrote."""
    name, view, present = visit.asked.text("name"), visit.console.poller.view, NEW
    row, leaders = view.groups.get(name), view.leaders()
    async with visit.console.trial() as admin:  # it does not make a broker create the group
        for broker in () if row is None else row.brokers:
            config = await admin.group_config(name, leaders[broker]) if broker in leaders else None
            if config is not None:
                present = group_document(config)
                break
    clusters = sorted({one.cluster for one in view.brokers if row and one.name in row.brokers})
    return visit.page(
        "group_change.html",
        name=name,
        exists=row is not None,
        clusters=clusters or view.clusters,
        values={key: visit.asked.text(key) or present[key] for key in (*SWITCHES, *NUMBERS)},
        switches=SWITCHES,
        numbers=NUMBERS,
        changes=changes,
        problems=problems or [],
    )


async def show_change(visit: PageVisit) -> Response:
    """Show what a filled form would change; nothing is changed."""
    if not visit.query.text("preview"):
        return await show_form(visit)
    return await show_form(visit, *await read_plan(visit.query).preview(visit))


async def change(visit: PageVisit) -> Response:
    plan = read_plan(visit.form)
    present, _ = await plan.preview(visit)

    async def do() -> None:
        for error in (await plan.carry_out(visit.console.admin)).failures.values():
            if not isinstance(error, BrokerLeft):
                raise error

    await visit.change(
        "group.update",
        plan.name,
        do,
        before={
            one.server: one.before and {key: one.before[key] for key in plan.settings}
            for one in present
        },
        after={"cluster": plan.cluster, **plan.settings},
    )
    visit.done("groups.written", name=plan.name)
    return visit.go("/group", name=plan.name)


PAGES = (
    Page("GET", "/group/change", show_change, role=UserRole.OPERATOR, form=show_form),
    Page("POST", "/group/change", change, UserRole.OPERATOR, change=True, form=show_form),
)
