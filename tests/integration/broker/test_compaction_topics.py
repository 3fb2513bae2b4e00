"""Compaction topics through a broker's socket: the newest value of each key stays, others go."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, crashed_broker, peer_of, running_broker
from copied_queue import check_layout
from replicated_brokers import broker_group, eventually
from virtual_time import in_virtual_time

from triomq.broker.app import BrokerReady
from triomq.broker.store.compaction.copy_file import CopySizes
from triomq.remoting.core.errors import HeaderFieldError
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    SearchOffsetHeader,
)
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.record import StoredMessage

LOG_BYTES, QUEUE_BYTES = 9200, 46 * 20
SIZES = CopySizes.of(LOG_BYTES, QUEUE_BYTES)
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16_384,
    "compactionMappedFileSize": LOG_BYTES,
    "compactionCqMappedFileSize": QUEUE_BYTES,
    "compactionScheduleInternal": 100,
    "compactionTombstoneTime": 0,
    "deleteWhen": f"{(time.localtime().tm_hour + 12) % 24:02d}",
    "flushConsumeQueueThoroughInterval": 20,
    "flushIntervalConsumeQueue": 10,
    "flushIntervalCommitLog": 10,
    "deleteCommitLogFilesInterval": 0,
    "cleanResourceInterval": 50,
}
KEYS = tuple(f"key {number}" for number in range(5))


async def create(peer: BrokerPeer, topic: str = "Prices", **more: Any) -> None:
    answer = await peer.create_topic(topic, 1, attributes="+cleanup.policy=COMPACTION", **more)
    assert answer.code == 0, answer.remark


async def send_values(peer: BrokerPeer, numbers: range, topic: str = "Prices") -> dict[str, bytes]:
    """Send a value for each number; return the newest ones."""
    values = {}
    for number in numbers:
        key = KEYS[number % len(KEYS)]
        values[key] = b"%d." % number + bytes(200)
        sent = await peer.send(topic, values[key], properties={"KEYS": key})
        assert sent.queue_offset == number
    return values


async def offset_of(peer: BrokerPeer, code: int, header: object) -> int:
    answer = await peer.call(code, header)
    assert answer.code == 0, answer.remark
    return answer.header(OffsetResponseHeader).offset


async def read_all(peer: BrokerPeer, topic: str = "Prices", **more: Any) -> list[StoredMessage]:
    """Read a queue as a consumer does that begins at its smallest offset."""
    found: list[StoredMessage] = []
    offset = await offset_of(peer, Code.GET_MIN_OFFSET, GetMinOffsetHeader(topic, 0))
    while (pulled := await peer.pull(topic, 0, offset, **more)).code in (0, 20):
        assert pulled.header.next_begin_offset >= offset
        if pulled.header.next_begin_offset == offset:  # a slave sends readers back to its master
            break
        found += pulled.messages
        offset = pulled.header.next_begin_offset
    assert pulled.remark == "OFFSET_OVERFLOW_ONE"
    offsets = [message.queue_offset for message in found]
    assert offsets == sorted(set(offsets))
    return found


def newest(messages: list[StoredMessage]) -> dict[str, bytes]:
    table = {message.properties["KEYS"]: message.body for message in messages}
    return {key: body for key, body in table.items() if body}


async def compacted(peer: BrokerPeer, values: dict[str, bytes], count_max: int) -> list[int]:
    """Wait until at most so many messages are left, and no more go; return their offsets."""
    before: list[int] = []
    with trio.fail_after(30):
        while True:
            found = await read_all(peer)
            assert newest(found) == values
            offsets = [message.queue_offset for message in found]
            if len(offsets) <= count_max and offsets == before:
                return offsets
            before = offsets
            await trio.sleep(0.5)


def make_old(root: Path) -> None:
    """All commit log files but the last were written to long ago."""
    seconds = time.time() - 100 * 3600
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        os.utime(path, (seconds, seconds))


async def log_forgets(peer: BrokerPeer, root: Path) -> None:
    """Let the log delete all files but the last."""
    with trio.fail_after(30):
        while len(list((root / "commitlog").iterdir())) > 1:
            make_old(root)
            answer = await peer.call(Code.DELETE_EXPIRED_COMMITLOG)
            assert answer.code == 0
            await trio.sleep(0.05)


@pytest.mark.feature("178a", "178b")
async def test_the_newest_value_of_each_key_outlives_the_log_and_restarts(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        values = await send_values(peer, range(200))
        kept = await compacted(peer, values, 60)
        assert kept[-1] == 199
        # A reader that keeps up, and a search by time, see no difference.
        assert (await peer.pull("Prices", 0, 199)).bodies == [values[KEYS[4]]]
        stored = (await peer.pull("Prices", 0, kept[0])).messages[0].store_timestamp
        search = SearchOffsetHeader("Prices", 0, stored)
        assert await offset_of(peer, Code.SEARCH_OFFSET_BY_TIMESTAMP, search) == kept[0]
        # The log may go: what is left of the values stays.
        await peer.create_topic("Other", 1)
        for _ in range(100):
            await peer.send("Other", bytes(1000))
        await log_forgets(peer, tmp_path)
        assert (await peer.call(Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert await compacted(peer, values, 60) == kept
        maximum = GetMaxOffsetHeader("Prices", 0)
        assert await offset_of(peer, Code.GET_MAX_OFFSET, maximum) == 200

    async def crash(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            assert await compacted(peer, values, 60) == kept
            values.update(await send_values(peer, range(200, 230)))  # numbers go on
            assert newest(await read_all(peer)) == values

    await crashed_broker(tmp_path, crash, **SETTINGS)
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        assert newest(await read_all(peer)) == values
        values.update(await send_values(peer, range(230, 300)))
        await compacted(peer, values, 60)
    check_layout(tmp_path, "Prices", 0, SIZES)


@pytest.mark.feature("178b")
async def test_a_message_without_a_body_deletes_its_key(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        values = await send_values(peer, range(20))
        await peer.send("Prices", b"", properties={"KEYS": KEYS[2], "UNIQ_KEY": "gone"})
        del values[KEYS[2]]
        tombstone = (await read_all(peer))[-1]
        assert (tombstone.body, tombstone.queue_offset) == (b"", 20)
        numbers = [number for number in range(21, 400) if number % 5 != 2]
        for number in numbers:
            key = KEYS[number % 5]
            values[key] = b"%d." % number + bytes(200)
            await peer.send("Prices", values[key], properties={"KEYS": key})
        with trio.fail_after(30):
            while 20 in await compacted(peer, values, 80):
                await trio.sleep(0.1)


async def test_messages_without_a_key_are_refused_alone_and_in_batches(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        for properties in ({}, {"KEYS": " "}, {"TAGS": "t"}):
            answer = await peer.send_raw("Prices", b"x", properties=properties)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "Required message key is missing" in (answer.remark or "")
        for texts, code in (((b"KEYS\1a\2", b"TAGS\1t\2"), 13), ((b"KEYS\1a\2", b"KEYS\1b\2"), 0)):
            batch = encode_batch([(0, b"x", text) for text in texts])
            answer = await peer.send_raw("Prices", batch, batch=True)
            assert answer.code == code, answer.remark
        assert newest(await read_all(peer)) == {"a": b"x", "b": b"x"}
        answer = await peer.send_raw("Prices", bytes(6000), properties={"KEYS": "a"})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "half of compactionMappedFileSize" in (answer.remark or "")
        both = "+cleanup.policy=COMPACTION,+queue.type=BatchCQ"
        answer = await peer.create_topic("Batches", 1, attributes=both)
        assert "does not go with queue.type=BatchCQ" in (answer.remark or "")


@in_virtual_time
async def test_the_log_keeps_what_cannot_be_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "compaction" / "compactionLog"
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        obstacle.parent.mkdir(parents=True)
        obstacle.write_text("not a folder")
        await create(peer)
        values = await send_values(peer, range(200))
        with trio.move_on_after(3):
            await log_forgets(peer, tmp_path)
        assert (await peer.pull("Prices", 0, 0)).header.min_offset == 0
        assert len(await read_all(peer)) == 200
        assert "Prices-0: messages stay in the log, no copy is made" in caplog.text
        obstacle.unlink()
        await log_forgets(peer, tmp_path)
        await compacted(peer, values, 60)


@in_virtual_time
async def test_a_copy_that_a_consumer_failed_comes_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        values = await send_values(peer, range(200))
        kept = await compacted(peer, values, 60)
        (copy, *_) = (await peer.pull("Prices", 0, kept[0])).messages
        assert copy.log_offset < 1000  # an offset in the compaction log
        wanted = SendBackHeader(copy.log_offset, "G", 1, copy.message_id, "Prices")
        answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, wanted)
        assert answer.code == 0, answer.remark
        with trio.fail_after(20):
            while not (came := (await peer.pull("%RETRY%G", 0, 0, hold_ms=5000)).messages):
                pass
        assert (came[0].body, came[0].properties["KEYS"]) == (copy.body, copy.properties["KEYS"])
        other = SendBackHeader(copy.log_offset, "G", 1, "ANOTHER", "Prices")
        answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, other)
        assert "look message by offset failed" in (answer.remark or "")


@in_virtual_time
async def test_a_topic_that_is_made_again_begins_without_copies(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        await compacted(peer, await send_values(peer, range(100)), 60)
        await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Prices"))
        await create(peer)
        values = await send_values(peer, range(3))
        assert newest(await read_all(peer)) == values
        await trio.sleep(1.5)
        assert newest(await read_all(peer)) == values
        values = await send_values(peer, range(3, 200)) | values
        await compacted(peer, newest(await read_all(peer)), 60)


@pytest.mark.feature("178a")
async def test_a_tag_selects_among_the_copies(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await create(peer)
        for number in range(120):
            properties = {"KEYS": str(number), "TAGS": "even" if number % 2 == 0 else "odd"}
            await peer.send("Prices", b"%d" % number + bytes(200), properties=properties)
        await trio.sleep(1.5)
        found = await read_all(peer, expression="odd")
        assert [message.queue_offset for message in found] == list(range(1, 120, 2))


@pytest.mark.feature("178a")
async def test_a_new_slave_gets_values_that_the_log_has_deleted(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master = await group.start(0, **SETTINGS)
        await create(master.peer)
        await create(master.peer, "Quiet")
        quiet = await send_values(master.peer, range(5), "Quiet")
        values = await send_values(master.peer, range(200))
        await compacted(master.peer, values, 60)
        await master.peer.create_topic("Other", 1)
        for _ in range(100):
            await master.peer.send("Other", bytes(1000))
        await log_forgets(master.peer, master.root)
        slave = await group.start(1, slaveReadEnable=True, **SETTINGS)

        async def same() -> bool:
            for topic, wanted in (("Prices", values), ("Quiet", quiet)):
                try:
                    if newest(await read_all(slave.peer, topic)) != wanted:
                        return False
                except (AssertionError, HeaderFieldError):  # it has no such topic yet
                    return False
            return True

        await eventually(same)
        values.update(await send_values(master.peer, range(200, 260)))
        await eventually(same)
        await master.crash()
        await slave.stop()
        # The slave's directory becomes the master's: no value is lost, and numbers go on.
        again = await group.start(0, folder="broker-1", **SETTINGS)
        assert newest(await read_all(again.peer)) == values
        assert newest(await read_all(again.peer, "Quiet")) == quiet
        values.update(await send_values(again.peer, range(260, 300)))
        quiet.update(await send_values(again.peer, range(5, 8), "Quiet"))
        assert newest(await read_all(again.peer)) == values
        assert newest(await read_all(again.peer, "Quiet")) == quiet
