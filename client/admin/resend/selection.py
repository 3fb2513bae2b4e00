"""Which stored messages a command wants, and how far one call searches for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from triomq.client.admin.resend.message_copy import origin_id
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.consuming.tag_expressions import subscription
from triomq.remoting.protocol.record import StoredMessage

EXAMINED_MAX = 100_000
"""messages that one call examines, in all queues together"""
KEPT_BYTES_MAX = 256 << 20
"""bytes of messages that one call keeps: 100,000 small ones, or 256 MiB of large ones"""


def tags_of(text: str) -> frozenset[str]:
    """Read ``A || B``; an empty set stands for all tags."""
    try:
        return subscription("", text, 0).tags
    except LocalProtocolError as error:
        raise ValueError(str(error)) from None


@attrs.frozen(kw_only=True)
class MessageSelection:
    """What a message must have to be wanted, and how many are wanted."""

    limit: int
    begin_ms: int | None = None
    """stored then or later"""
    end_ms: int | None = None
    """stored then or earlier"""
    key: str | None = None
    tags: frozenset[str] = frozenset()
    """empty: any tag, or none"""
    message_id: str | None = None
    """its producer's, that of its place in a log, or that of the message it is a copy of"""

    @property
    def named(self) -> str:
        """The id or key that was asked for, for a message; empty without one."""
        if self.message_id is not None:
            return f"id {self.message_id}"
        return "" if self.key is None else f"key {self.key!r}"

    def wants(self, message: StoredMessage) -> bool:
        """Return whether a message is one of those that are wanted."""
        if self.begin_ms is not None and message.store_timestamp < self.begin_ms:
            return False
        if self.end_ms is not None and message.store_timestamp > self.end_ms:
            return False
        if self.tags and message.tag not in self.tags:
            return False
        if self.key is not None and self.key not in message.keys:
            return False
        return self.message_id is None or self.message_id in (
            message.message_id,
            message.offset_message_id,
            origin_id(message),
        )


@attrs.define
class QueueSearch:
    """The search of one queue, from its oldest wanted message on."""

    selection: MessageSelection
    examined_max: int
    bytes_max: int
    found: list[StoredMessage] = attrs.field(factory=list)
    examined: int = 0
    kept_bytes: int = 0
    cut_ms: int | None = None
    """store time of the last message that was examined, if the share of this queue was used up"""
    over: bool = False
    """no later message of the queue can be wanted"""

    def take(self, batch: Sequence[StoredMessage]) -> None:
        """Examine the next messages, until the search is over."""
        for message in batch:
            self.examined += 1
            if self.selection.wants(message):
                self.found.append(message)
                self.kept_bytes += message.size
            if len(self.found) > self.selection.limit:
                self.over = True  # one more than wanted: so there are more
                return
            if self.examined >= self.examined_max or self.kept_bytes >= self.bytes_max:
                self.cut_ms, self.over = message.store_timestamp, True
                return


@attrs.frozen(kw_only=True)
class SelectedMessages:
    """The messages that a search found, oldest first."""

    messages: Sequence[tuple[str, StoredMessage]]
    """name of the broker, and message"""
    examined: int
    cut_ms: int | None
    """the limit of one call ended the search at this store time; None: it saw all"""
    go_on_ms: int | None
    """store time of the first message that was left out; None: there are no more"""
    failures: Mapping[str, str] = attrs.field(factory=dict)
    """broker that was not searched to the end → reason; its messages are left out"""
    asked: int = 0
    """number of brokers"""


def together(
    searches: Mapping[MessageQueue, QueueSearch],
    selection: MessageSelection,
    failures: Mapping[str, str],
) -> SelectedMessages:
    """Return the oldest messages of all queues.

    A queue that was not searched to its end may hold messages that are older than those found in
    other queues. So the result ends at the earliest such time, and the next call goes on there.
    """
    whole = {queue: one for queue, one in searches.items() if queue.broker_name not in failures}
    cuts = [one.cut_ms for one in whole.values() if one.cut_ms is not None]
    cut_ms = min(cuts, default=None)
    found = sorted(
        ((queue, message) for queue, one in whole.items() for message in one.found),
        key=lambda pair: (pair[1].store_timestamp, pair[0], pair[1].queue_offset),
    )
    known = [pair for pair in found if cut_ms is None or pair[1].store_timestamp <= cut_ms]
    taken = known[: selection.limit]
    rest = known[selection.limit :]
    return SelectedMessages(
        messages=[(queue.broker_name, message) for queue, message in taken],
        examined=sum(one.examined for one in whole.values()),
        cut_ms=cut_ms,
        go_on_ms=rest[0][1].store_timestamp if rest else cut_ms,
        failures=dict(failures),
        asked=len({queue.broker_name for queue in searches} | failures.keys()),
    )
