"""mqstore verify: each kind of damage is found at its place, and nothing else is reported as
damage. Directories do not change, byte for byte.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stored_records import decode_record
from stores import SteppingClock, draft, tiny_config

from triomq.broker.inspect import index_check, log_check, queue_check
from triomq.broker.inspect.__main__ import main
from triomq.broker.inspect.layout import Sizes
from triomq.broker.inspect.report import FINDINGS_MAX
from triomq.broker.inspect.verify import verify
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log import scan as log_scan
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.consume_queue import FILLER
from triomq.remoting.core.findings import Level

pytestmark = pytest.mark.feature("186a")
SEGMENT = 4096
QUEUE_FILE = 200
SLOTS, ENTRIES = 16, 24
INDEX_ENTRIES_AT = 40 + 4 * SLOTS
MESSAGES = 60
SIZES = Sizes(
    segment_size=SEGMENT, queue_file_size=QUEUE_FILE, index_slots=SLOTS, index_entries=ENTRIES
)


@attrs.frozen
class Found:
    """The JSON of one run, and its exit code."""

    code: int
    document: dict[str, Any]

    def of(self, severity: str) -> list[tuple[str, str, int | None]]:
        return [
            (finding["kind"], Path(finding["file"]).name, finding["offset"])
            for finding in self.document["findings"]
            if finding["severity"] == severity
        ]

    @property
    def damage(self) -> list[tuple[str, str, int | None]]:
        return self.of("damage")

    @property
    def notes(self) -> list[str]:
        return [kind for kind, _, _ in self.of("note")]

    def text(self, kind: str) -> str:
        return next(
            f"{finding['what']}; {finding['advice']}"
            for finding in self.document["findings"]
            if finding["kind"] == kind
        )


@attrs.frozen
class Sample:
    """A store, and the positions of its messages."""

    root: Path
    capture: pytest.CaptureFixture[str]
    places: list[Any]

    def verify(self) -> Found:
        before = contents(self.root)
        sizes = {
            "mappedFileSizeCommitLog": SEGMENT,
            "mappedFileSizeConsumeQueue": QUEUE_FILE,
            "maxHashSlotNum": SLOTS,
            "maxIndexNum": ENTRIES,
        }
        code = main(
            [
                "verify",
                "--json",
                str(self.root),
                *(word for key, value in sizes.items() for word in ("-D", f"{key}={value}")),
            ]
        )
        assert contents(self.root) == before
        return Found(code, json.loads(self.capture.readouterr().out))

    def log(self, offset: int) -> tuple[Path, int]:
        """Return segment and position of a log offset."""
        return self.root / "commitlog" / f"{offset - offset % SEGMENT:020d}", offset % SEGMENT

    def queue(self, queue_id: int, number: int) -> tuple[Path, int]:
        position = number * 20
        return self.root / "consumequeue" / "T" / str(
            queue_id
        ) / f"{position - position % QUEUE_FILE:020d}", position % QUEUE_FILE

    @property
    def index_files(self) -> list[Path]:
        return sorted((self.root / "index").iterdir())


def contents(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def flip(place: tuple[Path, int], mask: int = 0x01) -> None:
    path, position = place
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def overwrite(place: tuple[Path, int], data: bytes) -> None:
    path, position = place
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


async def fill(root: Path, copy_to: Path | None = None, *, save_after: int = MESSAGES) -> list[Any]:
    """Make a store of 60 messages in two queues, some with keys; stopped in order, or copied while
    it runs, as after a kill.
    """
    places: list[Any] = []
    async with open_store(tiny_config(root), SteppingClock(step_ms=700)) as store:
        for number in range(MESSAGES):
            places += store.append(
                [
                    draft(
                        f"body {number} {'x' * 80}",
                        queue_id=number % 2,
                        unique_key=f"U{number}",
                        keys=f"a{number} b{number % 3}",
                        tags=f"tag{number % 2}",
                    )
                ]
            )
            if number + 1 == save_after:
                await store.index_syncer.save()
        if copy_to is not None:
            shutil.copytree(root, copy_to)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{"topicName":"T"}}}')
    return places


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are small, so the tests cover every edge between two blocks."""
    monkeypatch.setattr(index_check, "BLOCK_ENTRIES", 5)
    monkeypatch.setattr(queue_check, "BLOCK_ENTRIES_MAX", 3)
    monkeypatch.setattr(queue_check, "BLOCK_ENTRIES_MIN", 3)
    monkeypatch.setattr(log_check, "SEARCH_BYTES", 100)
    monkeypatch.setattr(log_scan, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(log_scan, "BATCH_RECORDS", 7)


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sample:
    return Sample(tmp_path / "store", capsys, trio.run(fill, tmp_path / "store"))


@pytest.fixture
def killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sample:
    """Make a store as after kill -9; the checkpoint covers the first 40 messages."""
    places = trio.run(partial(fill, tmp_path / "living", tmp_path / "store", save_after=40))
    return Sample(tmp_path / "store", capsys, places)


def test_our_store_is_clean(store: Sample) -> None:
    found = store.verify()
    assert (found.code, found.damage, found.notes) == (0, [], [])
    assert found.document["log"]["records"] == MESSAGES == found.document["queues"]["entries"]
    assert found.document["index"]["entries"] == MESSAGES * 4
    assert found.document["log"]["endOffset"] == store.places[-1].log_offset + store.places[-1].size


# The log


def test_every_byte_of_a_record_that_has_a_check(store: Sample) -> None:
    """Body, lengths, magic, numbers: all except times, hosts and flags, for which the format has no
    check; the finding names the record.
    """
    place = store.places[20]
    path, position = store.log(place.log_offset)
    whole = path.read_bytes()
    record = decode_record(whole, position)
    body_at = 88
    checked = [
        *range(12),
        *range(12, 16),
        *range(20, 36),
        *range(84, body_at + len(record.body) + 1),
    ]
    for at in checked:
        path.write_bytes(whole)
        flip((path, position + at))
        found = store.verify()
        assert found.code == 1, at
        kinds = {kind for kind, _, _ in found.damage}
        assert kinds <= {"record", "queue-entry", *(["queue-behind"] if 12 <= at < 16 else [])}, (
            at
        )  # another queue id
        if "record" in kinds:
            assert ("record", path.name, place.log_offset) in found.damage, at
            assert found.document["log"]["records"] == MESSAGES - 1
            assert str(place.log_offset + place.size) in found.text("record")


def test_damage_that_runs_over_several_records(store: Sample) -> None:
    first, last = store.places[20], store.places[25]
    overwrite(store.log(first.log_offset + 30), bytes(100))
    found = store.verify()
    assert found.damage[0][::2] == ("record", first.log_offset)
    overwrite(store.log(first.log_offset), b"\xff" * (last.log_offset - first.log_offset))
    found = store.verify()
    assert found.damage == [("record", store.log(first.log_offset)[0].name, first.log_offset)]
    assert f"up to {last.log_offset} " in found.text("record")
    assert "queue-into-damage" in found.notes


def test_a_blank_with_a_wrong_length_or_magic(store: Sample) -> None:
    ends = [
        (place.log_offset + place.size)
        for place, after in zip(store.places, store.places[1:])
        if after.log_offset != place.log_offset + place.size
    ]
    flip(store.log(ends[0] + 3))
    found = store.verify()
    assert found.damage == [("blank-size", store.log(ends[0])[0].name, ends[0])]
    flip(store.log(ends[0] + 3))
    flip(store.log(ends[0] + 7))
    assert store.verify().damage == [("record", store.log(ends[0])[0].name, ends[0])]


def test_a_missing_middle_segment(store: Sample) -> None:
    store.log(2 * SEGMENT)[0].unlink()
    found = store.verify()
    assert found.code == 1
    assert found.damage == [("segment-missing", f"{2 * SEGMENT:020d}", 2 * SEGMENT)]
    assert f"from {2 * SEGMENT} to {3 * SEGMENT} ({SEGMENT})" in found.text("segment-missing")
    assert "restore" in found.text("segment-missing")
    assert "queue-into-damage" in found.notes


def test_a_segment_that_was_cut(store: Sample) -> None:
    path, _ = store.log(SEGMENT)
    with path.open("r+b") as file:
        file.truncate(1000)
    found = store.verify()
    assert found.code == 1
    assert ("segment-size", path.name, SEGMENT + 1000) in found.damage
    assert [kind for kind, name, _ in found.damage if name == path.name] == [
        "segment-size",
        "record",
    ]


def test_a_last_segment_that_was_cut(store: Sample) -> None:
    last = store.places[-1]
    path, position = store.log(last.log_offset)
    with path.open("r+b") as file:
        file.truncate(position + 10)
    found = store.verify()
    assert {"segment-size", "record", "queue-ahead", "index-ahead", "checkpoint-ahead"} == {
        kind for kind, _, _ in found.damage
    }
    assert f"truncate -s {SEGMENT}" in found.text("segment-size")


def test_the_last_record_after_an_orderly_stop(store: Sample) -> None:
    """It was whole once, so this is damage, not a torn end."""
    last = store.places[-1]
    flip(store.log(last.log_offset + 90))
    found = store.verify()
    assert ("record", store.log(last.log_offset)[0].name, last.log_offset) in found.damage
    assert "torn-end" not in found.notes


def test_a_foreign_file_in_the_log(store: Sample) -> None:
    (store.root / "commitlog" / "notes.txt").write_text("x")
    assert store.verify().damage == [("foreign-file", "notes.txt", None)]


def test_a_segment_that_cannot_be_read(store: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = store.log(SEGMENT)[0]
    read_path = Disk.read_path

    def failing(disk: Disk, path: Path, size: int, offset: int) -> bytes:
        if path == bad and offset + size > 2_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_path(disk, path, size, offset)

    monkeypatch.setattr(Disk, "read_path", failing)
    found = store.verify()
    assert {(kind, name) for kind, name, _ in found.damage} == {("record", bad.name)}
    assert "Input/output error" in found.text("record")


# After a kill


def test_a_store_after_a_kill_is_not_damaged(killed: Sample) -> None:
    found = killed.verify()
    assert (found.code, found.damage) == (0, [])
    assert "abort" in found.notes


@pytest.mark.parametrize("kept", [4, 20, 88, 100, -1])
def test_a_torn_last_record_is_noted_with_its_bytes(killed: Sample, kept: int) -> None:
    last = killed.places[-1]
    size = kept if kept > 0 else last.size + kept
    overwrite(killed.log(last.log_offset + size), bytes(last.size - size))
    found = killed.verify()
    assert (found.code, found.damage) == (0, [])
    assert found.document["log"]["endOffset"] == last.log_offset
    torn = found.document["log"]["tornBytes"]
    assert 0 < torn <= size
    assert f"recovery will cut {torn} bytes" in found.text("torn-end")


def test_a_record_that_the_checkpoint_knows_was_not_torn_by_a_kill(killed: Sample) -> None:
    known = killed.places[39]
    path, position = killed.log(known.log_offset)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(SEGMENT - position))
    for place in killed.places[40:]:
        overwrite(killed.log(place.log_offset), bytes(place.size))
    found = killed.verify()
    assert "checkpoint-ahead" in {kind for kind, _, _ in found.damage}


def test_damage_in_the_middle_after_a_kill(killed: Sample) -> None:
    flip(killed.log(killed.places[50].log_offset + 90))
    found = killed.verify()
    assert found.damage == [
        ("record", killed.log(killed.places[50].log_offset)[0].name, killed.places[50].log_offset)
    ]
    assert "ends the log here" in found.text("record")


# Consume queues


def test_every_byte_of_every_queue_entry(store: Sample) -> None:
    numbers = MESSAGES // 2
    for number in range(numbers):
        for at in range(20):
            for mask in (0x01, 0x80) if at in (0, 8) else (0x01,):  # the sign bits, too
                place = store.queue(1, number)
                flip((place[0], place[1] + at), mask)
                verdict = verify(store.root, SIZES)
                damage = [
                    (finding.check, Path(finding.subject).name, finding.offset)
                    for finding in verdict.report.findings
                    if finding.level is Level.PROBLEM
                ]
                flip((place[0], place[1] + at), mask)
                where = (number, at, mask, damage)
                assert len(damage) in ((1,) if number < numbers - 1 else (1, 2)), where
                if number < numbers - 1:
                    assert damage == [("queue-entry", place[0].name, place[1])], where
    assert store.verify().damage == []


def test_a_queue_behind_the_log(store: Sample) -> None:
    for number in range(25, 30):
        overwrite(store.queue(0, number), bytes(20))
    found = store.verify()
    assert found.damage == [("queue-behind", "0", 500)]
    assert "5 messages from number 25" in found.text("queue-behind")


def test_missing_entries_of_a_queue(store: Sample) -> None:
    overwrite(store.queue(0, 7), bytes(40))
    assert store.verify().damage == [
        ("queue-entry", store.queue(0, 7)[0].name, 140),
        ("queue-entry", store.queue(0, 7)[0].name, 160),
    ]


def test_a_queue_ahead_of_the_log(store: Sample) -> None:
    end = store.places[-1].log_offset + store.places[-1].size
    overwrite((store.queue(0, 29)[0], 180), struct.pack(">qiq", end + 200, 150, 0))
    found = store.verify()
    assert {kind for kind, _, _ in found.damage} == {"queue-ahead", "queue-behind"}
    assert str(end + 200) in found.text("queue-ahead")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda store: store.queue(0, 10)[0].unlink(), {"queue-file-missing", "queue-entry"}),
        (lambda store: store.queue(0, 0)[0].unlink(), {"queue-begins-late"}),
        (lambda store: shutil.rmtree(store.root / "consumequeue" / "T" / "0"), {"queue-behind"}),
        (
            lambda store: store.queue(0, 10)[0].write_bytes(
                store.queue(0, 10)[0].read_bytes()[:70]
            ),
            {"queue-size", "queue-entry"},
        ),
        (
            lambda store: (store.root / "consumequeue" / "T" / "0" / "x").write_text("x"),
            {"foreign-file"},
        ),
    ],
    ids=["middle file", "first file", "folder", "cut", "foreign"],
)
def test_files_of_a_queue(
    store: Sample, change: Callable[[Sample], None], expected: set[str]
) -> None:
    change(store)
    found = store.verify()
    assert found.code == 1
    assert {kind for kind, _, _ in found.damage} == expected


