"""Whether all members of a group subscribe the same. SANS-IO.

If not, queues go to members that do not want them, and messages are skipped without a trace.
``Wants`` is what the heartbeat of one member subscribes, in a form that compares equal whenever the
effect is equal (the order of tags and blanks do not count).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.remoting.protocol.bodies.heartbeat import TAG, SubscriptionData
from triomq.remoting.protocol.consuming.tag_expressions import ALL_TAGS

Wants = frozenset[tuple[str, str]]
"""(topic, expression) of everything that a member subscribes."""

CLIENTS_NAMED_MAX = 3


def wants_of(subscriptions: Iterable[SubscriptionData]) -> Wants:
    """Return what a heartbeat subscribes, in comparable form."""
    return frozenset((one.topic, expression_of(one)) for one in subscriptions)


def expression_of(subscription: SubscriptionData) -> str:
    if subscription.expression_type and subscription.expression_type != TAG:
        return f"{subscription.expression_type}: {' '.join(subscription.sub_string.split())}"
    if not subscription.sub_string.strip() or subscription.sub_string.strip() == ALL_TAGS:
        return ALL_TAGS
    return " || ".join(sorted({tag.strip() for tag in subscription.sub_string.split("||")} - {""}))


def mismatch_text(members: Mapping[str, Wants]) -> str | None:
    """Return the differences between members, by client id; None if all subscribe the same."""
    if len(set(members.values())) < 2:
        return None
    shared = frozenset.intersection(*members.values())
    parties: dict[Wants, list[str]] = {}
    for client_id, wants in sorted(members.items()):
        parties.setdefault(wants - shared, []).append(client_id)
    return "; ".join(
        f"{clients_text(clients)}: {wants_text(wants)}"
        for wants, clients in sorted(parties.items(), key=lambda party: party[1])
    )


def clients_text(clients: list[str]) -> str:
    more = len(clients) - CLIENTS_NAMED_MAX
    return ", ".join(clients[:CLIENTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def wants_text(wants: Wants) -> str:
    return (
        ", ".join(f"{topic} [{expression}]" for topic, expression in sorted(wants))
        or "nothing more"
    )
