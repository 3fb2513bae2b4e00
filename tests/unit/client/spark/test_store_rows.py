"""The rows of ``format("rocketmq-store")`` are those that a broker serves from the same directory,
column by column.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from batch_stores import TOPIC as BATCH_TOPIC
from batch_stores import batch_config, inner_batch, single
from stores import BORN_HOST_V6, SteppingClock, draft, golden_config, tiny_config

from tests.support.golden_data import GOLDEN, RELEASES, logged_messages
from tests.support.store_reads import BROKER, rows_of_store, served_rows, store_reader
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.opening import open_store
from triomq.client.spark.offsets import nested
from triomq.client.spark.store.store_options import parse_store_options
from triomq.client.spark.store.store_planning import plan_store

SMALL_TASKS = {"minRecordsPerPartition": "1", "recordBatchBytes": "1k", "partitionBytes": "64k"}


def golden_store(folder: Path, release: str) -> Path:
    with tarfile.open(GOLDEN / "store" / f"java-{release}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return next(folder.rglob("commitlog")).parent


def filled(root: Path, fill: Callable[[Any], None], **changes: Any) -> StoreConfig:
    """Make a store with ``fill``, and return its settings."""
    config = batch_config(root, **changes)

    async def run() -> None:
        async with open_store(config, SteppingClock(), batch_topics=lambda: {BATCH_TOPIC}) as store:
            fill(store)

    trio.run(run)
    return config


def mixed(store: Any) -> None:
    """Three queues and two topics between each other, in sixty segments."""
    for number in range(300):
        extra = {"UNIQ_KEY": f"U{number}"} if number % 2 else {}
        store.append(
            [
                draft(
                    bytes([number % 256]) * (number * 7 % 900),
                    "Orders",
                    number % 3,
                    keys=f"k{number} x",
                    tags=("A", None, "B")[number % 3],
                    extra=extra,
                ),
                draft(zlib.compress(b"packed" * 100), "Orders", 1, sys_flag=0x301),
                draft(b"v6", "Other", 0, born_host=BORN_HOST_V6, flag=number),
            ]
        )


@pytest.mark.parametrize("release", RELEASES)
def test_stores_of_java_brokers(tmp_path: Path, release: str) -> None:
    """Equal to what our broker serves from the store, and to what Java's decoder reads in it."""
    root = golden_store(tmp_path, release)
    rows = rows_of_store(root, subscribePattern=".*")
    topics = {row["topic"] for row in rows}
    assert "GoldTopic" in topics
    assert not {topic for topic in topics if topic.startswith(("RMQ_SYS", "rmq_sys", "%", "SCHED"))}
    assert rows_of_store(root, subscribePattern=".*", **SMALL_TASKS) == rows
    by_java = [message for message in logged_messages(release) if message.get("topic") in topics]
    places = ("commitLogOffset", "storeSize", "topic", "queueId", "offset", "flag", "sysFlag")
    names = ("offset", "size", "topic", "queueId", "queueOffset", "flag", "sysFlag")
    assert sorted([row[name] for name in places] for row in rows) == sorted(
        [message[name] for name in names] for message in by_java
    )
    served = trio.run(served_rows, golden_config(root), topics)
    assert served == rows


@pytest.mark.parametrize("release", RELEASES)
def test_topics_of_the_system_can_be_named(tmp_path: Path, release: str) -> None:
    """As from a broker; half messages stay in their own topic."""
    root = golden_store(tmp_path, release)
    topic = "RMQ_SYS_TRANS_HALF_TOPIC"
    rows = rows_of_store(root, subscribe=topic)
    assert rows
    assert trio.run(served_rows, golden_config(root), [topic]) == rows