def test_queues_and_index_that_were_deleted_on_purpose(store: Sample) -> None:
    shutil.rmtree(store.root / "consumequeue")
    shutil.rmtree(store.root / "index")
    found = store.verify()
    assert (found.code, found.damage) == (0, [])
    assert {"queues-missing", "index-missing-files"} <= set(found.notes)


async def test_a_topic_that_was_deleted_and_created_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its old messages are in the log without entries, and its numbers begin at 0 again: neither
    is damage.
    """
    root = tmp_path / "store"
    async with open_store(tiny_config(root), SteppingClock()) as store:
        for number in range(20):
            store.append([draft(f"{number}", topic=topic) for topic in ("T", "gone")])
        await store.indexed.wait_reached(store.appended.value)
        store.delete_topic("T")
        store.delete_topic("gone")
        store.append([draft(f"{number}") for number in range(5)])
    found = Sample(root, capsys, []).verify()
    assert (found.code, found.damage) == (0, [])
    assert found.document["queues"]["recordsBeforeRecreation"] == 20
    assert found.document["queues"]["recordsOfDeletedTopics"] == 20


def test_expired_entries_are_not_damage(store: Sample) -> None:
    """Retention deletes the oldest segments; entries of queues and index stay while their file has
    younger entries.
    """
    store.log(0)[0].unlink()
    store.log(SEGMENT)[0].unlink()
    found = store.verify()
    assert (found.code, found.damage, found.notes) == (0, [], [])
    gone = sum(place.log_offset < 2 * SEGMENT for place in store.places)
    assert found.document["queues"]["expiredEntries"] == gone
    assert found.document["index"]["expiredEntries"] == 4 * gone
    assert found.document["log"]["firstOffset"] == 2 * SEGMENT


def test_a_queue_that_begins_with_fillers(store: Sample) -> None:
    """A slave that began late: its log lacks the first messages, and fillers stand for their
    entries.
    """
    store.log(0)[0].unlink()
    gone = sum(place.log_offset < SEGMENT for place in store.places) // 2
    for number in range(gone):
        overwrite(store.queue(0, number), FILLER)
    found = store.verify()
    assert (found.code, found.damage) == (0, [])
    assert found.document["queues"]["fillers"] == gone
    overwrite(store.queue(0, gone + 1), FILLER)
    assert [kind for kind, _, _ in store.verify().damage] == ["queue-entry"]


def test_queues_that_share_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Multi-dispatch (LMQ): entries of other topics' queues that the record names."""

    async def make() -> list[Any]:
        async with open_store(tiny_config(tmp_path / "store"), SteppingClock()) as store:
            names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
            return store.append([draft("shared", extra=names)])

    (place,) = trio.run(make)
    sample = Sample(tmp_path / "store", capsys, [])
    for name, log_offset in (("%LMQ%a", place.log_offset), ("%LMQ%b", place.log_offset + 1)):
        folder = sample.root / "consumequeue" / name / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(
            struct.pack(">qiq", log_offset, place.size, 0).ljust(QUEUE_FILE, b"\0")
        )
    found = sample.verify()
    assert [
        finding["file"].split("/")[-3]
        for finding in found.document["findings"]
        if finding["severity"] == "damage"
    ] == ["%LMQ%b"] * len(found.damage)
    assert found.code == 1


