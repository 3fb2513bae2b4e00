"""Whether a consumer group exists at any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.errors import SubjectMissing

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers

SPELLING = "check the spelling; `mqadmin group lag` shows all groups"


async def check_group(admin: Admin, group: str, more: str) -> Answers[list[str]]:
    """Return the groups of each broker; ``more``: another way out than a better name.

    Raises: SubjectMissing if all brokers answer and none knows the group.
    """
    answers = await admin.groups()
    if unknown_at_all(group, answers):
        raise SubjectMissing(f"a group {group!r}", f"{SPELLING}; {more}")
    return answers


async def new_group_notes(admin: Admin, group: str) -> list[str]:
    """Return a warning if all brokers answer and none knows the group."""
    if unknown_at_all(group, await admin.groups()):
        return [f"no broker knows group {group!r}: it gets offsets all the same; {SPELLING}"]
    return []


def unknown_at_all(group: str, answers: Answers[list[str]]) -> bool:
    """Return whether all brokers answered, and none knows the group."""
    return not answers.failures and not any(group in names for names in answers.values.values())
