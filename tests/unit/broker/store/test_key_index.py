"""The key index: bytes as Java writes them, chains over files, and repair after a crash."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import NO_FEATURES, NOW_MS, FaultyDisk, SteppingClock, draft, tiny_config

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import DiskFull, StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.reads import Cold, ColdFetch, Reads
from triomq.broker.store.keys.index import (
    KeyIndex,
    entries_of,
    hash_by_length,
    hash_together,
    index_hash,
)
from triomq.broker.store.keys.index_file import ENTRY, HEADER, Geometry, KeyIndexFile
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.sys_flags import TRANSACTION_ROLLBACK


def make_index(root: Path, *, disk: Disk | None = None, **changes: object) -> KeyIndex:
    return KeyIndex(tiny_config(root, **changes), disk or Disk(), SteppingClock())


def batch(
    *drafts: Draft, start: int = 0, step: int = 100, time_ms: int = NOW_MS, time_step: int = 0
) -> Batch:
    places = [
        Appended(start + step * number, step, number, time_ms + time_step * number)
        for number in range(len(drafts))
    ]
    return Batch(drafts, places, start, start + step * len(drafts))


def find(
    index: KeyIndex,
    key: str,
    topic: str = "T",
    begin_ms: int = 0,
    end_ms: int = 1 << 60,
    count_max: int = 64,
) -> list[int]:
    reads = Reads(index.disk, OpenFiles(index.disk, 4))
    try:
        while True:
            try:
                return index.find(topic, key, begin_ms, end_ms, count_max, reads)
            except Cold as cold:
                reads.fetched.update(ColdFetch(index.disk).fetch(cold.ranges))
    finally:
        reads.open_files.close()


def content(index: KeyIndex) -> list[bytes]:
    return [path.read_bytes() for path in sorted(index.directory.iterdir())]


@pytest.mark.feature("45a")
def test_bytes_of_the_fact_sheet(tmp_path: Path) -> None:
    index = make_index(tmp_path, index_slot_count=10, index_entry_count=20)
    first = draft(topic="TopicTest", unique_key="7F0000010D5A3B6A0000000000000001", keys="k1 k2")
    second = draft(topic="TopicTest", keys="k1")
    index.apply(Batch([first], [Appended(1_048_576, 168, 7, 1_700_000_000_456)], 0, 0))
    index.apply(Batch([second], [Appended(1_048_900, 168, 8, 1_700_000_002_999)], 0, 0))
    (data,) = content(index)
    assert len(data) == 40 + 4 * 10 + 20 * 20
    assert (
        data[:40].hex(" ", 8)
        == "0000018bcfe569c8 0000018bcfe573b7 0000000000100000 0000000000100144 0000000300000005"
    )
    assert [int.from_bytes(data[40 + 4 * slot : 44 + 4 * slot], "big") for slot in range(10)] == [
        0,
        0,
        0,
        1,
        4,
        3,
        0,
        0,
        0,
        0,
    ]
    entries = """
        00000000 0000000000000000 00000000 00000000
        6ea5c4ed 0000000000100000 00000000 00000000
        0029e6a8 0000000000100000 00000000 00000000
        0029e6a9 0000000000100000 00000000 00000000
        0029e6a8 0000000000100144 00000002 00000002
    """
    assert data[80:180] == bytes.fromhex(entries)
    assert find(index, "k1", "TopicTest") == [1_048_900, 1_048_576]
    assert find(index, "k2", "TopicTest") == [1_048_576]
    assert find(index, "k3", "TopicTest") == []
    index.close()


@pytest.mark.feature("43a", "45b")
def test_a_file_of_the_real_geometry_is_sparse(tmp_path: Path) -> None:
    index = KeyIndex(
        tiny_config(tmp_path, index_slot_count=5_000_000, index_entry_count=20_000_000),
        Disk(),
        SteppingClock(),
    )
    index.apply(batch(draft(topic="TopicTest", keys="k1")))
    (path,) = index.directory.iterdir()
    assert len(path.name) == 17
    assert path.name.isdecimal()
    assert path.stat().st_size == 420_000_040
    assert path.stat().st_blocks * 512 < 30_000_000
    with path.open("rb") as file:
        file.seek(40 + 4 * 2_746_024)
        assert file.read(4) == b"\0\0\0\1"
        file.seek(20_000_060)
        assert file.read(4).hex() == "0029e6a8"
    index.close()


def test_hash_is_java_s_made_non_negative() -> None:
    assert index_hash("GoldTopic", "T#TagA") == 1_191_680_694
    assert index_hash("polygenelubricants"[:-2], "") >= 0


def test_which_keys_a_record_has(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.apply(
        batch(
            draft(unique_key="U1", keys="  a  b ", tags="TagA"),
            draft(sys_flag=12, unique_key="U2", keys="a", tags="TagA"),
            draft(sys_flag=4, unique_key="U3"),
            draft(),
        )
    )
    assert index.files[-1].next_entry == 6
    assert [find(index, key) for key in ("U1", "a", "b", "", "T#TagA", "U2", "U3")] == [
        [0],
        [0],
        [0],
        [],
        [0],
        [],
        [200],
    ]
    assert index.position == 300
    index.close()


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_any_division_into_batches_gives_the_same_files(tmp_path: Path, size: int) -> None:
    drafts = [
        draft(unique_key=f"U{number}", keys=f"k{number % 4}", tags="A" if number % 3 else None)
        for number in range(50)
    ]
    one, other = make_index(tmp_path / "one"), make_index(tmp_path / "other")
    one.apply(batch(*drafts, time_step=700))
    for start in range(0, 50, size):
        part = batch(*drafts, time_step=700)
        other.apply(
            Batch(part.drafts[start : start + size], part.places[start : start + size], 0, 0)
        )
    one.close()
    other.close()
    assert content(one) == content(other)
    assert len(content(one)) > 5


@pytest.mark.feature("43b", "45a")
def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(60):
        index.apply(
            batch(
                draft(unique_key=f"U{number}"), start=100 * number, time_ms=NOW_MS + 1_500 * number
            )
        )
    assert [file.next_entry for file in index.files] == [24, 24, 15]
    assert [path.name for path in sorted(index.directory.iterdir())] == [
        file.path.name for file in index.files
    ]
    assert all(find(index, f"U{number}") == [100 * number] for number in range(60))
    first, second, _ = content(index)
    assert HEADER.unpack_from(first) == (
        NOW_MS,
        NOW_MS + 33_000,
        0,
        2_200,
        index.files[0].slots_used,
        24,
    )
    assert HEADER.unpack_from(second)[:3] == (NOW_MS + 34_500, NOW_MS + 67_500, 2_300)
    # The seconds of the first entry count from the end of the older file, as in Java.
    assert ENTRY.unpack_from(second, index.geometry.entries_position + 20)[2] == 1
    assert ENTRY.unpack_from(second, index.geometry.entries_position + 40)[2] == 1
    assert index.full_timestamp == NOW_MS + 67_500
    index.close()


def test_names_grow_even_if_the_clock_stands_still(tmp_path: Path) -> None:
    index = KeyIndex(tiny_config(tmp_path), Disk(), SteppingClock(step_ms=0))
    index.apply(batch(*[draft(unique_key=f"U{number}") for number in range(100)]))
    names = [file.path.name for file in index.files]
    assert len(set(names)) == 5
    assert names == sorted(names)
    index.close()


def test_time_range_and_count(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(60):
        index.apply(batch(draft(keys="k"), start=100 * number, time_ms=NOW_MS + 1_000 * number))
    assert find(index, "k", count_max=5) == [5_900, 5_800, 5_700, 5_600, 5_500]
    assert find(index, "k", begin_ms=NOW_MS + 30_000, end_ms=NOW_MS + 32_000) == [
        3_200,
        3_100,
        3_000,
    ]
    assert find(index, "k", begin_ms=NOW_MS + 99_000) == []
    assert len(find(index, "k")) == 60
    index.close()


def test_applying_again_changes_nothing(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    parts = batch(draft(unique_key="A"), draft(unique_key="B"))
    index.apply(parts)
    before = content(index)
    index.apply(parts)
    assert content(index) == before
    index.apply(Batch([], [], 0, 0))
    index.close()


def reopened(index: KeyIndex) -> KeyIndex:
    index.close()
    fresh = KeyIndex(index.config, index.disk, index.clock)
    fresh.load()
    return fresh


def test_loading(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.apply(batch(*[draft(unique_key=f"U{number}") for number in range(30)]))
    index = reopened(index)
    assert index.position == index.last_offset == 2_900
    assert index.last == (NOW_MS, 2_900)
    assert index.full_timestamp == NOW_MS
    assert find(index, "U3") == [300]
    index.apply(batch(draft(unique_key="more"), start=3_000))
    assert find(index, "more") == [3_000]
    index.close()


@pytest.mark.parametrize("keep", [0, 1, 22, 23, 24, 29, 30])
@pytest.mark.parametrize("disk", [Disk(), Disk(NO_FEATURES)], ids=["all calls", "fallbacks"])
def test_truncation_makes_the_index_of_the_first_records(
    tmp_path: Path, keep: int, disk: Disk
) -> None:
    drafts = [draft(unique_key=f"U{number}", keys=f"k{number % 3}") for number in range(30)]
    index, expected = make_index(tmp_path / "a", disk=disk), make_index(tmp_path / "b")
    index.apply(batch(*drafts, time_step=100))
    part = batch(*drafts, time_step=100)
    expected.apply(Batch(part.drafts[:keep], part.places[:keep], 0, 0))
    index = reopened(index)
    index.truncate(100 * keep)
    assert index.last_offset == (100 * (keep - 1) if keep else -1)
    rest = batch(*drafts, time_step=100)
    index.apply(Batch(rest.drafts[keep:], rest.places[keep:], 0, 0))
    expected.apply(Batch(part.drafts[keep:], part.places[keep:], 0, 0))
    index.close()
    expected.close()
    assert content(index) == content(expected)


def test_truncation_repairs_slots_that_name_lost_entries(tmp_path: Path) -> None:
    """A crash of the machine kept the pages of the slots and lost the last entries: chains must
    stay whole.
    """
    index = make_index(tmp_path)
    index.apply(batch(*[draft(keys="k") for _ in range(10)]))
    index.close()
    (path,) = index.directory.iterdir()
    data = bytearray(path.read_bytes())
    entries = index.geometry.entries_position
    data[entries + 20 * 6 : entries + 20 * 11] = bytes(100)
    path.write_bytes(data)
    index = reopened(index)
    assert find(index, "k") == []  # the slot leads to entry 10, which is empty
    index.truncate(500)
    assert find(index, "k") == [400, 300, 200, 100, 0]
    assert index.files[-1].slots_used == 1
    index.close()


@pytest.mark.parametrize("lost", [b"\0" * 12, b"\0" * 16], ids=["offset", "offset and time"])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_truncation_is_not_misled_by_a_torn_entry(tmp_path: Path, lost: bytes, count: int) -> None:
    """An entry of 20 bytes may lie in two sectors, of which only the first reached the disk."""
    index = make_index(tmp_path)
    index.apply(batch(*[draft(keys="k") for _ in range(14)]))
    index.close()
    (path,) = index.directory.iterdir()
    data = bytearray(path.read_bytes())
    for number in range(count + 1, 15):
        at = index.geometry.entries_position + 20 * number + 4
        data[at : at + len(lost)] = lost
    path.write_bytes(data)
    index = reopened(index)
    index.truncate(100 * count)
    expected = [100 * number for number in reversed(range(count))]
    assert find(index, "k") == expected
    assert index.last_offset == (expected[0] if expected else -1)
    index.close()


def test_java_s_rule_after_a_crash(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(60):
        index.apply(
            batch(
                draft(unique_key=f"U{number}"), start=100 * number, time_ms=NOW_MS + 1_000 * number
            )
        )
    index = reopened(index)
    index.drop_after(index.files[0].end_timestamp)
    assert len(list(index.directory.iterdir())) == 1
    assert (
        index.position == 2_199
    )  # the last record of the kept file may have had more keys: it is indexed again
    index.apply(batch(draft(unique_key="U22", keys="more"), start=2_200))
    assert find(index, "U22") == find(index, "more") == [2_200]
    index.drop_after(0)
    assert index.position < 0
    index.close()


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    full = [False]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and "index" in str(path))
    index = make_index(tmp_path, disk=disk)
    index.apply(batch(draft(unique_key="U0")))
    before = content(index)
    full[0] = True
    many = batch(*[draft(unique_key=f"U{number}") for number in range(1, 40)], start=100)
    with pytest.raises(DiskFull, match="free some space"):
        index.apply(many)
    assert content(index) == before
    assert index.position == 0
    full[0] = False
    index.apply(many)
    assert all(find(index, f"U{number}") == [100 * number] for number in range(40))
    index.close()


def test_a_file_that_cannot_be_made_is_not_left_behind(tmp_path: Path) -> None:
    disk = FaultyDisk(refuse_write=lambda path: True)
    with pytest.raises(DiskFull):
        KeyIndexFile.create(disk, tmp_path / "x", Geometry(16, 24))
    assert list(tmp_path.iterdir()) == []


def test_a_spare_file_never_used_is_removed(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.apply(batch(draft(unique_key="U0")))
    KeyIndexFile.create(Disk(), index.directory / "99991231235959999", index.geometry).close()
    index = reopened(index)
    assert len(index.files) == len(list(index.directory.iterdir())) == 1
    index.close()


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [("20260101000000000", 12, "maxHashSlotNum"), ("core", 584, "move it away")],
)
def test_foreign_index_files_are_refused(tmp_path: Path, name: str, size: int, words: str) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / name).write_bytes(bytes(size))
    with pytest.raises(StoreDamaged, match=words):
        make_index(tmp_path).load()


def test_what_must_be_forced_to_the_disk(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    assert index.take_unsynced() == ([], [])
    index.apply(batch(*[draft(unique_key=f"U{number}") for number in range(30)]))
    files, directories = index.take_unsynced()
    assert files == [file.path for file in index.files]
    assert directories == [index.directory, tmp_path]
    index.apply(batch(draft(unique_key="more"), start=3_000))
    assert index.take_unsynced() == ([index.files[-1].path], [])
    index.close()


@pytest.mark.parametrize(
    "damage",
    [lambda number: number, lambda number: number + 1, lambda number: 10_000, lambda number: -1],
)
def test_a_damaged_chain_ends_and_never_loops(tmp_path: Path, damage: Callable[[int], int]) -> None:
    index = make_index(tmp_path)
    index.apply(batch(*[draft(keys="k") for _ in range(5)]))
    index.close()
    (path,) = index.directory.iterdir()
    data = bytearray(path.read_bytes())
    at = index.geometry.entries_position + 20 * 3 + 16
    data[at : at + 4] = damage(3).to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    assert find(reopened(index), "k") == [400, 300, 200]


def hash_of(text: str) -> int:
    """Java's rule, character by character; |-2^31| is 0 in the index."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2]):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return 0 if value == 1 << 31 else value if value < 1 << 31 else (1 << 32) - value