# The key index


def test_every_byte_of_an_index_file(store: Sample) -> None:
    for path in store.index_files[0], store.index_files[1]:
        whole = path.read_bytes()
        unused = range(INDEX_ENTRIES_AT, INDEX_ENTRIES_AT + 20)  # entry 0
        unchecked = [
            *unused,
            *range(INDEX_ENTRIES_AT + 20 + 12, INDEX_ENTRIES_AT + 20 + 16),
            14,
            15,
        ]  # seconds of entry 1, less than a second of the end
        for at in range(len(whole)):
            if at in unchecked:
                continue
            flip((path, at), 0x01)
            verdict = verify(store.root, SIZES)
            damage = {
                finding.check
                for finding in verdict.report.findings
                if finding.level is Level.PROBLEM
            }
            path.write_bytes(whole)
            assert damage, at
            assert damage <= {"index-header", "index-slot", "index-entry", "index-missing"}, (
                at,
                damage,
            )
            if at < 40:
                assert "index-header" in damage, at
            elif at < INDEX_ENTRIES_AT:
                assert damage == {"index-slot"} or damage == {"index-slot", "index-header"}, at
            else:
                assert "index-entry" in damage, at


def test_a_flipped_slot_and_entry_are_named(store: Sample) -> None:
    path = store.index_files[0]
    slot = next(number for number in range(SLOTS) if path.read_bytes()[40 + 4 * number + 3])
    flip((path, 40 + 4 * slot + 3))
    assert store.verify().damage == [("index-slot", path.name, 40 + 4 * slot)]
    flip((path, 40 + 4 * slot + 3))
    entry = INDEX_ENTRIES_AT + 20 * 5
    flip((path, entry + 11))
    assert ("index-entry", path.name, entry) in store.verify().damage


