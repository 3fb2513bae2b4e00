"""Batch: records as the log has them and as every index takes them.

The pairs of draft and place come straight from an append, or were read back from the log. Then they
have no bodies, which no index reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.queues.consume_queue import ConsumeQueue


class Batch(msgspec.Struct, eq=False):
    """Drafts and their places in log order: all records of the log in [start, end)."""

    drafts: Sequence[Draft]
    places: list[Appended]
    start: int
    end: int
    queues: list[ConsumeQueue] | None = None
    """The queue of each draft, if it is known already."""

    def parts(self, count: int) -> Iterator[Batch]:
        """Yield the same in batches of ``count`` records at most."""
        for first in range(0, len(self.places), count):
            past = first + count
            last = past >= len(self.places)
            yield Batch(
                self.drafts[first:past],
                self.places[first:past],
                self.places[first].log_offset if first else self.start,
                self.end if last else self.places[past].log_offset,
                self.queues[first:past] if self.queues is not None else None,
            )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches that follow each other in the log as one batch."""
    if len(batches) == 1:
        return batches[0]
    drafts = [draft for batch in batches for draft in batch.drafts]
    places = [place for batch in batches for place in batch.places]
    return Batch(drafts, places, batches[0].start, batches[-1].end)
