"""What ``dlqShow``, ``dlqResend`` and ``messageReplay`` have in common: options and results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.documents import count_of
from triomq.client.admin.resend.message_copy import home_topic
from triomq.client.admin.resend.selection import MessageSelection, SelectedMessages, tags_of
from triomq.client.admin.times import milliseconds_text
from triomq.client.mqadmin.core.command import period
from triomq.client.mqadmin.core.result import Document, Result, Table, table_of

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.resend.resending import ResendOutcome

SENT_MAX = 10_000
"""copies that one call sends"""
LAST_SEND_SECONDS, LAST_SEND_SHARE = 1.0, 0.1
"""time before the end of ``--timeout`` in which no copy is begun: seconds, and largest share"""
FROM, TO = period("--from", "--to")
KEY = Option("--key KEY", "only messages with this key")
TAG = Option("--tag TAGS", "only messages with one of these tags, 'A || B'", tags_of)
ID = Option(
    "--id ID",
    "only the message with this id (of its producer, of its place, or of the place where it lay"
    " first)",
)
BROKER_NAME = Option("-b, --brokerName NAME", "only what lies at this broker, by name")
FILTERS: Sequence[Option] = (FROM, TO, KEY, TAG, ID, BROKER_NAME)
SENDING: Sequence[Option] = (
    Option(
        "--limit N",
        "maximum number of messages, oldest first",
        whole(1, SENT_MAX),
        default=SENT_MAX,
    ),
    Option(
        "--rate N",
        "messages per second (without it: each when the one before is stored)",
        whole(1, 10_000),
    ),
)


def selection_of(options: Values) -> MessageSelection:
    """Return what the options ask for. Raises: UsageError."""
    begin, end = options.value("from"), options.value("to")
    if begin is not None and end is not None and begin > end:
        raise UsageError("--from is after --to: exchange them")
    return MessageSelection(
        limit=options.number("limit"),
        begin_ms=begin,
        end_ms=end,
        key=options.maybe_text("key"),
        tags=options.value("tag") or frozenset(),
        message_id=options.maybe_text("id"),
    )


def search_notes(found: SelectedMessages, *, go_on: bool = True) -> list[str]:
    """Return warnings about what was not searched.

    ``go_on``: False if another warning says where to go on, which is earlier.
    """
    notes = []
    if go_on and found.cut_ms is not None:
        notes.append(
            f"the search ended after {found.examined} messages, the limit of one call; go on with"
            f" --from {found.go_on_ms}, or choose fewer with --from, --to or -b"
        )
    elif go_on and found.go_on_ms is not None:
        notes.append(
            f"there are more than the {len(found.messages)} messages of --limit; go on with --from"
            f" {found.go_on_ms}"
        )
    notes += [
        f"messages of broker {broker} are left out; go on with -b {shlex.quote(broker)}"
        for broker in found.failures
    ]
    return notes


def sending_ends_at(options: Values) -> float:
    """Return the moment on Trio's clock after which no copy is tried; call it at the beginning.

    Requests end at ``--timeout``. A send that is cut off then may be stored or not, so none begins
    shortly before.
    """
    import trio  # not for the help: start-up time

    timeout = options.number("timeout")
    return trio.current_time() + timeout - min(LAST_SEND_SECONDS, timeout * LAST_SEND_SHARE)


async def send_found(
    admin: Admin,
    options: Values,
    found: SelectedMessages,
    about: Document,
    *,
    ends_at: float,
    topic: str | None,
    group: str = "",
) -> Result:
    """Send copies of the found messages, and return the command's result.

    ``about``: the first members of the document. ``topic``: where they go; None: home.

    Raises: UsageError if the rate does not fit into ``--timeout``.
    """
    import trio  # not for the help: start-up time

    from triomq.client.admin.holding_admin import HoldingAdmin  # likewise
    from triomq.client.admin.resend.copy_sender import CopySender  # likewise
    from triomq.client.admin.resend.resending import Resending, SendRate  # likewise

    rate, timeout = SendRate(options.maybe_number("rate")), options.number("timeout")
    needed = rate.seconds(len(found.messages))
    if needed > ends_at - trio.current_time():
        raise UsageError(
            f"{len(found.messages)} messages at --rate {rate.per_second} take {needed:.0f} s, more"
            f" than --timeout {timeout} leaves: give --timeout {min(3600, int(needed) + 30)}, a"
            " higher --rate or a lower --limit"
        )

    resending = Resending(
        sender=CopySender(admin),
        topic_of=home_topic if topic is None else lambda message: topic,
        group=group,
        rate=SendRate(None) if isinstance(admin, HoldingAdmin) else rate,
        clock=trio.current_time,
        sleep=trio.sleep,
        ends_at=ends_at,
    )
    outcome = await resending.send([message for _, message in found.messages])
    return sent_result(found, outcome, about, resending.sender.silent)


def sent_result(
    found: SelectedMessages,
    outcome: ResendOutcome,
    about: dict[str, object],
    silent: dict[str, str],
) -> Result:
    """Return what was sent and what was not."""
    sent = [
        {
            "msgId": message.message_id,
            "offsetMsgId": message.offset_message_id,
            "topic": topic,
            "brokerName": place.broker_name,
            "queueId": place.queue_id,
            "newOffsetMsgId": place.offset_message_id,
        }
        for message, topic, place in outcome.sent
    ]
    failed = [
        {"msgId": message.message_id, "offsetMsgId": message.offset_message_id, "reason": reason}
        for message, reason in outcome.failed
    ]
    go_on_ms = outcome.go_on_ms if outcome.left else found.go_on_ms
    blocks: list[Table | str] = []
    if sent:
        columns = {
            "MsgId": "msgId",
            "Topic": "topic",
            "Broker Name": "brokerName",
            ">QID": "queueId",
            "New OffsetID": "newOffsetMsgId",
        }
        blocks.append(table_of(sent, columns))
    if failed:
        blocks.append(table_of(failed, {"MsgId": "msgId", "Not Sent Because": "reason"}))
    counts = [f"{len(sent)} of {len(found.messages)} sent"]
    counts += [f"{len(failed)} failed"] if failed else []
    counts += [f"{len(outcome.left)} not tried"] if outcome.left else []
    notes = search_notes(found, go_on=not outcome.left)
    if failed:
        notes.append(
            f"{count_of(len(failed), 'message')} cannot be sent, {failed[0]['msgId']} because:"
            f" {failed[0]['reason']}; then send each with --id"
        )
    if outcome.left:
        notes.append(
            f"not tried: {count_of(len(outcome.left), 'message')}, because {outcome.stopped}; go on"
            f" with --from {go_on_ms} ({milliseconds_text(go_on_ms or 0)})"
        )
    # More than the user wanted is no failure, more than one call sends is one.
    too_many = found.cut_ms is not None or (
        found.go_on_ms is not None and len(found.messages) == SENT_MAX
    )
    unfinished = bool(failed or outcome.left) or too_many
    failures = {**silent, **found.failures}
    asked = {place.broker_name for _, _, place in outcome.sent} | failures.keys()
    return Result(
        document={
            **about,
            "found": len(found.messages),
            "sent": sent,
            "failed": failed,
            "left": len(outcome.left),
            "goOnTimestamp": go_on_ms,
        },
        blocks=[*blocks, "; ".join(counts)],
        failures=failures,
        asked=max(found.asked, len(asked)),
        notes=notes,
        partial=unfinished and bool(sent),
        bad_news=unfinished and not sent,
    )
