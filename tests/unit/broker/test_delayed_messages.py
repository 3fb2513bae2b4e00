"""Delay levels with a clock in hand: order, times, restarts, and messages whose topic is gone."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.broker.services.delay import DelayedMessages, open_delayed_messages
from triomq.broker.services.delay_delivery import REFUSED_SECONDS, LocalDelivery, RemoteDelivery
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.remote_sender import RemoteSendFailed, RemoteSendRefused
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.broker.services.versions import Version
from triomq.broker.store.config import FlushMode, StoreConfig
from triomq.broker.store.draft import Draft
from triomq.broker.store.errors import StoreError, StoreIoError, StoreUnavailable
from triomq.broker.store.store import MessageStore, open_store
from triomq.remoting.protocol.bodies.offsets import DelayOffsetTable
from triomq.remoting.protocol.message import encode_properties
from triomq.remoting.protocol.record import StoredMessage, decode_records

HOST = bytes([127, 0, 0, 1]) + (1).to_bytes(4, "big")


@attrs.define(eq=False)
class Broker:
    """A store, topics, and the delay service, on one virtual clock."""

    store: MessageStore
    delayed: DelayedMessages
    clock: trio.testing.MockClock
    begin: float
    wall_seconds: float = 0.0
    """How far the wall clock has been set forward."""

    def send(self, body: bytes, level: int, topic: str = "T", queue_id: int = 0, extra: Mapping[str, str] | None = None) -> None:
        properties = encode_properties({"TAGS": "A", "DELAY": str(level), **(extra or {})})
        draft = Draft(topic, queue_id, body, properties, 0, 0, 0, HOST, tags="A")
        self.delayed.schedule(draft, level)
        self.store.append([draft])

    def arrived(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < self.store.max_offset(topic, queue_id):
            found = self.store.get(topic, queue_id, len(bodies), messages_max=1000, bytes_max=10_000_000)
            assert found is not None
            bodies += [message.body for message in decode_records(b"".join(found.chunks))]
        return bodies

    async def at(self, seconds: float) -> None:
        """Move the clock to so many seconds (and a little) after the beginning, and let everybody work, threads included."""
        self.clock.jump(self.begin + seconds + 0.01 - trio.current_time())
        for _ in range(5):
            await trio.to_thread.run_sync(time.sleep, 0.005)
            await trio.testing.wait_all_tasks_blocked()


@attrs.define(eq=False)
class OtherBrokers:
    """Where an acting slave sends: what was taken, and what becomes of the messages of other topics than T."""

    fault: Exception | None = None
    """None: their brokers do not answer before ``answer``."""
    answer: trio.Event = attrs.field(factory=trio.Event)
    taken: list[bytes] = attrs.field(factory=list)
    tried: list[bytes] = attrs.field(factory=list)

    async def send(self, message: StoredMessage) -> None:
        await trio.lowlevel.checkpoint()
        self.tried.append(message.body)
        if message.properties["REAL_TOPIC"] != "T":
            if self.fault is not None:
                raise self.fault
            await self.answer.wait()
        self.taken.append(message.body)


@asynccontextmanager
async def broker(folder: Path, clock: trio.testing.MockClock, *, remote: OtherBrokers | None = None, **settings: Any) -> AsyncIterator[Broker]:
    def clock_ms() -> int:
        return 1_700_000_000_000 + int((trio.current_time() + (it.wall_seconds if it is not None else 0)) * 1000)

    it: Broker | None = None
    sizes: dict[str, Any] = {"segment_size_bytes": 1024 * 1024, "index_slot_count": 100, "index_entry_count": 1000}
    config = StoreConfig(root=folder, **{**sizes, **settings})
    async with open_store(config, clock_ms) as store:
        topics = open_topics(folder, TopicSettings(cluster_name="C", broker_name="b"), LiveSettings(), Version(clock_ms))
        topics.put(new_topic("T", 4))
        delayed = open_delayed_messages(folder, store, topics, Version(clock_ms), clock_ms)
        delayed.start_clock()
        store.on_arrival = delayed.arrived
        delivery = LocalDelivery(delayed) if remote is None else RemoteDelivery(delayed, remote)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delivery.run)
            try:
                it = Broker(store, delayed, clock, trio.current_time())
                yield it
            finally:
                if remote is not None:
                    remote.answer.set()  # nobody moves the clock any more for a send under way to be given up
            nursery.cancel_scope.cancel()
        await store.flusher.flush()
        delayed.table.path.write_bytes(delayed.encode())


async def test_each_level_keeps_its_time_and_its_order(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"30 s", 4)
        it.send(b"5 s", 2)
        it.send(b"1 s", 1)
        await it.at(0.5)
        it.send(b"1 s, later", 1)
        assert it.arrived() == []
        await it.at(1)
        assert it.arrived() == [b"1 s"]
        await it.at(1.5)
        assert it.arrived() == [b"1 s", b"1 s, later"]
        await it.at(5)
        assert it.arrived() == [b"1 s", b"1 s, later", b"5 s"]
        await it.at(29)
        assert len(it.arrived()) == 3
        await it.at(30)
        assert it.arrived()[-1] == b"30 s"
        assert it.delayed.progress() == {1: (2, 2), 2: (1, 1), 4: (1, 1)}


async def test_what_is_delivered_is_the_message_as_it_was(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", 1, queue_id=3)
        await it.at(1)
        found = it.store.get("T", 3, 0, messages_max=1, bytes_max=1, tag_codes=frozenset({ord("A")}))
        assert found is not None
        (message,) = decode_records(b"".join(found.chunks))
        assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 0)
        assert message.properties == {"TAGS": "A", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}
        assert message.born_host_bytes == HOST


async def test_a_level_beyond_the_last_is_the_last(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", 99)
        await it.at(2 * 3600 - 1)
        assert it.arrived() == []
        await it.at(2 * 3600)
        assert it.arrived() == [b"x"]


async def test_many_at_once(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock) as it:
        for number in range(200):
            it.send(b"%d" % number, 1)
        await it.at(1.1)
        assert it.arrived() == [b"%d" % number for number in range(200)]


async def test_a_restart_goes_on_where_it_stopped(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"before", 1)
        await it.at(1)
        it.send(b"waits over the stop", 2)
    mock_clock.jump(60)
    async with broker(tmp_path, mock_clock) as it:
        await it.at(0.1)
        assert it.arrived() == [b"before", b"waits over the stop"], "overdue: at once, and nothing twice"
        it.send(b"after", 1)
        await it.at(1.2)
        assert it.arrived()[-1] == b"after"


async def test_a_message_whose_topic_is_gone_is_dropped_and_stops_nobody(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.delayed.topics.put(new_topic("Gone", 1))
        it.send(b"to nowhere", 1, topic="Gone")
        it.send(b"goes on", 1)
        it.delayed.topics.delete("Gone")
        await it.at(1)
        assert it.arrived() == [b"goes on"]
        assert it.arrived("Gone") == []
    assert "its topic 'Gone' does not exist" in caplog.text


async def test_one_that_has_no_room_for_its_light_queues_is_dropped_and_stops_nobody(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It was stored by a broker that did not give messages to light queues, so that nobody has looked."""
    async with broker(tmp_path, mock_clock, multi_dispatch=True) as it:
        names = ",".join(f"%LMQ%{number}" for number in range(20))
        it.send(b"too much", 1, extra={"INNER_MULTI_DISPATCH": names, "long": "x" * 32_300})
        it.send(b"goes on", 1, extra={"INNER_MULTI_DISPATCH": names})
        await it.at(1)
        assert it.arrived() == it.arrived("%LMQ%7") == [b"goes on"]
    assert "is dropped: the properties have" in caplog.text


