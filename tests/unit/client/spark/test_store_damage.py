"""Store directories that are damaged, in use, or no stores: typed errors with file and byte, or the
rest with ``failOnDataLoss=false``; never a hang.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from batch_stores import TOPIC as BATCH_TOPIC
from batch_stores import batch_config, inner_batch, single
from stores import SteppingClock, draft

from tests.support.store_reads import rows_of_store, store_reader
from triomq.broker.store.opening import open_store
from triomq.client.spark.errors import SourceError, StoreFileDamaged, StoreInUse

SKIP = {"failOnDataLoss": "false"}
TOPICS = f"Orders,{BATCH_TOPIC}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty segments; two queues of three files and a batch queue."""
    root = tmp_path_factory.mktemp("sound") / "store"

    async def fill() -> None:
        async with open_store(
            batch_config(root), SteppingClock(), batch_topics=lambda: {BATCH_TOPIC}
        ) as store:
            for number in range(60):
                store.append([draft(b"%04d" % number * 200, "Orders", number % 2)])
                store.append([inner_batch(3, f"b{number}-") if number % 2 else single(f"{number}")])

    trio.run(fill)
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


def values(root: Path, **options: str) -> list[bytes]:
    return [row["value"] for row in rows_of_store(root, subscribe=TOPICS, **options)]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def second_record(root: Path) -> tuple[Path, int]:
    """The file and the position of message 1 of Orders/0."""
    queue = root / "consumequeue" / "Orders" / "0" / f"{0:020}"
    (log_offset,) = struct.unpack_from(">q", queue.read_bytes(), 20)
    base = log_offset - log_offset % 4096
    return root / "commitlog" / f"{base:020}", log_offset - base


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, b"\0\0\0\x05", "no record of this size begins here"),
        (0, b"\x7f\xff\xff\xff", "no record of this size begins here"),
        (4, b"\xcb\xd4\x31\x94", "the record is damaged"),
        (12, b"\0\0\0\x01", "of another topic or queue"),
        (20, b"\0\0\0\1", "offset is none of its queue's"),
        (28, b"\0\0\0\0\0\0\0\1", "no record of this size begins here"),
        (84, b"\x7f\xff\xff\xff", "the record is damaged"),
        (84 + 4 + 800, b"\x07", "the record is damaged"),
        (84 + 4 + 800 + 1, b"o", "of another topic or queue"),
    ],
    ids=[
        "size",
        "large size",
        "blank",
        "queue",
        "offset",
        "log offset",
        "body",
        "topic length",
        "topic",
    ],
)
def test_a_damaged_record(root: Path, at: int, data: bytes, words: str) -> None:
    sound_values = values(root)
    path, position = second_record(root)
    change(path, position + at, data)
    with pytest.raises(StoreFileDamaged, match=words) as caught:
        values(root)
    assert (caught.value.path, caught.value.position) == (path, position)
    assert f"{path} at byte {position}" in str(caught.value)
    assert "mqstore verify" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert values(root, **SKIP) == [each for each in sound_values if each != b"0002" * 200]


def test_a_damaged_inner_batch(root: Path) -> None:
    path, position = next(
        (path, at)
        for path in sorted((root / "commitlog").iterdir())
        if (at := path.read_bytes().find(b"b1-0")) >= 0
    )
    change(path, position - 4, b"\x7f\xff\xff\xff")  # the length of the first body
    with pytest.raises(StoreFileDamaged, match=BATCH_TOPIC) as caught:
        values(root)
    assert caught.value.path == path
    left = values(root, **SKIP)
    assert not any(each.startswith(b"b1-") for each in left)
    assert b"b3-0" in left


