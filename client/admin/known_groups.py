"""Whether a consumer group exists at any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.errors import SubjectMissing

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers


async def check_group(admin: Admin, group: str, more: str = "") -> Answers[list[str]]:
    """Return the groups of each broker; ``more``: another way out than a better name.

    Raises: SubjectMissing if all brokers answer and none knows the group.
    """
    answers = await admin.groups()
    if not answers.failures and not any(group in names for names in answers.values.values()):
        fix = "check the spelling; `mqadmin group lag` shows all groups"
        raise SubjectMissing(f"a group {group!r}", f"{fix}; {more}" if more else fix)
    return answers
