"""Messages for the broker's own tasks: damage is skipped, and its neighbours are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from damaged_logs import FIELDS, damage_record
from stores import NOW_MS, draft, tiny_config

from triomq.broker.store.opening import open_store
from triomq.broker.store.reading.queue_messages import QueueMessages
from triomq.broker.store.store import MessageStore


async def read(store: MessageStore, offset: int = 0, count: int = 100) -> QueueMessages:
    return await store.messages("T", 0, offset, messages_max=count, bytes_max=1 << 20)


def bodies(found: QueueMessages) -> list[bytes]:
    return [message.body for message in found.messages]


async def write(root: Path) -> None:
    async with open_store(tiny_config(root), lambda: NOW_MS) as store:
        store.append([draft(b"message %d" % number, tags=f"tag {number}") for number in range(5)])


@pytest.mark.parametrize("field", FIELDS)
async def test_what_is_damaged_is_skipped_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    await write(tmp_path)
    damage_record(tmp_path, "T", 2, field)
    async with open_store(tiny_config(tmp_path), lambda: NOW_MS) as store:
        for _ in range(3):
            found = await read(store)
            assert bodies(found) == [b"message 0", b"message 1", b"message 3", b"message 4"]
            assert found.next_offset == 5
            alone = await read(store, 2, 1)
            assert (alone.messages, alone.next_offset) == ([], 3)
            assert [each.reason != "" for each in alone.damaged] == [True]
        assert store.damaged.counts == {"T": 1}
        place = found.messages[1]
    assert caplog.text.count("message 2 of queue 0 of T cannot be read and is skipped") == 1
    assert f"at log offset {place.log_offset + place.size} is damaged" in caplog.text


async def test_the_same_records_as_a_get(tmp_path: Path) -> None:
    await write(tmp_path)
    async with open_store(tiny_config(tmp_path), lambda: NOW_MS) as store:
        found = await read(store, 1, 3)
        assert bodies(found) == [b"message 1", b"message 2", b"message 3"]
        assert found.next_offset == 4
        got = store.get("T", 0, 1, messages_max=3, bytes_max=1 << 20)
        assert got is not None
        assert b"".join(found.records) == b"".join(got.chunks)
        one = await store.messages("T", 0, 1, messages_max=3, bytes_max=1)
        assert (bodies(one), one.next_offset) == ([b"message 1"], 2)
        (code,) = {entry[2] for entry in await store.entries("T", 0, 3, 1)}
        tagged = await store.messages(
            "T", 0, 0, messages_max=3, bytes_max=1 << 20, tag_codes=frozenset({code})
        )
        assert (bodies(tagged), tagged.next_offset) == ([b"message 3"], 5)


async def test_outside_of_a_queue(tmp_path: Path) -> None:
    await write(tmp_path)
    async with open_store(tiny_config(tmp_path), lambda: NOW_MS) as store:
        assert (await read(store, 5)).next_offset == 5, "nothing is there yet"
        assert (await read(store, 9)).next_offset == 5, "the queue ends before it"
        nowhere = await store.messages("U", 0, 7, messages_max=1, bytes_max=1)
        assert nowhere == ([], [], 0, ())


async def test_a_single_message_of_any_topic(tmp_path: Path) -> None:
    await write(tmp_path)
    damage_record(tmp_path, "T", 2)
    async with open_store(tiny_config(tmp_path), lambda: NOW_MS) as store:
        first, _, _, last = (await read(store)).messages
        found = await store.message_at("T", 0, 4)
        assert found is not None
        assert found.body == b"message 4"
        assert await store.message_at("T", 0, 2) is None
        assert await store.message_at("T", 0, 5) is None
        assert store.damaged.counts == {"T": 1}
        places = [(first.log_offset, first.size), (last.log_offset, last.size)]
        wrong = [(first.log_offset, first.size), (last.log_offset - 3, last.size)]
        assert list(await store.messages_at("T", places)) == [first.log_offset, last.log_offset]
        assert list(await store.messages_at("T", wrong)) == [first.log_offset]
        assert list(await store.messages_at("T", [(1 << 40, 200)])) == []