@pytest.mark.parametrize("how", ["missing", "cut", "empty"])
def test_a_segment_is_not_whole(root: Path, how: str) -> None:
    sound_values = values(root)
    path = sorted((root / "commitlog").iterdir())[5]
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, 2000 if how == "cut" else 0)
    before = path.with_name(f"{int(path.name) - 4096:020}")
    with pytest.raises(StoreFileDamaged, match="log offset") as caught:
        values(root)
    assert caught.value.path == (path if how == "cut" else before)
    left = values(root, **SKIP)
    assert 0 < len(sound_values) - len(left) < 15
    assert set(left) < set(sound_values)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_queue_file_that_is_cut(root: Path, number: int) -> None:
    """The messages whose entries are gone are not guessed; all others are there."""
    sound_values = values(root)
    path = sorted((root / "consumequeue" / "Orders" / "0").iterdir())[number]
    os.truncate(path, 85)
    with pytest.raises(StoreFileDamaged, match="the file ends") as caught:
        values(root)
    assert (caught.value.path, caught.value.position) == (path, 85)
    left = values(root, **SKIP)
    lost = sorted(set(sound_values) - set(left))
    assert lost == sorted(b"%04d" % (n * 2) * 200 for n in range(10 * number + 4, 10 * number + 10))


def test_the_only_file_of_a_queue_is_cut(root: Path) -> None:
    """Also at a whole entry: files of other topics show how long it should be."""
    for path in sorted((root / "consumequeue" / "Orders" / "0").iterdir())[1:]:
        path.unlink()
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")
    other = root / "consumequeue" / "Other" / "0"
    other.mkdir(parents=True)
    for number in range(2):
        (other / f"{number * 200:020}").write_bytes(bytes(200))
    os.truncate(root / "consumequeue" / "Orders" / "0" / f"{0:020}", 80)
    with pytest.raises(StoreFileDamaged, match="whole files of queues have 200 bytes"):
        rows_of_store(root, subscribe="Orders")
    assert len(rows_of_store(root, subscribe="Orders", **SKIP)) == 4


def test_a_queue_file_is_missing(root: Path) -> None:
    paths = sorted((root / "consumequeue" / "Orders" / "0").iterdir())
    paths[1].unlink()
    with pytest.raises(StoreFileDamaged, match="the next one begins at byte 400"):
        values(root)
    assert len(values(root, **SKIP)) == 60 + 120 - 10


def test_entries_that_cannot_be(root: Path) -> None:
    queue = root / "consumequeue" / "Orders" / "0" / f"{0:020}"
    change(queue, 40, struct.pack(">qi", 5_000, -5))
    with pytest.raises(StoreFileDamaged, match="a record of -5 bytes at log offset 5000") as caught:
        values(root)
    assert (caught.value.path, caught.value.position) == (queue, 40)
    change(queue, 40, struct.pack(">qi", 1 << 62, 100))
    with pytest.raises(StoreFileDamaged, match="which cannot be"):
        values(root)
    change(queue, 40, struct.pack(">qi", (1 << 62) - 1, 100))
    with pytest.raises(StoreFileDamaged, match="the segment is missing"):
        values(root)
    assert len(values(root, **SKIP)) == 179


def test_files_with_absurd_names(root: Path) -> None:
    """Holes of 2^61 bytes take no memory and no time."""
    queue = root / "consumequeue" / "Orders" / "0"
    for name in (1 << 61) // 20 * 20, (1 << 61) // 20 * 20 + 5, 99999999999999999999:
        shutil.copy(queue / f"{0:020}", queue / f"{name:020}")
    shutil.copy(root / "commitlog" / f"{0:020}", root / "commitlog" / f"{1 << 61:020}")
    with pytest.raises(StoreFileDamaged):
        values(root)
    assert set(values(root, **SKIP)) >= {b"0002" * 200}


def damaged_copies(sound: Path, folder: Path, count: int) -> Iterator[tuple[int, Path]]:
    """Copies with a few changed bytes, or with a file that is cut off, in any of the files read."""
    for seed in range(count):
        chance = random.Random(seed)
        copy = Path(shutil.copytree(sound, folder / str(seed)))
        files = [*(copy / "commitlog").iterdir(), *copy.glob("*consumequeue/*/*/*")]
        for _ in range(chance.randint(1, 4)):
            path = chance.choice(sorted(files))
            if chance.random() < 0.2:
                os.truncate(path, chance.randrange(path.stat().st_size + 1))
                continue
            size = path.stat().st_size
            for _ in range(chance.randint(1, 8)):
                if size > 8:
                    at = chance.randrange(size - 8)
                    change(path, at, chance.randbytes(chance.choice((1, 4, 8))))
        yield seed, copy
        shutil.rmtree(copy)


