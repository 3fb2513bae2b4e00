"""What a store was given and what it promised, kept outside of it, and a check whether a directory
keeps the promises.

Everything is compared with the raw bytes of the files, parsed here and not by the product: an
acknowledged message is there, equal, at its offset; no message is there that was never sent, or
twice; queue offsets are dense; neither queue files nor key index are ahead of the log; searches by
time find what they should; no time of the checkpoint is later than that of a record behind it.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import attrs
from store_times import check_found_by_key, check_offset_by_time
from stores import read_all

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.store import MessageStore

MAGIC, BLANK_MAGIC = 0xDAA320A7, 0xCBD43194
FIXED = struct.Struct(">iIiiiqqiq8sq8siqi")
"""All of a record with IPv4 hosts up to its body."""


@attrs.frozen
class Record:
    """One record of the log, as its bytes have it."""

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    body: bytes
    properties: bytes
    born_timestamp: int


@attrs.frozen
class Promise:
    """A message, and its place as the store named it."""

    draft: Draft
    place: Appended


@attrs.frozen
class Moment:
    """How far the promises had come at one time."""

    appended: int
    acknowledged: int
    shown: int
    flushed: int
    first_offset: int


@attrs.define(eq=False)
class Ledger:
    """Lists that only grow, so that a ``Moment`` is a few numbers."""

    attempted: list[Draft] = attrs.field(factory=list)
    """Everything that was ever handed to the store; bodies are unique."""
    refused: list[Draft] = attrs.field(factory=list)
    appended: list[Promise] = attrs.field(factory=list)
    """The store took it: it survives the death of the process."""
    acknowledged: list[Promise] = attrs.field(factory=list)
    """Whether it was acknowledged as safe."""
    shown: list[Record] = attrs.field(factory=list)
    """A consumer has read it."""
    flushed: int = 0
    first_offset: int = 0

    def moment(self, store: MessageStore | None) -> Moment:
        """Now; ``store`` is None while none is open."""
        if store is not None:
            self.flushed, self.first_offset = store.flushed.value, store.log.first_offset
        return Moment(
            len(self.appended),
            len(self.acknowledged),
            len(self.shown),
            self.flushed,
            self.first_offset,
        )

    def after_crash(self, config: StoreConfig) -> None:
        """A new life begins: what was taken and not acknowledged may be gone, and its place may be
        given to another message.
        """
        there = {(record.log_offset, record.body) for record in log_records(config)}
        self.appended = [
            promise
            for promise in self.appended
            if (promise.place.log_offset, promise.draft.body) in there
        ]

    async def check(
        self, config: StoreConfig, store: MessageStore, moment: Moment, *, power: bool, sync: bool
    ) -> list[Record]:
        """Compare a recovered store with what had been promised; the records of its log. Raises
        AssertionError.
        """
        records = log_records(config)
        check_checkpoint_times(config, records)
        by_offset = {record.log_offset: record for record in records}
        first = store.log.first_offset
        assert first <= moment.first_offset, (
            f"the log begins at {first}, nothing behind {moment.first_offset} was ever deleted"
        )
        sure = list(self.acknowledged[: moment.acknowledged]) if sync or not power else []
        sure += [
            promise
            for promise in self.appended[: moment.appended]
            if not power or promise.place.log_offset + promise.place.size <= moment.flushed
        ]
        for promise in sure:
            if promise.place.log_offset >= first:
                found = by_offset.get(promise.place.log_offset)
                assert found is not None, (
                    f"lost: {promise.draft.body[:12]!r} at {promise.place.log_offset} was promised"
                )
                check_equal(found, promise.draft, promise.place)
        if sync or not power:
            for seen in self.shown[: moment.shown]:
                assert seen.log_offset < first or by_offset.get(seen.log_offset) == seen, (
                    f"a consumer has read {seen.body[:12]!r}, and now it is gone"
                )
        sent = {draft.body: draft for draft in self.attempted}
        for body, count in Counter(record.body for record in records).items():
            assert count == 1, f"{body[:12]!r} is there {count} times"
            assert body in sent, f"{body[:12]!r} was never sent"
        for record in records:
            check_equal(record, sent[record.body], None)
        await check_queues(config, store, records)
        await check_index(config, store, records)
        return records


def check_checkpoint_times(config: StoreConfig, records: list[Record]) -> None:
    """Java's recovery begins at a segment by these times alone, before its version 5.5.0."""
    log_ms, queue_ms, _, _, _, marked = struct.unpack_from(
        ">6q", (config.root / "checkpoint").read_bytes()
    )
    for record in records:
        assert record.log_offset <= marked or record.store_timestamp >= min(log_ms, queue_ms), (
            f"the checkpoint is of {min(log_ms, queue_ms)}, but {record.body[:12]!r} behind it of"
            f" {record.store_timestamp}"
        )


def check_equal(record: Record, draft: Draft, place: Appended | None) -> None:
    assert (
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.born_timestamp,
    ) == (draft.topic, draft.queue_id, draft.body, draft.properties, draft.born_timestamp), (
        f"{record.log_offset}: the record is not what was sent"
    )
    if place is not None:
        assert (record.size, record.queue_offset, record.store_timestamp) == (
            place.size,
            place.queue_offset,
            place.store_timestamp,
        )


