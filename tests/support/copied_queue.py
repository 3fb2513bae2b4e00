"""A queue of keyed messages, as a commit log has it, and what its compaction log must show."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import attrs
from stored_records import stored_record

from triomq.broker.store.compaction.compaction_log import (
    CompactionLog,
    Copy,
    key_of,
    open_compaction_log,
)
from triomq.broker.store.compaction.compaction_pass import CompactionPass
from triomq.broker.store.compaction.copy_file import CopySizes
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.queues.batch_queue import BATCH_ENTRY
from triomq.remoting.protocol.record import LOG_OFFSET_AT
from triomq.remoting.protocol.record_reader import read_record

TINY = CopySizes(1400, 46 * 9)
KEYS = ("a", "b", "two words", "d", "e")


def keyed_record(offset: int, key: str | None, body: bytes, store_ms: int = 0) -> bytes:
    properties = {"TAGS": "t"} | ({} if key is None else {"KEYS": key})
    return stored_record(
        body,
        topic="table",
        queue_id=2,
        offset=offset,
        log_offset=offset * 1000,
        properties=properties,
        store_ms=store_ms,
    )


@attrs.define(eq=False)
class CopiedQueue:
    """``records``: all messages ever, by queue offset. The log has those from ``log_min`` on."""

    root: Path
    disk: Disk
    sizes: CopySizes = TINY
    records: list[bytes] = attrs.field(factory=list)
    log_min: int = 0
    clock_ms: int = 0
    since: int = -1
    log: CompactionLog = attrs.field(init=False)
    passing: CompactionPass | None = attrs.field(default=None, init=False)

    def open(self) -> None:
        self.log = open_compaction_log(self.disk, self.root, "table", 2, self.sizes, self.log_min)
        self.passing = None

    def send(self, choose: random.Random) -> None:
        self.clock_ms += choose.randint(0, 3)
        body = b"" if choose.random() < 0.25 else choose.randbytes(choose.randint(1, 200))
        record = keyed_record(len(self.records), choose.choice(KEYS), body, self.clock_ms)
        self.records.append(record)

    def copy(self) -> None:
        """Copy what has no copy yet."""
        for record in self.records[max(self.log.end_offset, self.log_min) :]:
            self.log.append(record)

    def retain(self, choose: random.Random) -> None:
        """Let the commit log forget messages: as many as it may."""
        if self.log.durable_end > self.log_min:
            self.log_min = choose.randint(self.log_min, self.log.durable_end)

    def work(self, choose: random.Random) -> None:
        """Do a step of a pass."""
        if self.passing is None:
            self.passing = CompactionPass(
                self.log, self.since, choose.choice((1, 3, 100)), self.clock_ms - 4
            )
        self.passing.step(choose.choice((1, 400, 100_000)))
        if self.passing.done:
            self.since, self.passing = self.passing.reached, None

    def act(self, choose: random.Random) -> None:
        """Do something, once in a while a stop and a start."""
        what = choose.random()
        if what < 0.5:
            self.send(choose)
            self.copy()
        elif what < 0.6:
            self.log.sync()
        elif what < 0.7:
            self.retain(choose)
        elif what < 0.98:
            self.work(choose)
        else:
            self.log.close()
            self.open()
            self.copy()

    # Checks

    def check(self) -> list[Copy]:
        """Compare what readers get with the messages. All of them must have been copied."""
        copies = self.log.read(0, 10_000, 1 << 30)
        assert [copy.queue_offset for copy in copies] == sorted(
            {copy.queue_offset for copy in copies}
        )
        for copy in copies:
            assert without_place(copy.record) == without_place(self.records[copy.queue_offset])
        table = newest(copy.record for copy in copies)
        assert table == newest(self.records)
        start = random.Random(len(self.records)).randint(0, len(self.records))
        assert (
            self.log.read(start, 3, 1 << 30)
            == [copy for copy in copies if copy.queue_offset >= start][:3]
        )
        check_layout(self.root, "table", 2, self.sizes)
        return copies


JAVA_FOLDERS = ("compactionLog", "compactionCq")


def check_layout(root: Path, topic: str, queue_id: int, sizes: CopySizes) -> None:
    """Check what a Java broker relies on: see its recovery and ``sanityCheck``."""
    folders = [root / "compaction" / kind / topic / str(queue_id) for kind in JAVA_FOLDERS]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for name in names[0]:
        log, queue = ((folder / name).read_bytes() for folder in folders)
        assert (len(log), len(queue)) == (sizes.log_bytes, sizes.queue_bytes)
        assert int(name) % sizes.log_bytes == 0
        position = int(name)
        for entry in BATCH_ENTRY.iter_unpack(queue):
            if entry[0] < 0 or not entry[1]:
                break
            assert entry[0] == position
            found = read_record(log, position - int(name), len(log))
            assert not isinstance(found, str)
            assert (found.size, found.queue_offset, found.log_offset) == (
                entry[1],
                entry[4],
                position,
            )
            position += found.size


def without_place(record: bytes) -> bytes:
    return record[:LOG_OFFSET_AT] + record[LOG_OFFSET_AT + 8 :]


def newest(records: Iterable[bytes]) -> dict[str, bytes]:
    """Return the value of each key that has one."""
    table: dict[str, bytes] = {}
    for record in records:
        message = read_record(record, 0, len(record))
        assert not isinstance(message, str)
        key = key_of(message)
        assert key is not None
        table.pop(key, None)
        if message.body:
            table[key] = message.body
    return table