@pytest.mark.parametrize("fault", [StoreUnavailable("no space left"), StoreIoError("log", OSError(errno.EIO, "Input/output error"))], ids=["full", "failing"])
async def test_a_full_disk_makes_them_wait(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: StoreError
) -> None:
    def refuse(self: MessageStore, drafts: object) -> None:
        raise fault

    async with broker(tmp_path, mock_clock) as it:
        it.send(b"patient", 1)
        with monkeypatch.context() as patched:
            patched.setattr(MessageStore, "append", refuse)
            await it.at(5)
        await it.at(7)
        assert it.arrived() == [b"patient"]
    assert "delayed messages of level 1 must wait" in caplog.text


async def test_while_a_slave_acts_no_level_waits_for_another(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    others = OtherBrokers()
    async with broker(tmp_path, mock_clock, remote=others) as it:
        it.send(b"slow", 2, topic="U")
        await it.at(5.5)
        assert (others.tried, others.taken) == ([b"slow"], [])
        it.send(b"goes on", 1)
        for second in (6, 7, 8):
            await it.at(second)
        assert (others.tried, others.taken) == ([b"slow", b"goes on"], [b"goes on"])
        others.answer.set()
        await it.at(9)
        assert others.taken == [b"goes on", b"slow"]
        assert it.delayed.progress() == {1: (1, 1), 2: (1, 1)}


async def test_an_acting_slave_drops_what_the_master_would_drop(tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that the master had when the table was copied, and has not any more; one that it may have made since is not gone."""
    others = OtherBrokers(RemoteSendFailed("no other master has this topic"))
    async with broker(tmp_path, mock_clock, remote=others) as it:
        it.send(b"to nowhere", 1, topic="Gone")
        it.send(b"goes on", 1)
        it.delayed.topics.complete_to = it.store.appended.value
        it.send(b"of a topic that is new", 1, topic="New")
        it.send(b"waits behind it", 1)
        await it.at(3)
        assert (others.taken, set(others.tried)) == ([b"goes on"], {b"goes on", b"of a topic that is new"})
        assert it.delayed.progress() == {1: (2, 4)}
        it.delayed.topics.put(new_topic("New", 1))  # the table was copied
        it.delayed.topics.complete_to = it.store.appended.value
        others.fault = RemoteSendFailed("they do not have it, but the master has")
        await it.at(5)
        assert it.delayed.progress() == {1: (2, 4)}
    assert "its topic 'Gone' does not exist" in caplog.text
    assert "its topic 'New'" not in caplog.text
    assert "delayed messages of level 1, from the one at offset 2 on, must wait until this group has its master again" in caplog.text


async def test_what_every_other_broker_refuses_for_good_waits_and_is_told_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    others = OtherBrokers(RemoteSendRefused("topic 'U': b (b:1): 13 too long"))
    async with broker(tmp_path, mock_clock, remote=others) as it:
        it.delayed.topics.put(new_topic("U", 1))
        it.send(b"first", 1)
        it.send(b"nobody wants it", 1, topic="U")
        it.send(b"behind it", 1)
        it.send(b"of another level", 2)
        for second in (2, 6, 20, 40, 80):
            await it.at(second)
        assert others.taken == [b"first", b"of another level"]
        assert it.delayed.progress() == {1: (1, 3), 2: (1, 1)}
        assert 1 < others.tried.count(b"nobody wants it") <= 80 / REFUSED_SECONDS + 1
        assert caplog.text.count("is refused for good by every other master") == 1
        assert "delayed message 1 of level 1" in caplog.text
        assert "topic 'U': b (b:1): 13 too long" in caplog.text


# What makes a message readable, clocks that jump, power failures


async def test_with_sync_flush_it_is_delivered_when_due(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """The entry can be read only after the fsync, long after `schedule`."""
    async with broker(tmp_path, mock_clock, flush_mode=FlushMode.SYNC) as it:
        for number in range(4):
            it.send(b"%d" % number, 1)
            await it.at(1.5 * number)
        await it.at(6)
        assert it.arrived() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("jump", [-3600, 3600])
@pytest.mark.parametrize("before", [True, False], ids=["before the jump", "after the jump"])
async def test_a_wall_clock_that_jumps_neither_stretches_nor_cuts_a_delay(
    tmp_path: Path, mock_clock: trio.testing.MockClock, jump: float, before: bool
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"the time stands still at its store time when the clock is set back", 1)
        await it.at(2)
        if before:
            it.send(b"x", 3)
        it.wall_seconds += jump
        if not before:
            it.send(b"x", 3)
        await it.at(10)
        assert len(it.arrived()) == 1
        await it.at(13.1)  # a clock is believed up to a second
        assert len(it.arrived()) == 2


@pytest.mark.parametrize("jump", [-3600, 0, 3600])
async def test_what_waited_over_a_restart_waits_no_longer_than_its_delay(tmp_path: Path, mock_clock: trio.testing.MockClock, jump: float) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", 3)
        await it.at(4)
    async with broker(tmp_path, mock_clock) as it:
        await it.at(5.9 if jump == 0 else 0.1)
        it.wall_seconds += jump
        assert it.arrived() == []
        await it.at(6.1)
        assert it.arrived() == [b"x"]


async def test_a_backlog_of_one_level_does_not_delay_another(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock, segment_size_bytes=64 << 20) as it:
        for _ in range(64_000):
            it.send(b"backlog", 1)
        it.send(b"punctual", 2, queue_id=1)
        it.clock.jump(it.begin + 5.001 - trio.current_time())
        while not it.arrived(queue_id=1):
            await trio.lowlevel.checkpoint()
        assert it.store.max_offset("T", 0) < 10_000


async def test_progress_is_saved_only_as_far_as_the_disk_has_the_copies(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path, mock_clock, flush_interval_ms=3_600_000) as it:

        def saved() -> object:
            return json.loads(it.delayed.encode())["offsetTable"]

        it.send(b"1", 1)
        await it.at(1.1)
        assert (it.arrived(), it.delayed.offsets, saved()) == ([b"1"], {1: 1}, {})
        changes = it.delayed.table.changes
        assert saved() == {}
        assert it.delayed.table.changes > changes, "what is left is saved with the next round"
        await it.store.flusher.flush()
        it.send(b"2", 1)
        await it.at(2.5)
        assert (it.delayed.offsets, saved()) == ({1: 2}, {"1": 1})
        await it.store.flusher.flush()
        assert saved() == {"1": 2}
        changes = it.delayed.table.changes
        assert saved() == {"1": 2}
        assert it.delayed.table.changes == changes


async def test_progress_beyond_the_own_queue_is_forgotten(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """The log lost its tail in a power failure, or the table was copied from a master that had more."""
    async with broker(tmp_path, mock_clock) as it:
        it.delayed.replace(DelayOffsetTable({1: 60, 2: 5}))
        it.send(b"1", 1)
        assert it.delayed.clamp() == 2
        assert it.delayed.offsets == {1: 1, 2: 0}
        assert it.delayed.clamp() == 0
