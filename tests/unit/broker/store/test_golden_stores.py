"""Stores written by Java brokers, opened by ours: every message, every queue entry, every key; and
the bytes of the index, rebuilt from the log.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from golden_data import GOLDEN, RELEASES, logged_messages
from stored_records import decode_record
from stores import SteppingClock, draft_of, find_bodies, golden_config, read_all, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Appended
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.java_hash import tags_code
from triomq.remoting.protocol.sys_flags import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_MASK

RELEASE = pytest.mark.parametrize("release", RELEASES)


def unpacked(release: str, directory: Path) -> StoreConfig:
    """A copy of the store as Java left it."""
    with tarfile.open(GOLDEN / "store" / f"java-{release}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return golden_config(directory / f"java-{release}")


def messages_of(release: str) -> list[dict[str, Any]]:
    return [row for row in logged_messages(release) if "blank" not in row]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def make_abort(config: StoreConfig) -> None:
    (config.root / "abort").touch()


def remove_checkpoint(config: StoreConfig) -> None:
    (config.root / "checkpoint").unlink()


def remove_queues(config: StoreConfig) -> None:
    for path in sorted((config.root / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def remove_index(config: StoreConfig) -> None:
    for path in (config.root / "index").iterdir():
        path.unlink()


STATES = {
    "clean stop": (),
    "crash": (make_abort,),
    "crash without checkpoint": (make_abort, remove_checkpoint),
    "queues deleted": (remove_queues,),
    "crash, queues deleted": (make_abort, remove_queues),
    "index deleted": (remove_index,),
    "crash, all indexes deleted": (make_abort, remove_queues, remove_index),
}


@RELEASE
@pytest.mark.parametrize("state", STATES)
@pytest.mark.feature("29b", "29c", "41a", "41c", 46)
async def test_a_java_store_yields_every_message_entry_and_key(
    release: str, state: str, tmp_path: Path
) -> None:
    config = unpacked(release, tmp_path)
    for change in STATES[state]:
        change(config)
    rows = messages_of(release)
    flags = {row["sysFlag"] for row in rows}
    assert any(flag & COMPRESSED for flag in flags)
    assert any(flag & TRANSACTION_MASK == TRANSACTION_COMMIT for flag in flags)
    for _ in range(2):  # as Java left it, and as we leave it
        async with open_store(config) as store:
            assert store.appended.value == rows[-1]["offset"] + rows[-1]["size"]
            found = {}
            for topic, queue_ids in store.queues().items():
                for queue_id in queue_ids:
                    messages = await read_all(store, topic, queue_id)
                    assert [message.queue_offset for message in messages] == list(
                        range(store.max_offset(topic, queue_id))
                    )
                    found.update({message.log_offset: message for message in messages})
            for row in rows:
                message = found.pop(row["offset"])
                assert (message.topic, message.queue_id, message.queue_offset) == (
                    row["topic"],
                    row["queueId"],
                    row["queueOffset"],
                )
                assert message.body.hex() == row["body"]
                assert message.properties == row["properties"]
                assert message.offset_message_id == row["offsetMsgId"]
                assert message.store_timestamp == row["storeTimestamp"]
                assert message.sys_flag == row["sysFlag"]
            assert found == {}
            for row in rows:
                body = bytes.fromhex(row["body"])
                for key in [
                    row["properties"].get("UNIQ_KEY", ""),
                    *row["properties"].get("KEYS", "").split(" "),
                ]:
                    assert not key or body in await find_bodies(store, row["topic"], key)


@pytest.mark.feature(39)
@RELEASE
async def test_queue_files_keep_every_byte(release: str, tmp_path: Path) -> None:
    config = unpacked(release, tmp_path)
    before = contents(config.root / "consumequeue")
    remove_queues(config)
    async with open_store(config):
        pass
    assert contents(config.root / "consumequeue") == before


@pytest.mark.feature("44a", "44b")
@RELEASE
def test_index_files_keep_every_byte(release: str, tmp_path: Path) -> None:
    """Indexing Java's log gives Java's index files, for batches of any size."""
    config = unpacked(release, tmp_path)
    expected = [path.read_bytes() for path in sorted((config.root / "index").iterdir())]
    records = [decode_record(bytes.fromhex(record)) for record in raw_records(release, config)]
    for size in (1, 3, 64, 1_000):
        index = KeyIndex(golden_config(tmp_path / str(size)), Disk(), SteppingClock(step_ms=1_000))
        for start in range(0, len(records), size):
            part = records[start : start + size]
            places = [
                Appended(
                    record.log_offset, record.size, record.queue_offset, record.store_timestamp
                )
                for record in part
            ]
            drafts = [draft_of(record) for record in part]
            if release.startswith("4."):
                for draft in drafts:
                    draft.tags = None  # indexed since 5.5.0 only
            index.apply(Batch(drafts, places, 0, 0))
        index.close()
        assert [path.read_bytes() for path in sorted(index.directory.iterdir())] == expected


def raw_records(release: str, config: StoreConfig) -> list[str]:
    data = b"".join(path.read_bytes() for path in sorted(config.commitlog.iterdir()))
    return [data[row["offset"] : row["offset"] + row["size"]].hex() for row in messages_of(release)]


@RELEASE
async def test_appending_java_s_messages_again_gives_java_s_records(
    release: str, tmp_path: Path
) -> None:
    """Byte for byte, including blanks: with the same hosts, times and order."""
    config = unpacked(release, tmp_path)
    expected = [
        path.read_bytes() for path in sorted(config.commitlog.iterdir()) if any(path.read_bytes())
    ]
    clock = SteppingClock(step_ms=0)
    ours = golden_config(
        tmp_path / "ours", store_host=bytes([127, 0, 0, 1]) + (10_911).to_bytes(4, "big")
    )
    async with open_store(ours, clock) as store:
        for record in raw_records(release, config):
            message = decode_record(bytes.fromhex(record))
            clock.now_ms = message.store_timestamp
            store.append([draft_of(message)])
    assert [path.read_bytes() for path in sorted(ours.commitlog.iterdir())] == expected


@RELEASE
async def test_tag_codes_are_java_s(release: str, tmp_path: Path) -> None:
    async with open_store(unpacked(release, tmp_path)) as store:
        counts: Counter[bool] = Counter()
        for row in messages_of(release):
            queue = store.queue_table.queues[row["topic"], row["queueId"]]
            log_offset, size, code = queue.entry(row["queueOffset"])
            assert (log_offset, size) == (row["offset"], row["size"])
            delayed = row["topic"] == "SCHEDULE_TOPIC_XXXX"
            delays = {"1": 1_000, "3": 10_000}
            assert code == (
                row["storeTimestamp"] + delays[row["properties"]["DELAY"]]
                if delayed
                else tags_code(row["properties"].get("TAGS"))
            )
            counts[delayed] += 1
        assert counts[True] > 0


async def test_the_unused_second_segment_of_4_9_4_is_dropped(tmp_path: Path) -> None:
    config = unpacked("4.9.4", tmp_path)
    async with open_store(config) as store:
        assert len(store.log.segments.items) == 1
        assert store.appended.value == 26_353
    assert [path.name for path in config.commitlog.iterdir()] == ["00000000000000000000"]


async def test_appending_to_a_java_store_goes_on_where_java_stopped(tmp_path: Path) -> None:
    config = unpacked("5.5.0", tmp_path)
    rows = messages_of("5.5.0")
    last = max(
        (row for row in rows if row["topic"] == "GoldTopic" and row["queueId"] == 0),
        key=lambda row: row["queueOffset"],
    )
    template = draft_of(decode_record(bytes.fromhex(raw_records("5.5.0", config)[0])))
    template.queue_id, template.body = 0, b"ours"
    async with open_store(config, lambda: 0) as store:
        (place,) = store.append([template])
        assert place.queue_offset == last["queueOffset"] + 1
        assert place.log_offset == rows[-1]["offset"] + rows[-1]["size"]
        assert (
            place.store_timestamp == rows[-1]["storeTimestamp"]
        )  # our clock is behind, but store times never decrease
    async with open_store(config) as store:
        assert [message.body for message in await read_all(store, "GoldTopic", 0)][-1] == b"ours"


def test_the_geometry_is_the_archive_s() -> None:
    assert tiny_config(Path("s")) != golden_config(Path("s"))