@pytest.mark.parametrize("options", [{}, SMALL_TASKS], ids=["one task", "small tasks"])
def test_a_store_of_our_broker(tmp_path: Path, options: dict[str, str]) -> None:
    config = filled(tmp_path / "store", mixed)
    reader = store_reader(config.root, subscribe="Orders,Other", **options)
    segments = len(list((config.root / "commitlog").iterdir()))
    assert len(reader.partitions()) == (segments if options else 1)
    rows = rows_of_store(config.root, subscribe="Orders,Other", **options)
    assert len(rows) == 900
    assert trio.run(served_rows, config, ["Orders", "Other"]) == rows
    only = rows_of_store(config.root, subscribe="Other", **options)
    assert only == [row for row in rows if row["topic"] == "Other"]


def test_expired_segments_and_queue_files(tmp_path: Path) -> None:
    """The log begins in the middle: queues begin with the first record that is left."""
    config = filled(tmp_path / "store", mixed)
    for segment in sorted((config.root / "commitlog").iterdir())[:20]:
        segment.unlink()
    shutil.rmtree(config.root / "index")
    rows = rows_of_store(config.root, subscribe="Orders,Other", **SMALL_TASKS)
    assert 0 < len(rows) < 700
    assert trio.run(served_rows, config, ["Orders", "Other"]) == rows


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """The log still has the records of its first life; the queues do not name them."""

    def fill(store: Any) -> None:
        store.append([draft(f"first life {number}", "Again") for number in range(30)])
        store.append([draft("kept", "Other")])
        store.delete_topic("Again")
        store.append([draft(f"second life {number}", "Again") for number in range(40)])

    config = filled(tmp_path / "store", fill)
    rows = rows_of_store(config.root, subscribe="Again")
    assert [row["value"] for row in rows] == [b"second life %d" % n for n in range(40)]
    assert trio.run(served_rows, config, ["Again"]) == rows


def test_a_deleted_topic_is_not_read(tmp_path: Path) -> None:
    config = filled(tmp_path / "store", lambda store: store.append([draft("x", "T")] * 3))
    write_topics(config.root, {"Other": {"readQueueNums": 1}})
    with pytest.raises(Exception, match="has no topic T that clients can read"):
        store_reader(config.root, subscribe="T").partitions()


def write_topics(root: Path, topics: dict[str, dict[str, Any]]) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))


def test_batch_queues(tmp_path: Path) -> None:
    """Inner batches are unpacked; a task may begin in the middle of none of them."""

    def fill(store: Any) -> None:
        for number in range(40):
            store.append([inner_batch(1 + number % 5, f"{number}-"), single(f"s{number}")])
            store.append([draft("between", "Other")])

    config = filled(tmp_path / "store", fill)
    rows = rows_of_store(config.root, subscribe=f"{BATCH_TOPIC},Other", **SMALL_TASKS)
    assert len(rows) == 40 * 3 + 40 + 40
    part = rows_of_store(
        config.root,
        subscribe=BATCH_TOPIC,
        startingOffsets=json.dumps({BATCH_TOPIC: {BROKER: {"0": 11}}}),
        endingOffsets=json.dumps({BATCH_TOPIC: {BROKER: {"0": 77}}}),
    )
    batched = [row for row in rows if row["topic"] == BATCH_TOPIC]
    assert [row["offset"] for row in part] == list(range(11, 77))
    assert part == batched[11:77]
    assert trio.run(served_rows, config, [BATCH_TOPIC, "Other"]) == rows


def test_times_are_the_broker_s(tmp_path: Path) -> None:
    """Begin and end by store time are the offsets that a broker answers."""
    config = filled(tmp_path / "store", mixed)
    rows = rows_of_store(config.root, subscribe="Orders")
    times = sorted({int(row["timestamp"].timestamp() * 1000) for row in rows})
    begin, end = times[40], times[-60]
    by_time = rows_of_store(
        config.root, subscribe="Orders", startingTimestamp=str(begin), endingTimestamp=str(end)
    )

    async def ask() -> dict[int, tuple[int, int]]:
        async with open_store(config, SteppingClock()) as store:
            return {
                queue: (
                    await store.offset_by_time("Orders", queue, begin, upper=False),
                    await store.offset_by_time("Orders", queue, end, upper=False),
                )
                for queue in range(3)
            }

    ranges = trio.run(ask)
    assert by_time == [row for row in rows if row["offset"] in range(*ranges[row["queueId"]])]
    assert 0 < len(by_time) < len(rows)


