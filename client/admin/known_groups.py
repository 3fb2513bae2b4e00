"""Whether a consumer group exists at any broker."""

from __future__ import annotations

from difflib import get_close_matches
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
    if is_new(group, answers):
        known = sorted({name for names in answers.values.values() for name in names})
        near = get_close_matches(group, known, n=3)
        spelling = f"the nearest: {', '.join(near)}" if near else SPELLING
        raise SubjectMissing(f"a group {group!r}", f"{spelling}; {more}")
    return answers


def is_new(group: str, answers: Answers[list[str]]) -> bool:
    """Return whether all brokers answered, and none knows the group."""
    return not answers.failures and not any(group in names for names in answers.values.values())