def test_any_damage_gives_rows_or_a_typed_error(sound: Path, tmp_path: Path) -> None:
    sound_rows = rows_of_store(sound, subscribe=TOPICS)
    places = {(row["topic"], row["queueId"], row["offset"]) for row in sound_rows}
    refused = 0
    for seed, copy in damaged_copies(sound, tmp_path, 60):
        options = {"snapshot": "true"} if seed % 3 == 0 else {}
        try:
            rows_of_store(copy, subscribe=TOPICS, **options)
        except SourceError:
            refused += 1
        try:
            left = rows_of_store(copy, subscribe=TOPICS, **SKIP, **options)
        except SourceError:
            continue
        found = [(row["topic"], row["queueId"], row["offset"]) for row in left]
        untouched = [each for each in found if each in places]
        assert len(untouched) > 60, seed
        assert len(found) - len(untouched) < 5, seed
    assert 10 < refused < 60


# Whose store it is


def test_a_store_that_a_broker_writes_is_refused(root: Path) -> None:
    """Also as a snapshot: its files change while they are read."""
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.lockf(fd,"
        " fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        for options in ({}, {"snapshot": "true"}):
            with pytest.raises(StoreInUse, match="a broker runs on"):
                store_reader(root, subscribe="Orders", **options).partitions()
        holder.stdin.close()
    assert len(values(root)) == 180
    with open(root / "lock", "r+b") as lock:  # reading has not kept it
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_a_store_that_was_not_closed(root: Path) -> None:
    (root / "abort").write_text("1")
    with pytest.raises(StoreInUse, match=r"abort.*snapshot=true"):
        values(root)
    assert len(values(root, snapshot="true")) == 180


def test_a_snapshot_whose_log_is_older_than_its_queues(root: Path) -> None:
    """Queues end before the first record that the log does not have whole."""
    sound_rows = rows_of_store(root, subscribe=TOPICS)
    last = max(row["commitLogOffset"] for row in sound_rows)
    log = sorted((root / "commitlog").iterdir())
    (root / "abort").touch()
    for kept, torn in ((len(log) - 3, 1000), (2, 4000), (0, 4)):
        for path in log[kept + 1 :]:
            path.unlink(missing_ok=True)
        change(log[kept], torn, bytes(4096 - torn))
        end = kept * 4096 + torn
        expected = [row for row in sound_rows if row["commitLogOffset"] + row["storeSize"] <= end]
        assert rows_of_store(root, subscribe=TOPICS, snapshot="true") == expected
        assert end < last


def test_directories_that_are_no_stores(root: Path, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "nothing", "is not a store"),
        (root / "commitlog", "no folder"),
    ):
        with pytest.raises(SourceError, match=words):
            store_reader(path, subscribe="Orders").partitions()
    (root / "consumequeue" / "CURRENT").touch()
    with pytest.raises(SourceError, match="RocksDB"):
        store_reader(root, subscribe="Orders").partitions()


def test_a_worker_without_the_directory_says_so(root: Path) -> None:
    reader = store_reader(root, subscribe="Orders")
    partitions = reader.partitions()
    shutil.rmtree(root)
    with pytest.raises(SourceError, match="the driver and all workers"):
        list(reader.read(partitions[0]))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"topicConfigTable": 5}', "[" * 100_000])
def test_a_damaged_table_of_topics_falls_back_to_its_copy(root: Path, text: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    table = root / "config" / "topics.json"
    table.write_text(text)
    assert len(rows_of_store(root, subscribe="Orders")) == 60  # the queues' folders
    table.with_name("topics.json.bak").write_text(
        '{"topicConfigTable": {"Orders": {"readQueueNums": 1}}}'
    )
    assert len(rows_of_store(root, subscribe="Orders")) == 30


def test_tables_of_other_shapes_are_refused(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    table = root / "config" / "topics.json"
    for entry in ('"text"', '{"readQueueNums": "many"}', '{"perm": "rw"}', '{"attributes": [1]}'):
        table.write_text(f'{{"topicConfigTable": {{"Orders": {entry}}}}}')
        with pytest.raises(SourceError, match="is not a table of topics"):
            store_reader(root, subscribe="Orders").partitions()
