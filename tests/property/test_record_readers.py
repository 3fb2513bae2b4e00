"""The readers of records agree: what the strict reader accepts, and only that, is read alike by the
store's fast reader and by Spark's columns.

The fast reader may leave a record to the strict one; the cases say which records it must read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import encoded_record

from tests.support.golden_data import RELEASES, commit_log
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.log.draft_reader import DraftReader, read_draft
from triomq.client.spark.errors import SourceError
from triomq.client.spark.offsets import Queue
from triomq.client.spark.records import Block, read_records
from triomq.remoting.protocol.inner_batch import is_inner_batch
from triomq.remoting.protocol.record import StoredMessage, encode_blank, encode_host
from triomq.remoting.protocol.record_reader import read_record

V4 = encode_host(b"\x7f\0\0\1", 10_911)
V6 = encode_host(bytes(15) + b"\1", 10_911)
PADDING = bytes(64)  # the fast reader stops where less than the longest head is left


class Seen(NamedTuple):
    """What every reader tells of a record."""

    queue_offset: int
    size: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


def record(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "Orders",
        "queue_id": 3,
        "queue_offset": 7,
        "log_offset": 0,
        "body": b"hello",
        "properties": b"UNIQ_KEY\x017F00\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
        "born_timestamp": 1,
        "born_host": V4,
        "store_timestamp": 1_700_000_000_456,
        "store_host": V4,
    }
    return encoded_record(**{**fields, **changes})


def changed(place: int, value: bytes, data: bytes) -> bytes:
    return data[:place] + value + data[place + len(value) :]


COMMON = {
    "plain": record(),
    "no body": record(body=b""),
    "long body": record(body=bytes(70_000)),
    "IPv6 producer": record(born_host=V6),
    "IPv6 broker": record(store_host=V6),
    "IPv6 both": record(born_host=V6, store_host=V6),
    "property CRC": record(append_crc=True),
    "last separator missing": record(properties=b"KEYS\1k\2TAGS\1t"),
    "topic of 127 bytes": record(topic="T" * 127),
    "topic of other letters": record(topic="Größe"),
    "compressed, prepared": record(sys_flag=0x305),
}
UNCOMMON = {
    "no properties": record(properties=b""),
    "topic of version 2": record(topic="T" * 130),
    "inner batch": record(sys_flag=0xC0),
    "special properties": record(properties=b"INNER_NUM\0013\2"),
    "properties not UTF-8": record(properties=b"KEYS\1\xff\2"),
}
BAD_TOPIC = changed(93, b"\xff", record())
DAMAGED = {
    "wrong body": record().replace(b"hello", b"hellO"),
    "cut": record()[:-1],
    "longer than its fields": changed(0, (400).to_bytes(4), record()) + bytes(400),
    "shorter than its head": changed(0, (50).to_bytes(4), record()),
    "negative size": changed(0, b"\xff\xff\xff\xff", record()),
    "unknown magic": changed(4, bytes(4), record()),
    "wrong version": changed(4, (0xDAA320AB).to_bytes(4), record()),
    "negative body": changed(84, (-1).to_bytes(4, signed=True), record()),
    "body too long": changed(84, (500).to_bytes(4), record()),
    "topic longer than a signed byte": BAD_TOPIC,
    "topic of 200 bytes in version 1": (
        lambda long: changed(
            0, len(long).to_bytes(4), long[:93] + b"\xc8" + b"T" * 200 + long[100:]
        )
    )(record() + bytes(194))[: len(record()) + 194],
    "negative properties": changed(100, b"\xff\xff", record()),
    "properties too long": changed(100, b"\x7f\xff", record()),
    "BLANK": encode_blank(200) + bytes(192),
    "nothing": bytes(120),
}


def strict(data: bytes, check_crc: bool) -> Seen | None:
    found = read_record(data, 0, len(data), check_crc)
    if isinstance(found, str):
        assert found
        return None
    return Seen(
        found.queue_offset,
        found.size,
        found.sys_flag,
        found.store_timestamp,
        found.properties_bytes,
    )


def of_draft(draft: Draft, place: Appended) -> Seen:
    return Seen(
        place.queue_offset, place.size, draft.sys_flag, place.store_timestamp, draft.properties
    )


def fast(data: bytes, check_crc: bool) -> Seen | None:
    """Through drafts; what is skipped must be at least what is read."""
    drafts: list[Draft] = []
    places: list[Appended] = []
    padded = data + PADDING
    stop = DraftReader(check_crc).read(padded, 0, len(padded), 0, 1, drafts, places)
    skipped, _ = DraftReader(check_crc).skip(padded, 0, len(padded), 0)
    assert skipped >= stop
    assert stop == sum(place.size for place in places)
    return of_draft(drafts[0], places[0]) if drafts else None


def columns(data: bytes) -> Seen | None:
    """As Spark reads it, which knows no CRC."""
    size = int.from_bytes(data[:4], signed=True)
    body = data[:size] if 0 < size <= len(data) else data
    try:
        found = read_records([Block(Queue("Orders", "b", 3), -(1 << 63), (1 << 63) - 1, body)])
    except SourceError:
        return None
    if not len(found):
        return None
    start, length = int(found.properties.starts[0]), int(found.properties.lengths[0])
    return Seen(
        int(found.queue_offset[0]),
        int(found.size[0]),
        int(found.sys_flag[0]),
        int(found.store_timestamp[0]),
        found.raw[start : start + length],
    )


def agree(data: bytes, check_crc: bool) -> tuple[Seen | None, Seen | None]:
    """Assert that the readers agree; return what the strict and the fast reader found."""
    expected, found = strict(data, check_crc), fast(data, check_crc)
    assert found in (None, expected)
    if found is not None:
        from_strict = read_draft(data, 0, found.size, 0, check_crc)
        assert not isinstance(from_strict, str), from_strict
        assert of_draft(*from_strict) == found
    message = read_record(data, 0, len(data), check_crc=False)
    packed = isinstance(message, StoredMessage) and is_inner_batch(message)
    assert columns(data) == (None if packed else strict(data, False))
    return expected, found


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("name", COMMON)
def test_common_records_are_read_by_all(name: str, check_crc: bool) -> None:
    expected, found = agree(COMMON[name], check_crc)
    assert expected is not None
    assert found == expected


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("name", UNCOMMON)
def test_uncommon_records_are_left_to_the_strict_reader(name: str, check_crc: bool) -> None:
    expected, found = agree(UNCOMMON[name], check_crc)
    assert expected is not None
    assert found is None


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_read_by_none(name: str) -> None:
    assert agree(DAMAGED[name], True) == (None, None)


@pytest.mark.parametrize("release", RELEASES)
def test_records_of_java_brokers(release: str) -> None:
    fallen_back = count = 0
    for start, segment in commit_log(release):
        position = 0
        while isinstance(message := read_record(segment, position, len(segment)), StoredMessage):
            end = position + message.size
            drafts: list[Draft] = []
            places: list[Appended] = []
            DraftReader(True).read(
                segment + PADDING, position, end + len(PADDING), start + position, 1, drafts, places
            )
            from_strict = read_draft(segment, position, message.size, start + position, True)
            assert not isinstance(from_strict, str), from_strict
            if drafts:
                assert of_draft(drafts[0], places[0]) == of_draft(*from_strict)
            fallen_back += not drafts
            count += 1
            assert columns(segment[position:end]) == strict(segment[position:end], True)
            position = end
    assert count > 50
    assert fallen_back < count / 2, "most records of a broker are common"


@settings(max_examples=400, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "topic": st.sampled_from(["T", "", ".", "Größe", "T" * 127, "T" * 128]),
            "queue_id": st.sampled_from([-1, 0, 9]),
            "sys_flag": st.sampled_from([0, 1, 8, 0x80, 0xC0]),
            "born_host": st.sampled_from([V4, V6]),
            "store_host": st.sampled_from([V4, V6]),
            "body": st.binary(max_size=40),
            "properties": st.binary(max_size=40),
        },
    ),
    flips=st.lists(st.tuples(st.integers(0, 250), st.integers(1, 255)), max_size=3),
    check_crc=st.booleans(),
)
def test_made_and_damaged_records(
    changes: dict[str, Any], flips: list[tuple[int, int]], check_crc: bool
) -> None:
    data = bytearray(record(**changes))
    for place, bits in flips:
        data[place % len(data)] ^= bits
    agree(bytes(data), check_crc)


@given(st.binary(max_size=250))
def test_any_bytes(data: bytes) -> None:
    readers: list[Callable[[bytes], Any]] = [lambda data: strict(data, True), columns]
    for read in readers:
        assert read(data) is None or len(data) > 90