@pytest.mark.parametrize("topics", [["T"], ["T", "Größe", "𝄞", "T" * 127]])
@pytest.mark.parametrize("first", [-1, 500])
def test_entries_are_those_of_each_message_alone(topics: list[str], first: int) -> None:
    """Keys are hashed in groups across topics and lengths; the result is an entry per key, in the
    order of the log.
    """
    kinds = [
        {"unique_key": "A" * 32}, {"unique_key": "id", "keys": "k  kk é"}, {"keys": "ab cd"}, {},
        {"unique_key": "ø" * 130, "tags": "𝄞"},
        {"unique_key": "B" * 32, "tags": "TagA"}, {"unique_key": "C" * 32, "tags": "TagB",
        "sys_flag": TRANSACTION_ROLLBACK}, {"tags": "TagA"},
    ]  # fmt: skip
    drafts = [
        draft(topic=topics[number % len(topics)], **kinds[number % len(kinds)])
        for number in range(7 * len(kinds) * len(topics) + 3)
    ]
    drafts = [
        each for number, each in enumerate(drafts) if number % 5
    ]  # so that every topic has every kind
    given = batch(*drafts, time_step=1_000)
    expected = []
    for each, place in zip(given.drafts, given.places):
        if place.log_offset <= first or each.sys_flag == TRANSACTION_ROLLBACK:
            continue
        words = [
            each.unique_key or "",
            *(each.keys or "").split(" "),
            f"T#{each.tags}" if each.tags else "",
        ]
        expected += [
            (hash_of(f"{each.topic}#{word}"), place.log_offset, place.store_timestamp)
            for word in words
            if word
        ]
    assert list(zip(*entries_of(given, first))) == expected
    assert len(set(topics)) == len({each.topic for each in drafts})


