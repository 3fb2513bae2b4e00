"""Whether a consumer group exists at any broker, and has members."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers
from triomq.client.admin.errors import SubjectMissing
from triomq.client.core.errors import GroupNotFound, GroupOffline
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

SPELLING = "check the spelling; `mqadmin group lag` shows all groups"


async def check_group(admin: Admin, group: str, more: str) -> Answers[list[str]]:
    """Return the groups of each broker; ``more``: another way out than a better name.

    Raises: SubjectMissing if all brokers answer and none knows the group.
    """
    answers = await admin.groups()
    if is_new(group, answers):
        known = sorted({name for names in answers.values.values() for name in names})
        near = get_close_matches(group, known, n=3)
        spelling = f"the nearest: {', '.join(near)}" if near else SPELLING
        raise SubjectMissing(f"a group {group!r}", f"{spelling}; {more}")
    return answers


def is_new(group: str, answers: Answers[list[str]]) -> bool:
    """Return whether all brokers answered, and none knows the group."""
    return not answers.failures and not any(group in names for names in answers.values.values())


def unknown_group(group: str) -> GroupNotFound:
    """Return the error of a group that no broker knows."""
    reason = f"no broker knows group {group!r}"
    return GroupNotFound(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, reason, "", "")


async def connections_of(admin: Admin, group: str) -> Answers[ConsumerConnection]:
    """Return the members of a group by broker address; empty if it is offline."""
    try:
        return await admin.consumer_connections(group)
    except GroupOffline:
        return Answers({}, {})
