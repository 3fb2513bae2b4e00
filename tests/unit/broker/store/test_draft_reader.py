"""The fast reader of drafts accepts only what the strict one accepts, and reads the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import encoded_record

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.log import draft_reader
from triomq.broker.store.log.draft_reader import DraftReader, read_draft

V4 = bytes([127, 0, 0, 1]) + (10_911).to_bytes(4, "big")
V6 = bytes(15) + b"\1" + (10_911).to_bytes(4, "big")
COMMON = (
    b"UNIQ_KEY\x017F0000010D5A3B6A0000000000000001\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1"
    b" k2\x02"
)
PIECES = (
    b"TAGS\1a", b"TAGS\1b", b"TAGS\1", b"XTAGS\1no", b"UNIQ_KEY\1u", b"UNIQ_KEY\1", b"KEYS\1k1 k2",
    b"KEYS\1\xc3\xa9", b"KEYS\1a\1b", b"TAGS", b"", b"\1x", b"a\xff\1b",
    b"INNER_NUM\0013", b"XINNER_NUM\0013", b"INNER_MULTI_QUEUE_OFFSET\0011",
    b"__CRC32#\0011234567890", b"TAGS\1x\0", b"MY_UNIQ_KEY\1u", b"KEYS\1UNIQ_KEY\1k",
)  # fmt: skip


def record(position: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "Orders", "queue_id": 3, "queue_offset": 7, "log_offset": position,
        "body": b"hello", "properties": COMMON,
        "born_timestamp": 1, "born_host": V4, "store_timestamp": 1_700_000_000_456,
        "store_host": V4,
    }  # fmt: skip
    return encoded_record(**{**fields, **changes})


def taken(
    data: bytes, position: int, count_max: int, check_crc: bool
) -> tuple[list[Draft], list[Appended]]:
    """Return what the fast reader reads."""
    drafts: list[Draft] = []
    places: list[Appended] = []
    stop = DraftReader(check_crc).read(data, 0, len(data), position, count_max, drafts, places)
    assert stop == sum(place.size for place in places)
    return drafts, places


def skipped(data: bytes, position: int, check_crc: bool = True) -> tuple[int, int]:
    return DraftReader(check_crc).skip(data, 0, len(data), position)


def fast(data: bytes, position: int, check_crc: bool = True) -> tuple[Draft, Appended] | None:
    drafts, places = taken(data, position, 1, check_crc)
    return (drafts[0], places[0]) if drafts else None


def fields(found: tuple[Draft | Appended, ...]) -> list[Any]:
    return [getattr(part, name) for part in found for name in part.__struct_fields__]


def strict(data: bytes, position: int, check_crc: bool = True) -> tuple[Draft, Appended] | str:
    size = int.from_bytes(data[:4], "big", signed=True)
    return read_draft(data, 0, size, position, check_crc) if 88 <= size <= len(data) else "no size"


def changed(place: int, value: bytes, data: bytes) -> bytes:
    return data[:place] + value + data[place + len(value) :]


# A body of -16 bytes ends at byte 72. There, the number of deliveries reads as a topic "T" and the
# right length of properties.
BODY_BELOW_ZERO = changed(
    84,
    (-16).to_bytes(4, signed=True),
    changed(72, b"\1T" + (len(record(body=b"")) - 76).to_bytes(2), record(body=b"")),
)
LONG_TOPIC, NO_PROPERTIES = record(topic="T" * 130), record(properties=b"")
PADDING = bytes(64)  # the fast reader stops where less than the longest head is left


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"born_host": V6},
        {"store_host": V6},
        {"born_host": V6, "store_host": V6},
        {"body": b""},
        {"properties": COMMON[:-1]},
        {"append_crc": True},
        {"sys_flag": 1 << 30},
    ],
)
def test_common_records_are_read_by_the_fast_reader(changes: dict[str, Any]) -> None:
    data = record(4096, **changes) + PADDING
    found, expected = fast(data, 4096), strict(data, 4096)
    assert found is not None
    assert not isinstance(expected, str)
    assert fields(found) == fields(expected)
    assert (found[0].tags, found[0].unique_key, found[0].keys) == (
        "TagA",
        "7F0000010D5A3B6A0000000000000001",
        "k1 k2",
    )
    assert skipped(data, 4096) == (len(data) - len(PADDING), 1_700_000_000_456)


@pytest.mark.parametrize(
    "data",
    [
        record(body=b"hello").replace(b"hello", b"hellO"),
        record(8),
        LONG_TOPIC,
        BODY_BELOW_ZERO,
        changed(93, b"\xff", record()),
        record(topic=".."),
        record(topic="a/b"),
        record(queue_id=-1),
        record(sys_flag=0x80),
        NO_PROPERTIES,
        record(properties=COMMON + b"INNER_NUM\0013\2"),
        record(properties=b"INNER_MULTI_QUEUE_OFFSET\0013\2"),
        record(properties=COMMON + b"\0"),
        record(properties=b"KEYS\1\xff\2"),
        record()[:-1],
    ],
)
def test_other_records_are_left_to_the_strict_reader(data: bytes) -> None:
    assert fast(data + PADDING, 0) is None
    stop, _ = skipped(data + PADDING, 0)
    assert stop == (
        0
        if isinstance(strict(data + PADDING, 0), str) or data in (LONG_TOPIC, NO_PROPERTIES)
        else len(data)
    )


def test_properties_longer_than_a_signed_length_can_say_are_damage() -> None:
    data = bytearray(record(properties=b"K\1" + b"v" * 32_000))
    data[-32_004:-32_002] = (0x8000 + 1000).to_bytes(2)
    data += b"v" * (0x8000 + 1000 - 32_002)
    data[:4] = len(data).to_bytes(4)
    assert isinstance(strict(bytes(data) + PADDING, 0), str)
    assert fast(bytes(data) + PADDING, 0) is None
    assert skipped(bytes(data) + PADDING, 0) == (0, 0)


def test_reading_ends_at_the_limits() -> None:
    first, second, third = record(0), record(len(record(0))), record(2 * len(record(0)))
    data = first + second + third + PADDING
    for limit, count_max, expected in (
        (len(data), 10, 3),
        (len(data), 2, 2),
        (len(first + second) - 1, 10, 1),
    ):
        drafts: list[Draft] = []
        places: list[Appended] = []
        stop = DraftReader(True).read(data, 0, limit, 0, count_max, drafts, places)
        assert len(drafts) == len(places) == expected
        assert stop == expected * len(first)
        if count_max == 10:
            assert DraftReader(True).skip(data, 0, limit, 0) == (stop, 1_700_000_000_456)
    behind = DraftReader(True).skip(data, len(first), len(data), len(first))
    assert behind == (3 * len(first), 1_700_000_000_456)


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    terminated=st.booleans(),
    changes=st.fixed_dictionaries(
        {},
        optional={
            "topic": st.sampled_from(["T", "", ".", "Größe", "T" * 127, "T" * 128]),
            "queue_id": st.sampled_from([-1, 0, 9]),
            "sys_flag": st.sampled_from([0, 1, 8, 0x80, 1 << 30]),
            "born_host": st.sampled_from([V4, V6]),
            "store_host": st.sampled_from([V4, V6]),
            "body": st.binary(max_size=40),
        },
    ),
    flip=st.none() | st.tuples(st.integers(0, 200), st.integers(1, 255)),
    check_crc=st.booleans(),
)
def test_the_fast_and_the_strict_reader_agree(
    pieces: list[bytes],
    terminated: bool,
    changes: dict[str, Any],
    flip: tuple[int, int] | None,
    check_crc: bool,
) -> None:
    properties = b"\2".join(pieces) + (b"\2" if terminated else b"")
    data = bytearray(record(64, properties=properties, **changes))
    if flip is not None and flip[0] < len(data):
        data[flip[0]] ^= flip[1]
    found = fast(bytes(data) + PADDING, 64, check_crc)
    expected = strict(bytes(data) + PADDING, 64, check_crc)
    stop, stored = skipped(bytes(data) + PADDING, 64, check_crc)
    assert stop >= (len(data) if found else 0), "what counts is passed"
    if stop:
        assert not isinstance(expected, str), expected
        assert (stop, stored) == (expected[1].size, expected[1].store_timestamp)
    if found is not None:
        assert not isinstance(expected, str), expected
        assert fields(found) == fields(expected)


@settings(max_examples=300, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from(["T", "U", "UNIQ_KEY\1"]),
            st.lists(st.sampled_from(PIECES), max_size=4),
            st.sampled_from(["u", "v", "uu"]),
        ),
        min_size=2,
        max_size=30,
    )
)
def test_similar_messages_are_read_as_each_of_them_alone(
    messages: list[tuple[str, list[bytes], str]],
) -> None:
    data = b""
    for topic, pieces, key in messages:
        at = len(pieces) // 2
        properties = b"\2".join([*pieces[:at], f"UNIQ_KEY\1{key}".encode(), *pieces[at:]]) + b"\2"
        data += record(len(data), topic=topic, properties=properties)
    drafts, places = taken(data + PADDING, 0, 100, True)
    at = 0
    for draft, place in zip(drafts, places):
        expected = strict(data[at : at + place.size] + PADDING, at)
        assert not isinstance(expected, str), expected
        assert fields((draft, place)) == fields(expected)
        alone = fast(data[at : at + place.size] + PADDING, at)
        assert alone is not None
        assert fields(alone) == fields((draft, place))
        at += place.size
    if at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert fast(data[at : at + size] + PADDING, at) is None


def test_properties_around_the_id_are_read_once_unless_each_message_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    read_tail = DraftReader._read_tail
    monkeypatch.setattr(
        DraftReader, "_read_tail", lambda self, rest: calls.append(rest) or read_tail(self, rest)
    )

    def read(properties: str) -> int:
        calls.clear()
        data = b""
        for number in range(100):
            data += record(len(data), properties=properties.format(number).encode())
        drafts: list[Draft] = []
        DraftReader(True).read(data + PADDING, 0, len(data + PADDING), 0, 1000, drafts, [])
        assert [draft.unique_key for draft in drafts] == [f"id{number:04}" for number in range(100)]
        return len(calls)

    assert read("a\1b\2UNIQ_KEY\1id{0:04}\2TAGS\1x\2") == 1
    assert read("a\1{0:04}\2UNIQ_KEY\1id{0:04}\2TAGS\1x\2") == 100


def run_of(records: list[bytes], check_crc: bool) -> list[list[Any]]:
    return [fields(found) for found in zip(*taken(b"".join(records) + PADDING, 0, 100, check_crc))]


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize(
    "properties",
    ["WAIT\1true\2UNIQ_KEY\1{}\2", "WAIT\1true\2UNIQ_KEY\1{}", "UNIQ_KEY\1{}\2TAGS\1x\2"],
)
def test_a_torn_record_that_begins_like_the_one_before_does_not_count(
    properties: str, check_crc: bool
) -> None:
    """A page of the record was never written: from any byte to the end, or to the next page.

    The strict reader decides.
    """
    first = record(0, properties=properties.format("A" * 16).encode())
    whole = record(len(first), properties=properties.format("B" * 16).encode())
    assert len(run_of([first, whole], check_crc)) == 2
    taken = 0
    for start in range(len(whole)):
        for stop in (start + 1, start + 8, len(whole)):
            torn = (
                (whole[:start] + bytes(min(stop, len(whole)) - start) + whole[stop:])
                if start < stop
                else whole
            )
            found, expected = (
                run_of([first, torn], check_crc)[1:],
                strict(torn + PADDING, len(first), check_crc),
            )
            if isinstance(expected, str):
                assert found == [], (start, stop)
            else:
                assert found in ([], [fields(expected)]), (start, stop)
                taken += bool(found)
            if stop >= len(whole):
                assert found == [], start
    assert taken


@pytest.mark.parametrize("ids", [("u", ""), ("", "u"), ("u", "", "v", "")])
def test_an_id_without_a_value_does_not_count(ids: tuple[str, ...]) -> None:
    """An empty value does not count, and then an earlier one of the same name does.

    Also if the lengths are those of the message before.
    """
    for properties in ("UNIQ_KEY\1old\2UNIQ_KEY\1{}\2", "UNIQ_KEY\1{}\2TAGS\1x\2"):
        records: list[bytes] = []
        for key in ids:
            text = properties.format(key) + ("" if key else "\2")
            records.append(record(sum(map(len, records)), properties=text.encode()))
        assert len(set(map(len, records))) == 1
        found = run_of(records, True)
        expected = [strict(data + PADDING, at * len(data)) for at, data in enumerate(records)]
        assert found == [fields(each) for each in expected if not isinstance(each, str)]
        assert len(found) == len(ids)


def test_topics_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_reader, "TOPICS_MAX", 8)
    run = DraftReader(True)
    for number in range(50):
        data = record(topic=f"T{number}") + PADDING
        drafts: list[Draft] = []
        run.read(data, 0, len(data), 0, 1, drafts, [])
        assert [draft.topic for draft in drafts] == [f"T{number}"]
        assert len(run._topics) <= 8
