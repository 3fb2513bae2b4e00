"""Judge the dead letters of a group: some, or most of what it consumes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from triomq.client.admin.documents import count_of
from triomq.client.admin.resend.message_copy import origin_topic
from triomq.client.admin.times import seconds_text
from triomq.remoting.core.findings import Finding, advice, problem
from triomq.remoting.protocol.message_properties import FAILURE
from triomq.remoting.protocol.names import dead_letter_topic
from triomq.remoting.protocol.record import StoredMessage

MOST_SHARE = 0.5
"""dead letters that are this share of what was consumed mean that the group itself is broken"""


@attrs.frozen(kw_only=True)
class GivenUp:
    """The dead letters of a group; a count is that of the brokers that answered."""

    kept: int
    """all that the brokers still have"""
    last_hour: int
    consumed_last_hour: int | None
    """messages of the last hour that the group consumed; it leaves out those of a backlog. None:
    the group has too many queues to ask about each
    """
    newest: StoredMessage | None


def dead_letter_findings(
    group: str, dead: GivenUp | None, succeeding_per_second: float
) -> Iterator[Finding]:
    """Find dead letters of the last hour; ``succeeding_per_second``: what handlers now handle."""
    if dead is None or not dead.last_hour:
        return
    known = dead.consumed_last_hour
    consumed = max(known or 0, round(succeeding_per_second * 3600))
    most = (known is not None or consumed > 0) and dead.last_hour >= consumed * MOST_SHARE
    kept = f" ({dead.kept} are kept)" if dead.kept > dead.last_hour else ""
    share = f", of {count_of(known, 'message')} that it consumed" if known else ""
    reason = "" if dead.newest is None else dead.newest.properties.get(FAILURE, "")
    yield (problem if most else advice)(
        dead_letter_topic(group),
        "dead-letters",
        f"{count_of(dead.last_hour, 'dead letter')} in the last hour{kept}{share}"
        + (f"; the last: {_last_letter(dead.newest)}" if dead.newest is not None else "")
        + (f", because of {reason}" if reason else ""),
        ("" if reason else "see the members' logs for the error, ")
        + f"mend the handler, then `mqadmin dlq resend {group} --only-group`; `mqadmin dlq show"
        f" {group}` shows them",
        "what the group gives up is handled by no member any more",
    )


def _last_letter(message: StoredMessage) -> str:
    """Return which message was given up last, when, and after how many tries."""
    keys = f" (keys {' '.join(message.keys)})" if message.keys else ""
    tries = count_of(message.reconsume_times, "retry")
    return (
        f"{message.message_id}{keys} of {origin_topic(message) or 'an unknown topic'}, given up at"
        f" {seconds_text(message.store_timestamp)} after {tries}"
    )