async def check_queues(config: StoreConfig, store: MessageStore, records: list[Record]) -> None:
    queues: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        queues.setdefault((record.topic, record.queue_id), []).append(record)
    for (topic, queue_id), expected in queues.items():
        found = await read_all(store, topic, queue_id)
        assert [(message.queue_offset, message.log_offset, message.body) for message in found] == [
            (record.queue_offset, record.log_offset, record.body) for record in expected
        ], f"{topic}-{queue_id} reads other messages than the log has"
        first, end = expected[0].queue_offset, expected[-1].queue_offset + 1
        assert [record.queue_offset for record in expected] == list(range(first, end)), (
            f"{topic}-{queue_id} has gaps"
        )
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (
            first,
            end,
        )
        assert store.queue_table.queues[topic, queue_id].next_offset == end
        times = [record.store_timestamp for record in expected]
        await check_offset_by_time(store, topic, queue_id, times)
    for (topic, queue_id), queue in store.queue_table.queues.items():
        if (topic, queue_id) not in queues:
            assert (
                store.min_offset(topic, queue_id)
                == store.max_offset(topic, queue_id)
                == queue.next_offset
            ), f"{topic}-{queue_id} shows what the log has not"
    by_number = {(record.topic, record.queue_id, record.queue_offset): record for record in records}
    for path in sorted((config.root / "consumequeue").glob("*/*/*")):
        data = path.read_bytes()
        for number, (log_offset, size, _) in enumerate(
            struct.iter_unpack(">qiq", data), int(path.name) // 20
        ):
            if size and log_offset >= store.log.first_offset:
                record = by_number.get((path.parts[-3], int(path.parts[-2]), number))
                assert record is not None, f"{path}: entry {number} is ahead of the log"
                assert (record.log_offset, record.size) == (log_offset, size), (
                    f"{path}: entry {number}"
                )


async def check_index(config: StoreConfig, store: MessageStore, records: list[Record]) -> None:
    starts = {record.log_offset for record in records}
    entries = 40 + 4 * config.index_slot_count
    for path in sorted((config.root / "index").iterdir()):
        data = path.read_bytes()
        (next_entry,) = struct.unpack_from(">i", data, 36)
        for number in range(1, max(1, next_entry)):
            (log_offset,) = struct.unpack_from(">q", data, entries + 20 * number + 4)
            assert log_offset < store.log.first_offset or log_offset in starts, (
                f"{path.name}: entry {number} is ahead of the log: {log_offset}"
            )
    for record in records:
        keys = dict(pair.split("\1") for pair in record.properties.decode().split("\2") if pair)
        if "UNIQ_KEY" in keys:
            await check_found_by_key(
                store, record.topic, keys["UNIQ_KEY"], record.store_timestamp, record.body
            )


def log_records(config: StoreConfig) -> list[Record]:
    """Every record of the log, by its bytes."""
    return scan_log(config.commitlog, config.segment_size_bytes)[0]


def scan_log(directory: Path, segment_size: int, start: int = 0) -> tuple[list[Record], int]:
    """The records from log offset ``start`` on, and the end of the log, behind which there must be
    nothing but zeros. Raises AssertionError.
    """
    records: list[Record] = []
    end = start
    ended = False
    for path in sorted(directory.iterdir()):
        base = int(path.name)
        if base + segment_size <= start:
            continue
        data = path.read_bytes()
        assert len(data) == segment_size, path
        at = max(0, start - base)
        while not ended and at < len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == BLANK_MAGIC:
                assert size == len(data) - at, f"{path}: the BLANK at {at} says {size}"
                end = base + segment_size
                break
            if magic != MAGIC:
                ended = True
                break
            records.append(parse(data[at : at + size], base + at))
            at += size
            end = base + at
        if ended:
            assert data.count(0, at) == len(data) - at, (
                f"{path}: there are bytes behind the end of the log, at {at} or later"
            )
    return records, end


def parse(data: bytes, log_offset: int) -> Record:
    fields = FIXED.unpack_from(data)
    (
        size,
        _,
        _,
        queue_id,
        _,
        queue_offset,
        own_offset,
        _,
        born_timestamp,
        _,
        store_timestamp,
        _,
        _,
        _,
        body_size,
    ) = fields
    assert own_offset == log_offset, f"the record at {log_offset} says that it is at {own_offset}"
    position = FIXED.size + body_size
    body = data[FIXED.size : position]
    topic = data[position + 1 : position + 1 + data[position]].decode()
    position += 1 + data[position]
    (length,) = struct.unpack_from(">h", data, position)
    properties = data[position + 2 : position + 2 + length]
    assert position + 2 + length == size, f"the lengths of the record at {log_offset} do not add up"
    return Record(
        log_offset,
        size,
        topic,
        queue_id,
        queue_offset,
        store_timestamp,
        body,
        properties,
        born_timestamp,
    )


def folder_contents(config: StoreConfig) -> dict[str, object]:
    """Files that recovery may change, by name. Of the key index what it knows: made anew, it may be
    divided among its files in another way.
    """
    found: dict[str, object] = {}
    entries: set[tuple[int, int]] = set()
    for path in sorted(config.root.rglob("*")):
        if path.is_file() and path.parent.name == "index":
            data = path.read_bytes()
            (next_entry,) = struct.unpack_from(">i", data, 36)
            entries |= {
                struct.unpack_from(">iq", data, 40 + 4 * config.index_slot_count + 20 * number)
                for number in range(1, next_entry)
            }  # type: ignore[misc]
        elif path.is_file() and path.name not in ("abort", "lock"):
            found[str(path.relative_to(config.root))] = path.read_bytes()
    return found | {"index": entries}