def test_the_hash_without_a_positive_value_is_zero() -> None:
    assert hash_of("T#jllgx0D") == 0  # the hash itself is -2^31
    assert hash_together({"T": ["jllgx0D"]}) == {"T": [0]}
    assert hash_together({"T": ["jllgx0D", "x"], "U": ["jllgx0D"]}) == {
        "T": [0, hash_of("T#x")],
        "U": [hash_of("U#jllgx0D")],
    }


class CountedKeys(list[str]):
    """Keys that count how often they are visited."""

    visits = 0

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.visits += 1
            yield key

    def __getitem__(self, number):  # type: ignore[no-untyped-def, override]
        self.visits += 1
        return super().__getitem__(number)


@pytest.mark.parametrize("prefix", ["", "Topic#"])
def test_keys_of_many_lengths_take_as_many_passes_as_those_of_two(prefix: str) -> None:
    """A message may have words of 250 lengths: a request of such messages must not hold the broker
    up.
    """
    words = [f"{number % 7}é"[: number % 3] + "k" * (number * 37 % 251) for number in range(1_000)]
    keys = CountedKeys(words)
    hashes = hash_by_length(prefix, keys)
    assert [0 if value == -(1 << 31) else abs(value) for value in hashes] == [
        hash_of(prefix + word) for word in words
    ]
    assert len(set(map(len, words))) > 250
    assert keys.visits <= 4 * len(words)


def test_long_tags_are_not_kept_in_memory() -> None:
    """Tags may have 32 KB, and every message may have other tags."""
    entries_of(batch(draft(tags="x" * 4_000)), -1)
    tracemalloc.start()
    try:
        for number in range(30):
            entries_of(batch(draft(tags=f"{number:04}" * 1_000)), -1)
        ours = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, __file__)]  # other threads allocate, too
        )
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in ours.traces) < 60_000


@pytest.mark.parametrize("length", [1, 255, 256, 257, 300])
@pytest.mark.parametrize("letter", ["a", "é", "𝄞"])
def test_tags_of_any_length_have_java_s_hash(length: int, letter: str) -> None:
    tags = letter * length
    for _ in range(2):
        assert entries_of(batch(draft(tags=tags)), -1)[0] == [hash_of(f"T#T#{tags}")]
