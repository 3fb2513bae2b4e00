"""Messages that lie in several queues: INNER_MULTI_DISPATCH names light queues (LMQ), and each
gives the message a number of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from stores import FaultyDisk, SteppingClock, draft, read_all, tiny_config

from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.draft import Draft, check_draft
from triomq.broker.store.core.errors import DiskFull, IllegalMessage
from triomq.broker.store.core.numbering import (
    dispatch_fault,
    dispatch_places,
    may_dispatch,
    with_properties,
)
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.message_properties import encode_properties

A, B = "%LMQ%a", "%LMQ%b"


def to_queues(body: str, *names: str, topic: str = "T", **changes: Any) -> Draft:
    return draft(
        body, topic, special=True, extra={"INNER_MULTI_DISPATCH": ",".join(names)}, **changes
    )


def light_config(root: Path, **changes: Any) -> StoreConfig:
    return tiny_config(root, **{"multi_dispatch": True, **changes})


async def bodies(store: MessageStore, name: str) -> list[str]:
    return [message.body.decode() for message in await read_all(store, name, 0)]


async def test_a_message_has_a_number_in_each_of_its_queues(tmp_path: Path) -> None:
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        store.append(
            [
                to_queues("0", A),
                draft("1"),
                to_queues("2", A, B),
                to_queues("3", B, queue_id=3),
                draft("4"),
            ]
        )
        assert await bodies(store, "T") == ["0", "1", "2", "4"]
        assert await bodies(store, A) == ["0", "2"]
        assert await bodies(store, B) == ["2", "3"]
        (second,) = [message for message in await read_all(store, "T", 0) if message.body == b"2"]
        assert second.properties["INNER_MULTI_QUEUE_OFFSET"] == "1,0"
        assert second.sys_flag == 0
        assert store.queue_table.light_count == 2
        await store.index_syncer.save()
        assert (tmp_path / "consumequeue" / A / "0" / ("0" * 20)).stat().st_size == 200


@pytest.mark.parametrize("how", ["stopped", "crashed", "queues lost", "checkpoint lost"])
async def test_recovery(tmp_path: Path, how: str) -> None:
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        for number in range(40):
            store.append(
                [
                    to_queues(
                        str(number),
                        *[name for name, every in ((A, 2), (B, 3)) if number % every == 0],
                    )
                    if number % 2 * number % 3 == 0
                    else draft(str(number))
                ]
            )
        expected = [await bodies(store, name) for name in ("T", A, B)]
        ends = [store.max_offset(name, 0) for name in ("T", A, B)]
    if how != "stopped":
        (tmp_path / "abort").touch()
    if how in ("queues lost", "checkpoint lost"):
        (tmp_path / "checkpoint").unlink()
    if how == "queues lost":
        for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        assert [await bodies(store, name) for name in ("T", A, B)] == expected
        assert [store.max_offset(name, 0) for name in ("T", A, B)] == ends
        store.append([to_queues("next", A)])
        assert await bodies(store, A) == [*expected[1], "next"]


async def test_the_same_queue_twice_gives_one_number(tmp_path: Path) -> None:
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        store.append([to_queues("0", A, A), to_queues("1", A)])
        assert await bodies(store, A) == ["0", "1"]


async def test_without_the_setting_nothing_is_dispatched(tmp_path: Path) -> None:
    async with open_store(light_config(tmp_path, multi_dispatch=False), SteppingClock()) as store:
        store.append([to_queues("0", A)])
        assert store.queues() == {"T": [0]}
        (message,) = await read_all(store, "T", 0)
        assert "INNER_MULTI_QUEUE_OFFSET" not in message.properties


@pytest.mark.parametrize("topic", ["%RETRY%G", "rmq_sys_X", "SCHEDULE_TOPIC_XXXX"])
async def test_topics_that_are_never_dispatched(tmp_path: Path, topic: str) -> None:
    assert not may_dispatch(topic)
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        store.append([to_queues("0", A, topic=topic)])
        assert store.queues() == {topic: [0]}


async def test_numbers_of_a_failed_append_are_given_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with open_store(light_config(tmp_path), SteppingClock(), disk=disk) as store:
        store.append([to_queues("0", A, B)])
        drafts = [to_queues("1", A), to_queues("2", A, B), draft("3")]
        disk.refuse_write = lambda path: path.parent.name == "commitlog"
        with pytest.raises(DiskFull):
            store.append(drafts)
        disk.refuse_write = lambda path: False
        store.append(drafts)
        assert (await bodies(store, A), await bodies(store, B)) == (["0", "1", "2"], ["0", "2"])
        assert (store.max_offset(A, 0), store.max_offset(B, 0)) == (3, 2)


async def test_arrivals_are_reported_for_every_queue(tmp_path: Path) -> None:
    heard = []
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        store.indexer.on_arrival.append(heard.extend)
        store.append([to_queues("0", A, B, queue_id=2)])
    assert heard == [("T", 2, 1, 0), (A, 0, 1, 0), (B, 0, 1, 0)]


async def test_expiry(tmp_path: Path) -> None:
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        for number in range(60):
            store.append([to_queues(f"{number}" * 20, A), draft("x" * 40)])
        while len(store.log.segments.items) > 1:
            await store.cleaner._delete_segment(store.log.segments.first_offset, "a test")
        await store.cleaner.correct()
        assert (
            store.min_offset(A, 0)
            == store.min_offset("T", 0) // 2 + store.min_offset("T", 0) % 2
            > 0
        )
        left = await bodies(store, A)
        assert left == [f"{number}" * 20 for number in range(60)][-len(left) :]


@asynccontextmanager
async def waiting_for_the_disk(store: MessageStore) -> AsyncIterator[None]:
    """Messages appended meanwhile are confirmed and indexed at the end."""
    gate = trio.CapacityLimiter(1)
    await gate.acquire()
    store.flusher.limiter = gate
    try:
        yield
    finally:
        gate.release()
        with trio.fail_after(30):
            await store.indexed.wait_reached(store.appended.value)


@pytest.mark.parametrize("from_log", [False, True], ids=["from memory", "from the log"])
@pytest.mark.parametrize("new_first", [False, True])
async def test_a_light_queue_that_is_deleted_while_its_messages_wait_for_the_disk(
    tmp_path: Path, from_log: bool, new_first: bool
) -> None:
    """With SYNC_FLUSH: otherwise their entries would be in the next queue of that name."""
    async with open_store(
        light_config(tmp_path, flush_mode=FlushMode.SYNC), SteppingClock()
    ) as store:
        store.append([to_queues("0", A, B)])
        with trio.fail_after(30):
            await store.indexed.wait_reached(store.appended.value)
        if from_log:
            store.indexer.backlog_bytes_max = 0
        async with waiting_for_the_disk(store):
            store.append([to_queues("1", A, A), to_queues("2", B, A)])
            store.delete_topic(A)
            if new_first:
                store.append([to_queues("3", A)])
        assert store.queue_table._deleted == {}
        assert ((A, 0) in store.queue_table.queues) is new_first
        store.append([to_queues(str(number), A, B) for number in range(3 + new_first, 6)])
        with trio.fail_after(30):
            await store.indexed.wait_reached(store.appended.value)
        assert await bodies(store, A) == ["3", "4", "5"]
        assert (store.min_offset(A, 0), store.max_offset(A, 0)) == (0, 3)
        assert await bodies(store, B) == ["0", "2", *["3", "4", "5"][new_first:]]
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        assert await bodies(store, A) == ["3", "4", "5"]


async def test_light_queues_of_a_deleted_topic_keep_the_order_of_the_log(tmp_path: Path) -> None:
    """Messages of a deleted topic and of another one, in one batch and one light queue; and the
    same with the light queue deleted, too.
    """
    async with open_store(
        light_config(tmp_path, flush_mode=FlushMode.SYNC), SteppingClock()
    ) as store:
        async with waiting_for_the_disk(store):
            store.append(
                [to_queues("0", A, B), to_queues("1", A, B, topic="Gone"), to_queues("2", A, B)]
            )
            store.delete_topic("Gone")
            store.delete_topic(B)
        assert store.queue_table._deleted == {}
        assert await bodies(store, A) == ["0", "1", "2"]
        assert await bodies(store, "T") == ["0", "2"]
        assert {"Gone", B}.isdisjoint(store.queues())


def test_names_that_cannot_be_queues() -> None:
    assert dispatch_fault([A, B]) is None
    for name in ("other", "", "%LMQ%a/b", "%LMQ%" + "x" * 251):
        assert "INNER_MULTI_DISPATCH names" in (dispatch_fault([A, name]) or "")


async def test_unchecked_names_take_no_numbers_of_other_topics(tmp_path: Path) -> None:
    """A message that was stored before the setting was switched on, and is delivered afterwards."""
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        store.append([draft("0", "Other")])
        store.append([to_queues("1", "Other"), to_queues("2", A, "Other")])
        store.append([draft("3", "Other")])
        assert await bodies(store, "Other") == ["0", "3"]
        assert await bodies(store, "T") == ["1", "2"]
        assert A not in store.queues()


def test_places_of_a_record() -> None:
    def places(names: str, numbers: str) -> list[tuple[str, int]]:
        return dispatch_places(
            encode_properties({"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": numbers})
        )

    assert places(f"{A},{B}", "7,12") == [(A, 7), (B, 12)]
    assert places(f"{A},{B}", "7") == []
    assert places(f"{A},other", "7,8") == [(A, 7)]
    assert places(f"{A},{B}", "x,8") == [(B, 8)]


def test_properties_are_replaced_not_doubled() -> None:
    text = b"A\x011\x02INNER_BASE\x017\x02B\x012"
    assert (
        with_properties(text, {b"INNER_BASE": b"9"}) == b"A\x011\x02B\x012\x02INNER_BASE\x019\x02"
    )


def test_room_for_the_numbers_is_left(tmp_path: Path) -> None:
    config = light_config(tmp_path, segment_size_bytes=1 << 20)
    message = to_queues("0", A)
    message.properties += b"x\x01" + b"y" * (32_767 - len(message.properties) - 3) + b"\x02"
    assert len(message.properties) == 32_767
    with pytest.raises(IllegalMessage, match="the properties have"):
        check_draft(message, config)


async def test_a_deleted_light_queue_no_longer_counts(tmp_path: Path) -> None:
    async with open_store(light_config(tmp_path), SteppingClock()) as store:
        for _ in range(2):
            store.append([to_queues("0", A, B)])
            assert store.queue_table.light_count == 2
            store.delete_topic(A)
            assert store.queue_table.light_count == 1
            store.delete_topic("T")
            assert store.queue_table.light_count == 1
            store.delete_topic(B)
            assert store.queue_table.light_count == 0
