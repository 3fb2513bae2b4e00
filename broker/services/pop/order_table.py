"""OrderTable: the last pop of each queue by each orderly group, in consumerOrderInfo.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import trio

from triomq.broker.services.persisted import PersistedTable, load_table, pretty_steps
from triomq.broker.services.pop.ordered_pop import OrderedPop
from triomq.remoting.protocol.bodies.pop import OrderedPopTable
from triomq.remoting.protocol.bodies.schema import write_plain

GATHER_SECONDS = 1.0
"""After a kill the messages of the last second come again, in order."""
UNUSED_MS = 24 * 3600 * 1000

QueueKey = tuple[str, str, int]
"""(group, topic, queue id)"""


@attrs.define(eq=False)
class OrderTable(PersistedTable):
    """(group, topic, queue id) -> its last pop."""

    steady: Callable[[], float]
    pops: dict[QueueKey, OrderedPop] = attrs.field(factory=dict)

    def put(self, key: QueueKey, info: OrderedPop) -> None:
        self.pops[key] = info
        self.touch()

    def forget(self, key: QueueKey) -> None:
        """Let a queue give messages at once: its offset was reset."""
        if self.pops.pop(key, None) is not None:
            self.touch()

    def encode(self) -> bytes:
        return b"".join(self.steps())

    def steps(self) -> Iterator[bytes]:
        now = self.steady()
        for key, info in list(self.pops.items()):
            if info.last_ms < info.now_ms(now) - UNUSED_MS:
                del self.pops[key]
        queues: dict[str, list[tuple[int, OrderedPop]]] = {}
        for (group, topic, queue_id), info in self.pops.items():
            queues.setdefault(f"{topic}@{group}", []).append((queue_id, info))
        table = {name: partial(_rows, rows) for name, rows in queues.items()}
        return pretty_steps({"table": table}, depth=3)


def _rows(queues: list[tuple[int, OrderedPop]]) -> Iterator[tuple[int, object]]:
    for queue_id, info in queues:
        yield queue_id, write_plain(info.encode())


def open_order_table(
    directory: Path, clock_ms: Callable[[], int], steady: Callable[[], float] = trio.current_time
) -> OrderTable:
    """Load the table. Raises: DamagedTable.

    A pop that the clock calls later than now begins again: ``OrderedPop.restart``.
    """
    path = directory / "consumerOrderInfo.json"
    loaded = load_table(path, OrderedPopTable.decode) or OrderedPopTable()
    pops, changed = {}, False
    for name, queues in loaded.table.items():
        topic, _, group = name.partition("@")
        for queue_id, body in queues.items():
            info = OrderedPop.decode(body)
            if info is not None and group:
                changed = info.restart(steady(), clock_ms()) or changed
                pops[group, topic, queue_id] = info
    table = OrderTable(path, steady, pops, gather_seconds=GATHER_SECONDS)
    if changed:
        table.touch()
    return table
