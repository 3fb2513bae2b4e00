"""Delay levels with a clock in hand: order, times, restarts, and messages whose topic is gone."""

from __future__ import annotations

import errno
import itertools
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
from triomq.broker.services.delay_slots import SLOT_BYTES, DelaySlots
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import Version
from triomq.broker.services.remote_sender import RemoteSendFailed, RemoteSendRefused
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.errors import StoreError, StoreIoError, StoreUnavailable
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.offsets import DelayOffsetTable
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

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

    def send(
        self,
        body: bytes,
        level: int,
        topic: str = "T",
        queue_id: int = 0,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        properties = encode_properties({"TAGS": "A", "DELAY": str(level), **(extra or {})})
        draft = Draft(topic, queue_id, body, properties, 0, 0, 0, HOST, tags="A")
        self.delayed.schedule(draft, level)
        self.store.append([draft])

    def arrived(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < self.store.max_offset(topic, queue_id):
            found = self.store.get(
                topic, queue_id, len(bodies), messages_max=1000, bytes_max=10_000_000
            )
            assert found is not None
            bodies += [message.body for message in decode_records(b"".join(found.chunks))]
        return bodies

    async def at(self, seconds: float) -> None:
        """Move the clock to just after ``seconds`` from the beginning, and let all tasks and
        threads run, also one that waits for a slow disk.
        """
        self.clock.jump(self.begin + seconds + 0.01 - trio.current_time())
        rounds = 0
        while rounds < 5 or self.flush_is_due():
            await trio.to_thread.run_sync(time.sleep, 0.005)
            await trio.testing.wait_all_tasks_blocked()
            rounds += 1

    def flush_is_due(self) -> bool:
        sync = self.store.config.flush_mode is FlushMode.SYNC
        return sync and self.store.flushed.value < self.store.appended.value


@attrs.define(eq=False)
class OtherBrokers:
    """Stands in for other masters: keeps what they take; other topics than T can fail."""

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
async def broker(
    folder: Path,
    clock: trio.testing.MockClock,
    *,
    remote: OtherBrokers | None = None,
    save: bool = True,
    **settings: Any,
) -> AsyncIterator[Broker]:
    def clock_ms() -> int:
        return 1_700_000_000_000 + int(
            (trio.current_time() + (it.wall_seconds if it is not None else 0)) * 1000
        )

    it: Broker | None = None
    sizes: dict[str, Any] = {
        "segment_size_bytes": 1024 * 1024,
        "index_slot_count": 100,
        "index_entry_count": 1000,
    }
    config = StoreConfig(root=folder, **{**sizes, **settings})
    async with open_store(config, clock_ms) as store:
        topics = open_topics(
            folder,
            TopicSettings(cluster_name="C", broker_name="b"),
            LiveSettings(),
            Version(clock_ms),
        )
        topics.put(new_topic("T", 4))
        delayed = open_delayed_messages(folder, store, topics, Version(clock_ms), clock_ms)
        delayed.start_clock()
        store.indexer.on_arrival.append(delayed.arrived)
        delivery = (
            LocalDelivery(delayed, Statistics(clock_ms))
            if remote is None
            else RemoteDelivery(delayed, remote)  # type: ignore[arg-type]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delivery.run)
            try:
                it = Broker(store, delayed, clock, trio.current_time())
                yield it
            finally:
                if remote is not None:
                    # The clock stands still from here on, so a send in flight would not time out.
                    remote.answer.set()
            nursery.cancel_scope.cancel()
        await store.flusher.flush()
        if save:
            delayed.path.write_bytes(delayed.encode())


@pytest.mark.feature("111a", "113a")
async def test_each_level_keeps_its_time_and_its_order(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
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


@pytest.mark.feature("113b")
async def test_a_delivered_message_is_the_one_that_was_sent(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", 1, queue_id=3)
        await it.at(1)
        found = it.store.get(
            "T", 3, 0, messages_max=1, bytes_max=1, tag_codes=frozenset({ord("A")})
        )
        assert found is not None
        (message,) = decode_records(b"".join(found.chunks))
        assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 0)
        assert message.properties == {"TAGS": "A", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}
        assert message.born_host_bytes == HOST


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(18, marks=pytest.mark.feature("111c")),
        pytest.param(20, marks=pytest.mark.feature("111e")),
        99,
    ],
)
async def test_a_level_beyond_the_last_is_the_last(
    tmp_path: Path, mock_clock: trio.testing.MockClock, level: int
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", level)
        await it.at(2 * 3600 - 1)
        assert it.arrived() == []
        await it.at(2 * 3600)
        assert it.arrived() == [b"x"]


async def test_many_messages_are_delivered_at_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        for number in range(200):
            it.send(b"%d" % number, 1)
        await it.at(1.1)
        assert it.arrived() == [b"%d" % number for number in range(200)]


@pytest.mark.feature("113c")
async def test_delivery_goes_on_after_a_restart_where_it_stopped(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"before", 1)
        await it.at(1)
        it.send(b"waits over the stop", 2)
    mock_clock.jump(60)
    async with broker(tmp_path, mock_clock) as it:
        await it.at(0.1)
        assert it.arrived() == [b"before", b"waits over the stop"], (
            "overdue: at once, and nothing twice"
        )
        it.send(b"after", 1)
        await it.at(1.2)
        assert it.arrived()[-1] == b"after"


async def test_a_message_whose_topic_is_gone_is_dropped_and_the_next_are_delivered(
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


async def test_a_message_without_room_for_its_light_queues_is_dropped_and_the_next_are_delivered(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker without light queues has stored it, and has not checked that."""
    async with broker(tmp_path, mock_clock, multi_dispatch=True) as it:
        names = ",".join(f"%LMQ%{number}" for number in range(20))
        it.send(b"too much", 1, extra={"INNER_MULTI_DISPATCH": names, "long": "x" * 32_300})
        it.send(b"goes on", 1, extra={"INNER_MULTI_DISPATCH": names})
        await it.at(1)
        assert it.arrived() == it.arrived("%LMQ%7") == [b"goes on"]
    assert "is dropped: the properties have" in caplog.text


@pytest.mark.parametrize(
    "fault",
    [
        StoreUnavailable("no space left"),
        StoreIoError("log", OSError(errno.EIO, "Input/output error")),
    ],
    ids=["full", "failing"],
)
async def test_messages_wait_while_the_disk_is_full(
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: StoreError,
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


async def test_while_a_slave_acts_no_level_waits_for_another(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
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


async def test_an_acting_slave_drops_what_the_master_would_drop(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that the master has deleted since the table was copied; a topic that it may have
    created since counts as existing.
    """
    others = OtherBrokers(RemoteSendFailed("no other master has this topic"))
    async with broker(tmp_path, mock_clock, remote=others) as it:
        it.send(b"to nowhere", 1, topic="Gone")
        it.send(b"goes on", 1)
        it.delayed.topics.complete_to = it.store.appended.value
        it.send(b"of a topic that is new", 1, topic="New")
        it.send(b"waits behind it", 1)
        await it.at(3)
        assert (others.taken, set(others.tried)) == (
            [b"goes on"],
            {b"goes on", b"of a topic that is new"},
        )
        assert it.delayed.progress() == {1: (2, 4)}
        it.delayed.topics.put(new_topic("New", 1))  # the table was copied
        it.delayed.topics.complete_to = it.store.appended.value
        others.fault = RemoteSendFailed("they do not have it, but the master has")
        await it.at(5)
        assert it.delayed.progress() == {1: (2, 4)}
    assert "its topic 'Gone' does not exist" in caplog.text
    assert "its topic 'New'" not in caplog.text
    assert (
        "delayed messages of level 1, from offset 2 on, must wait until this group has its"
        " master again" in caplog.text
    )


async def test_a_message_that_all_other_brokers_refuse_permanently_waits_and_is_logged_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    others = OtherBrokers(RemoteSendRefused("topic 'U': b (b:1): 13 too long"))
    async with broker(tmp_path, mock_clock, remote=others) as it:
        it.delayed.topics.put(new_topic("U", 1))
        it.send(b"first", 1)
        it.send(b"unwanted", 1, topic="U")
        it.send(b"behind it", 1)
        it.send(b"of another level", 2)
        for second in (2, 6, 20, 40, 80):
            await it.at(second)
        assert others.taken == [b"first", b"of another level"]
        assert it.delayed.progress() == {1: (1, 3), 2: (1, 1)}
        assert 1 < others.tried.count(b"unwanted") <= 80 / REFUSED_SECONDS + 1
        assert caplog.text.count("is refused permanently by every other master") == 1
        assert "delayed message 1 of level 1" in caplog.text
        assert "topic 'U': b (b:1): 13 too long" in caplog.text
        it.delayed.advance(1, 2)  # the master was here, and has delivered it
        it.send(b"unwanted, too", 1, topic="U")
        for second in (120, 160):
            await it.at(second)
        assert it.delayed.progress()[1] == (3, 4)
        assert caplog.text.count("is refused permanently by every other master") == 2


# What makes a message readable, clocks that jump, power failures


async def test_a_message_with_sync_flush_is_delivered_when_due(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The entry can be read only after the fsync, long after ``schedule``."""
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
        await it.at(13.1)  # the wall clock is trusted up to a second
        assert len(it.arrived()) == 2


@pytest.mark.feature("111b", "113c")
@pytest.mark.parametrize("jump", [-3600, 0, 3600])
async def test_a_message_from_before_a_restart_waits_no_longer_than_its_delay(
    tmp_path: Path, mock_clock: trio.testing.MockClock, jump: float
) -> None:
    async with broker(tmp_path, mock_clock) as it:
        it.send(b"x", 3)
        await it.at(4)
    async with broker(tmp_path, mock_clock) as it:
        await it.at(5.9 if jump == 0 else 0.1)
        it.wall_seconds += jump
        assert it.arrived() == []
        await it.at(6.1)
        assert it.arrived() == [b"x"]


async def test_a_backlog_of_one_level_does_not_delay_another(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path, mock_clock, segment_size_bytes=64 << 20) as it:
        for _ in range(64_000):
            it.send(b"backlog", 1)
        it.send(b"punctual", 2, queue_id=1)
        it.clock.jump(it.begin + 5.001 - trio.current_time())
        while not it.arrived(queue_id=1):
            await trio.lowlevel.checkpoint()
        assert it.store.max_offset("T", 0) < 10_000


async def test_progress_is_saved_only_as_far_as_the_disk_has_the_copies(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path, mock_clock, flush_interval_ms=3_600_000) as it:

        def saved() -> object:
            return json.loads(it.delayed.encode())["offsetTable"]

        it.send(b"1", 1)
        await it.at(1.1)
        assert (it.arrived(), it.delayed.offsets, saved()) == ([b"1"], {1: 1}, {})
        changes = it.delayed.changes
        assert saved() == {}
        assert it.delayed.changes > changes, "what is left is saved with the next round"
        await it.store.flusher.flush()
        it.send(b"2", 1)
        await it.at(2.5)
        assert (it.delayed.offsets, saved()) == ({1: 2}, {"1": 1})
        await it.store.flusher.flush()
        assert saved() == {"1": 2}
        changes = it.delayed.changes
        assert saved() == {"1": 2}
        assert it.delayed.changes == changes


@asynccontextmanager
async def undelivered(folder: Path) -> AsyncIterator[tuple[MessageStore, DelayedMessages]]:
    """The progress without delivery; the disk has what ``flush`` is called for."""
    async with open_store(
        StoreConfig(root=folder, segment_size_bytes=1024 * 1024, flush_interval_ms=3_600_000)
    ) as store:
        topics = open_topics(
            folder,
            TopicSettings(cluster_name="C", broker_name="b"),
            LiveSettings(),
            Version(lambda: 1),
        )
        yield store, open_delayed_messages(folder, store, topics, Version(lambda: 1), lambda: 1)


def saved_progress(delayed: DelayedMessages) -> object:
    return json.loads(delayed.encode())["offsetTable"]


async def test_progress_without_copies_waits_for_the_copies_before_it(tmp_path: Path) -> None:
    """The second message needs no copy. If its progress were saved before the disk has the copy of
    the first, a crash would lose the first.
    """
    async with undelivered(tmp_path) as (store, delayed):
        (copy,) = store.append([Draft("T", 0, b"a copy", b"", 0, 0, 0, HOST)])
        delayed.advance(1, 1, copy.log_offset + copy.size)
        delayed.advance(1, 2)
        delayed.advance(2, 7)
        assert saved_progress(delayed) == {"2": 7}
        await store.flusher.flush()
        assert saved_progress(delayed) == {"1": 2, "2": 7}


async def test_progress_that_is_taken_over_is_saved_and_replaces_progress_that_waits_for_the_disk(
    tmp_path: Path,
) -> None:
    async with undelivered(tmp_path) as (store, delayed):
        (copy,) = store.append([Draft("T", 0, b"a copy", b"", 0, 0, 0, HOST)])
        delayed.advance(1, 3, copy.log_offset + copy.size)
        changes, counter = delayed.changes, delayed.version.current.counter
        assert delayed.take_back(DelayOffsetTable({1: 5, 2: 4})) == 2
        await store.flusher.flush()
        assert saved_progress(delayed) == {"1": 5, "2": 4}
        assert delayed.changes > changes
        assert delayed.version.current.counter > counter, (
            "a slave copies a table only when its version is another"
        )
        changes, counter = delayed.changes, delayed.version.current.counter
        assert delayed.take_back(DelayOffsetTable({1: 5, 2: 1})) == 0
        assert (delayed.changes, delayed.version.current.counter) == (changes, counter)
        delayed.replace(DelayOffsetTable({1: 2}, DataVersion(0, 9, 77)))
        assert (delayed.offsets, saved_progress(delayed), delayed.version.current) == (
            {1: 2},
            {"1": 2},
            DataVersion(0, 9, 77),
        )
        assert delayed.changes > changes
        changes = delayed.changes
        delayed.replace(DelayOffsetTable({1: 2}, DataVersion(0, 9, 78)))
        assert delayed.changes == changes


async def test_every_time_that_a_slave_acts_its_first_delivery_makes_a_new_version(
    tmp_path: Path,
) -> None:
    """A Java master takes over the table only if its version is newer than its own, also the second
    time.
    """
    async with undelivered(tmp_path) as (store, delayed):
        delayed.start_clock()
        delivery = RemoteDelivery(delayed, OtherBrokers())  # type: ignore[arg-type]
        counters = [delayed.version.current.counter]
        for _ in range(2):
            with trio.CancelScope() as scope:
                scope.cancel()
                await delivery.run()
            for _ in range(3):
                draft = Draft("T", 0, b"due", b"", 0, 0, 0, HOST)
                delayed.schedule(draft, 2)
                (place,) = store.append([draft])
                assert (
                    await delivery.deliver(
                        2, decode_records(await store.read_record(place.log_offset) or b"")
                    )
                    == 0.0
                )
            counters.append(delayed.version.current.counter)
        assert [after - before for before, after in itertools.pairwise(counters)] == [1, 1]


async def test_progress_beyond_the_end_of_the_queue_is_lowered(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The log lost its tail in a power failure, or the table is a copy from a master with a longer
    log.
    """
    async with broker(tmp_path, mock_clock) as it:
        it.delayed.replace(DelayOffsetTable({1: 60, 2: 5}))
        it.send(b"1", 1)
        assert it.delayed.clamp() == 2
        assert it.delayed.offsets == {1: 1, 2: 0}
        assert it.delayed.clamp() == 0


async def test_a_kill_repeats_no_delivery(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Nothing is saved: neither the table, nor anything by an orderly stop."""
    for number in range(3):
        async with broker(tmp_path, mock_clock, save=False) as it:
            it.send(b"%d" % number, 1)
            await it.at(1)
            assert it.arrived() == [b"%d" % each for each in range(number + 1)]
    assert not (tmp_path / "delayOffset.json").exists()


async def test_a_kill_of_an_acting_slave_repeats_no_delivery(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    others = OtherBrokers()
    for number in range(3):
        async with broker(tmp_path, mock_clock, remote=others, save=False) as it:
            it.send(b"%d" % number, 1)
            await it.at(1)
    assert others.taken == [b"0", b"1", b"2"]


async def test_what_a_java_broker_has_delivered_meanwhile_is_not_delivered_again(
    tmp_path: Path,
) -> None:
    async with undelivered(tmp_path) as (store, delayed):
        delayed.advance(1, 3)
        delayed.advance(2, 8)
    table = DelayOffsetTable({1: 5, 2: 6})
    (tmp_path / "delayOffset.json").write_bytes(table.encode())
    async with undelivered(tmp_path) as (store, delayed):
        assert delayed.offsets == {1: 5, 2: 8}
        store.append([Draft("T", 0, b"x", b"", 0, 0, 0, HOST)])
        assert delayed.dirty, "the farther progress is saved soon"


async def test_progress_from_before_a_kill_is_saved_when_the_disk_has_its_copies(
    tmp_path: Path,
) -> None:
    async with undelivered(tmp_path) as (store, delayed):
        (copy,) = store.append([Draft("T", 0, b"a copy", b"", 0, 0, 0, HOST)])
        delayed.advance(1, 1, copy.log_offset + copy.size)
        # As a start after a kill finds it: the log is whole, but not yet on the disk.
        again = open_delayed_messages(
            tmp_path, store, delayed.topics, Version(lambda: 1), lambda: 1
        )
        assert again.offsets == {1: 1}
        assert saved_progress(again) == {}
        await store.flusher.flush()
        assert saved_progress(again) == {"1": 1}


class NotedSyncs(Disk):
    """A disk that notes which files it forced out."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_path(self, path: Path) -> None:
        super().sync_path(path)
        self.synced.append(path)


def test_a_slot_counts_only_if_the_log_has_its_copies(tmp_path: Path) -> None:
    disk = NotedSyncs()
    slots = DelaySlots(disk, tmp_path / "delayDelivered")
    assert slots.load(10_000) == {}
    slots.write({1: 7}, 1_000)
    slots.write({18: 9}, 3_000)
    assert slots.load(3_000) == {1: 7, 18: 9}
    assert disk.synced == []
    assert slots.load(2_999) == {1: 7}, "a power failure has cut the log"
    assert disk.synced == [slots.path]
    assert slots.load(10_000) == {1: 7}, "and what is written behind it is something else"
    slots.write({18: 10}, 10_000)
    assert slots.load(10_000) == {1: 7, 18: 10}


def test_a_damaged_slot_does_not_count(tmp_path: Path) -> None:
    slots = DelaySlots(Disk(), tmp_path / "delayDelivered")
    slots.write({1: 7, 2: 8, 3: 9}, 1_000)
    data = bytearray(slots.path.read_bytes())
    data[SLOT_BYTES + 7] ^= 1
    slots.path.write_bytes(data[:-1])
    assert slots.load(1_000) == {1: 7}
    assert slots.load(1_000) == {1: 7}


def test_slots_that_cannot_be_written_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = DelaySlots(Disk(), tmp_path / "config" / "delayDelivered")
    slots.write({1: 7}, 0)
    assert slots.load(0) == {1: 7}
    slots.path.unlink()
    slots.path.mkdir()
    for _ in range(3):
        slots.write({1: 7}, 0)
    assert caplog.text.count("delayDelivered cannot be written") == 1
