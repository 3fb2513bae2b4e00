"""``mqadmin can USER ACTION RESOURCE``: whether a user may do that, and which rule decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.accounts import same_reason
from triomq.client.admin.arguments import Option, Values, one_of_words
from triomq.client.admin.decisions import ASKABLE, decided, read_resource
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.places import BROKERS, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.access.resources import Action, Need

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def can(admin: Admin, options: Values) -> Result:
    """Compute the decision at each broker that the options name."""
    name, source = options.text("user"), options.text("from")
    need = Need(options.value("resource"), (Action[options.text("action").upper()],))
    addresses = await chosen_brokers(admin, options)
    answers = await admin.for_each(
        addresses, lambda address: decided(admin, address, name, need, source)
    )
    same_reason(answers)
    rows = [{"broker": address, **found} for address, found in answers.values.items()]
    table = table_of(rows, {"Broker Addr": "broker", "Allowed": "allowed", "Why": "why"})
    document = {
        "user": name,
        "action": need.actions[0].text,
        "resource": str(need.resource),
        "from": source,
        "brokers": answers.values,
    }
    refused = any(not row["allowed"] for row in rows)
    return attrs.evolve(answered(answers, document, [table]), bad_news=refused)


COMMANDS = (
    AdminCommand("can", can).with_options(
        Option("USER", "name of the user", required=True),
        Option("ACTION", f"one of {', '.join(ASKABLE)}", one_of_words(*ASKABLE), required=True),
        Option("RESOURCE", "Topic:NAME, Group:NAME or Cluster:NAME", read_resource, required=True),
        *BROKERS,
        Option("--from IP", "the address that the request comes from", default="127.0.0.1"),
    ),
)
