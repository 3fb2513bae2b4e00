"""Where check points and acknowledgements go: on a master, as messages for its revive topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import attrs

from triomq.broker.services.pop.revive_records import revive_draft
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.log.durability import Durability, OnDurable
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.check_point import Ack, CheckPoint
from triomq.remoting.protocol.names import TIMER_TOPIC

QueueKey = tuple[str, str, int]
"""(group, topic, queue id)"""


class PopRecord(NamedTuple):
    """A record of POP, its queue of the revive topic, and when it is due there (ms)."""

    record: CheckPoint | Ack
    revive_queue: int
    due_ms: int


class PopLog(Protocol):
    """Keeps the records of POP. An *end* is a number that grows with each append."""

    def append(self, records: Sequence[PopRecord]) -> int:
        """Store records, all or none; return their end.

        Raises: StoreUnavailable, StoreIoError. Checkpoint: never.
        """
        ...

    def on_disk(self, end: int) -> bool:
        """Return whether the disk has all records up to an end."""
        ...

    def is_safe(self, end: int) -> bool:
        """Return whether they are as safe as messages whose sender has its answer."""
        ...

    def durable_now(self, end: int) -> bool:
        """Return whether an acknowledgement up to an end may be answered."""
        ...

    def when_durable(self, end: int, on_durable: OnDurable) -> None:
        """Call ``on_durable`` once ``durable_now`` is true.

        Raises: FlushFailed. Checkpoint: never.
        """
        ...

    @property
    def timed_end(self) -> int:
        """The offset behind the last record in the topic of timers; 0: none since the start."""
        ...

    def forget_position(self, key: QueueKey) -> None:
        """Note that the position of a queue was set, whatever was popped. Checkpoint: never."""
        ...

    @property
    def positions(self) -> Collection[QueueKey]:
        """The queues whose positions ``forget_position`` would forget."""


@attrs.define(eq=False)
class RevivePopLog:
    """The records in a master's own log."""

    store: MessageStore
    timers: Timers
    durability: Durability
    clock_ms: Callable[[], int]
    revive_topic: str
    timed_end: int = attrs.field(default=0, init=False)
    stored: Counter[tuple[str, str, str]] = attrs.field(factory=Counter, init=False)
    """Records by their kind (CK and ACK, as Java calls them), topic and group."""

    def draft(self, record: PopRecord) -> Draft:
        """Return a record as a message: a timed one, unless its time has come."""
        now = self.clock_ms()
        host = self.store.config.store_host
        draft = revive_draft(record.record, self.revive_topic, record.revive_queue, now, host)
        if record.due_ms > now:
            self.timers.delay(draft, record.due_ms)
        self.store.check_draft(draft)
        return draft

    def append(self, records: Sequence[PopRecord]) -> int:
        drafts = [self.draft(record) for record in records]
        places = self.store.append(drafts)
        for draft, place in zip(drafts, places):
            if draft.topic == TIMER_TOPIC:
                self.timed_end = place.queue_offset + 1
        self.stored.update(
            (kind_of(each.record), each.record.topic, each.record.group) for each in records
        )
        return places[-1].log_offset + places[-1].size

    def on_disk(self, end: int) -> bool:
        return end <= self.store.flushed.value

    def is_safe(self, end: int) -> bool:
        return self.on_disk(end) and self.durability.durable_now(end)

    def durable_now(self, end: int) -> bool:
        return self.durability.durable_now(end)

    def when_durable(self, end: int, on_durable: OnDurable) -> None:
        self.durability.when_durable(end, on_durable)

    def forget_position(self, key: QueueKey) -> None:
        """The offset is in the table of offsets only."""

    @property
    def positions(self) -> Collection[QueueKey]:
        return ()


def kind_of(record: CheckPoint | Ack) -> str:
    """Return the name of a record's kind in Java's metrics."""
    return "CK" if isinstance(record, CheckPoint) else "ACK"
