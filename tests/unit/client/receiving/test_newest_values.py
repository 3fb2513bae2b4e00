"""Which message of a key is in the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stored_records import decode_record, stored_record

from triomq import MessageQueue, ReceivedMessage, TooManyKeys
from triomq.client.receiving.newest_values import NewestValues


def received(
    key: str | None, body: bytes, *, queue_id: int = 0, offset: int, stored_ms: int = 0
) -> ReceivedMessage:
    properties = {} if key is None else {"KEYS": key}
    record = stored_record(
        body, queue_id=queue_id, offset=offset, properties=properties, store_ms=stored_ms
    )
    owner: Any = SimpleNamespace(queue=MessageQueue("orders", "broker-a", queue_id))
    return ReceivedMessage(decode_record(record), owner)


def table(*messages: ReceivedMessage) -> dict[str, bytes]:
    values = NewestValues(10)
    for message in messages:
        values.add([message])
    return {key: message.body for key, message in values.table().items()}


def test_the_order_of_a_queue_decides_whatever_the_clock_says() -> None:
    old = received("a", b"1", offset=4, stored_ms=900)
    new = received("a", b"2", offset=5, stored_ms=100)
    assert table(old, new) == {"a": b"2"}
    assert table(new, old) == {"a": b"2"}


def test_between_queues_the_later_store_time_decides() -> None:
    old = received("a", b"1", queue_id=0, offset=9, stored_ms=100)
    new = received("a", b"2", queue_id=1, offset=2, stored_ms=101)
    assert table(old, new) == table(new, old) == {"a": b"2"}


def test_an_empty_body_deletes_its_key_also_before_older_values_come() -> None:
    value = received("a", b"1", queue_id=0, offset=9, stored_ms=100)
    gone = received("a", b"", queue_id=1, offset=2, stored_ms=101)
    later = received("a", b"2", queue_id=1, offset=3, stored_ms=102)
    assert table(value, gone) == table(gone, value) == {}
    assert table(gone, later, value) == {"a": b"2"}


def test_a_key_is_the_whole_property_and_messages_without_one_are_left_out() -> None:
    assert table(
        received("a b", b"1", offset=0),
        received("a", b"2", offset=1),
        received("  ", b"3", offset=2),
        received(None, b"4", offset=3),
    ) == {"a b": b"1", "a": b"2"}


def test_the_limit_counts_deleted_keys_too() -> None:
    values = NewestValues(2)
    values.add([received("a", b"", offset=0), received("b", b"1", offset=1)])
    values.add([received("a", b"2", offset=2)])
    with pytest.raises(TooManyKeys, match="orders has more than 2 keys"):
        values.add([received("c", b"3", offset=3)])