def test_an_index_file_that_was_cut_or_removed(store: Sample) -> None:
    path = store.index_files[2]
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    found = store.verify()
    assert ("index-size", path.name, len(whole) - 7) in found.damage
    path.unlink()
    found = store.verify()
    assert {kind for kind, _, _ in found.damage} == {"index-missing"}
    assert (
        found.document["findingsCountedOnly"] + FINDINGS_MAX == found.document["damage"]
        or found.document["damage"] <= FINDINGS_MAX
    )


# The advice of the findings


def restart(root: Path) -> None:
    async def open_and_close() -> None:
        async with open_store(tiny_config(root), SteppingClock()):
            pass

    trio.run(open_and_close)


def test_queues_deleted_after_a_kill_are_rebuilt_from_the_first_message(killed: Sample) -> None:
    shutil.rmtree(killed.root / "consumequeue")
    restart(killed.root)
    found = killed.verify()
    assert (found.code, found.document["queues"]["entries"]) == (0, MESSAGES)


@pytest.mark.parametrize("state", ["store", "killed"])
def test_the_advice_repairs_the_store(state: str, request: pytest.FixtureRequest) -> None:
    """Follow the advice for queues and index and start once: all entries exist again, from the
    first message on.
    """
    sample: Sample = request.getfixturevalue(state)
    flip(sample.queue(0, 3))
    found = sample.verify()
    assert "delete the folder consumequeue and the file checkpoint" in found.text("queue-entry")
    shutil.rmtree(sample.root / "consumequeue")
    (sample.root / "checkpoint").unlink()
    restart(sample.root)
    found = sample.verify()
    assert (found.code, found.document["queues"]["entries"]) == (0, MESSAGES)
    flip((sample.index_files[0], 40 + 4 * SLOTS + 20 * 5 + 11))
    assert "delete the folder index" in sample.verify().text("index-entry")
    shutil.rmtree(sample.root / "index")
    restart(sample.root)
    found = sample.verify()
    assert (found.code, found.damage, found.document["index"]["entries"]) == (0, [], MESSAGES * 4)


# Small files


def test_checkpoint(store: Sample) -> None:
    path = store.root / "checkpoint"
    whole = path.read_bytes()
    overwrite((path, 0), struct.pack(">q", 1 << 60))
    assert store.verify().damage == [("checkpoint-ahead", "checkpoint", 0)]
    path.write_bytes(whole[:100])
    assert store.verify().damage == [("checkpoint-size", "checkpoint", 100)]
    path.unlink()
    found = store.verify()
    assert (found.code, found.notes) == (0, ["checkpoint-missing"])


def test_config_tables(store: Sample) -> None:
    path = store.root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@g":{0:12}}}')  # as fastjson writes it
    assert store.verify().damage == []
    path.write_text('{"offsetTable":{"T@g":{0:1')
    found = store.verify()
    assert found.damage == [("config", path.name, None)]
    assert "restore" in found.text("config")
    path.with_name(path.name + ".bak").write_text('{"offsetTable":{}}')
    assert "brokers take consumerOffset.json.bak" in store.verify().text("config")