def test_the_plan_has_every_queue_that_a_live_query_reads(tmp_path: Path) -> None:
    """Also queues without messages and without folders; none that clients cannot see."""
    config = filled(tmp_path / "store", mixed)
    write_topics(
        config.root,
        {
            "Orders": {"readQueueNums": 2, "perm": 6},
            "Other": {"readQueueNums": 3, "perm": 6},
            "Hidden": {"readQueueNums": 3, "perm": 2},
            "DefaultCluster": {"readQueueNums": 3, "perm": 7},
            "DefaultCluster_REPLY_TOPIC": {"readQueueNums": 1, "perm": 6},
            "rmq_sys_wheel_timer": {"readQueueNums": 1, "perm": 6},
            "../..": {"readQueueNums": 1, "perm": 6},
        },
    )
    options = {"path": str(config.root), "brokerName": BROKER, "subscribePattern": ".*"}
    plan = plan_store(parse_store_options(options))
    assert nested(plan.ends) == {
        "Orders": {BROKER: {"0": 100, "1": 400}},
        "Other": {BROKER: {"0": 300, "1": 0, "2": 0}},
    }
    assert plan.message_count == 800


def test_reading_ends_at_the_confirmed_offset(tmp_path: Path) -> None:
    config = filled(tmp_path / "store", mixed)
    rows = rows_of_store(config.root, subscribe="Orders,Other")
    for row in (rows[0], rows[100], rows[-1]):
        cut = row["commitLogOffset"]
        expected = [each for each in rows if each["commitLogOffset"] < cut]
        found = rows_of_store(config.root, subscribe="Orders,Other", confirmOffset=str(cut))
        assert found == expected


def test_tags_and_headers(tmp_path: Path) -> None:
    config = filled(tmp_path / "store", mixed)
    rows = rows_of_store(config.root, subscribe="Orders", tags="A || C")
    assert {row["tags"] for row in rows} == {"A"}
    assert dict(rows[0]["headers"])["TAGS"] == "A"


def test_a_log_in_other_folders(tmp_path: Path) -> None:
    """Brokers with several disks spread their segments over folders."""
    config = filled(tmp_path / "store", mixed)
    rows = rows_of_store(config.root, subscribe="Orders")
    for number in (1, 2):
        (tmp_path / f"disk{number}").mkdir()
    for number, segment in enumerate(sorted((config.root / "commitlog").iterdir())):
        segment.rename(tmp_path / f"disk{1 + number % 2}" / segment.name)
    paths = f"{tmp_path / 'disk1'}, {tmp_path / 'disk2'}"
    assert rows_of_store(config.root, subscribe="Orders", commitLogPath=paths) == rows


def test_queues_of_ten_entries_a_file_begin_after_fillers(tmp_path: Path) -> None:
    """A slave that begins in the middle of a queue writes fillers before its first entry."""
    config = tiny_config(tmp_path / "store")

    async def fill() -> None:
        async with open_store(config, SteppingClock()) as store:
            store.append([draft(f"m{number}") for number in range(25)])

    trio.run(fill)
    queue = config.root / "consumequeue" / "T" / "0"
    first = queue / f"{0:020}"
    filler = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    first.write_bytes(filler * 7 + first.read_bytes()[140:])
    rows = rows_of_store(config.root, subscribe="T")
    assert [row["offset"] for row in rows] == list(range(7, 25))
    options = {"path": str(config.root), "brokerName": BROKER, "subscribe": "T"}
    assert list(plan_store(parse_store_options(options)).begins.values()) == [7]
