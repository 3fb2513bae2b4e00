"""The store against a list: any mixture of appends, reads, flushes, expiry, clean stops, kills and
power failures, with files so small that everything rolls.

What must hold: a message that the page cache had survives a kill, one that was flushed survives a
power failure; the log is a prefix of what was appended; queue offsets are dense; the index finds
exactly what is there; reads agree with the list. What has expired is gone from the front of log and
queues, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from simulated_disk import SimulatedDisk
from stores import SteppingClock, draft, find_bodies, read_all, tiny_config

from triomq.broker.store import cleaner
from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreError
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.indexing import index_syncer
from triomq.broker.store.io.checkpoint import Checkpoint
from triomq.broker.store.log import commit_log as commitlog
from triomq.broker.store.log.flusher import sync_files
from triomq.broker.store.opening import close_files, finish_store, load_store
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.record_reader import decode_records

TOPICS = ("A", "B")
QUEUES = 2
KEYS = ("k1", "k2", "k3")
TAGS = (None, "red", "blue")

one_draft = st.tuples(
    st.sampled_from(TOPICS),
    st.integers(0, QUEUES - 1),
    st.integers(0, 900),
    st.sampled_from(TAGS),
    st.lists(st.sampled_from(KEYS), max_size=3),
    st.booleans(),
)


@attrs.frozen
class Sent:
    """One message of the model."""

    draft: Draft
    place: Appended


class StoreMachine(RuleBasedStateMachine):
    """``sent`` is the model: every message that must be there, in log order."""

    flush_mode = FlushMode.ASYNC

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.clock = SteppingClock(step_ms=300)
        self.sent: list[Sent] = []
        self.lives = 0
        self.counter = 0
        self.oldest = 0
        """Where the log begins: everything before it has expired."""
        self.fresh = 0
        """Messages since the last start: without any, dying again shows nothing new."""
        self.store: MessageStore
        self.disk: SimulatedDisk

    # Life and death

    @initialize()
    def first_start(self) -> None:
        (self.base / "0").mkdir()
        self._open()

    def _open(self) -> None:
        self.fresh = 0
        self.root = self.base / str(self.lives)
        self.disk = SimulatedDisk(self.root)
        checkpoint = self.root / "checkpoint"
        marked = checkpoint.exists() and Checkpoint.decode(checkpoint.read_bytes()).mark is not None
        self.store = trio.run(
            load_store,
            tiny_config(self.root, flush_mode=self.flush_mode, hot_bytes_max=2_000),
            self.clock,
            self.disk,
        )
        assert self.store.recovered.trusted == marked  # our own mark is always true

    def _next_life(self) -> Path:
        self.lives += 1
        return self.base / str(self.lives)

    @precondition(lambda self: self.fresh)
    @rule(how=st.sampled_from(["stop", "kill", "power", "power"]), seed=st.integers(0, 1 << 32))
    def restart(self, how: str, seed: int) -> None:
        if how == "stop":
            self.stop_and_start()
        elif how == "kill":
            self.kill()
        else:
            self.fail_power(seed)
        self._check_everything()

    def stop_and_start(self) -> None:
        trio.run(finish_store, self.store)
        close_files(self.store)
        assert not (self.root / "abort").exists()
        shutil.copytree(self.root, self._next_life())
        self._open()
        assert self.store.recovered.records == 0

    def kill(self) -> None:
        """The process dies; the page cache lives on."""
        shutil.copytree(self.root, self._next_life())
        close_files(self.store)
        self._open()

    def fail_power(self, seed: int) -> None:
        """Only what was forced to the disk is sure; of the rest any part may be there."""
        flushed = self.store.flushed.value
        self.disk.image().after_power_failure(self._next_life(), seed)
        close_files(self.store)
        self._open()
        end = self.store.appended.value
        assert end >= flushed
        self.sent = [sent for sent in self.sent if sent.place.log_offset < end]
        assert not self.sent or self.sent[-1].place.log_offset + self.sent[-1].place.size <= end

    # Work

    @rule(items=st.lists(one_draft, min_size=1, max_size=12))
    def append(self, items: list[tuple[Any, ...]]) -> None:
        drafts = []
        for topic, queue_id, size, tags, keys, unique in items:
            self.counter += 1
            body = f"{self.counter}:".encode() + b"x" * size
            drafts.append(
                draft(
                    body,
                    topic,
                    queue_id,
                    tags=tags,
                    keys=" ".join(keys) or None,
                    unique_key=f"U{self.counter}" if unique else None,
                )
            )
        places = self.store.append(drafts)
        self.fresh += len(places)
        self.sent += [Sent(item, place) for item, place in zip(drafts, places, strict=True)]

    @rule(what=st.sampled_from(["flush", "write queue entries out", "save checkpoint"]))
    def background(self, what: str) -> None:
        if what == "write queue entries out":
            for _ in self.store.queue_table.write_out():
                pass
        elif what == "save checkpoint":
            trio.run(self.store.index_syncer.save)
        else:
            trio.run(self.store.flusher.flush)
            trio.run(self.store.indexer.catch_up)
            assert self.store.flushed.value == self.store.appended.value == self.store.indexed.value

    @rule(count=st.integers(1, 3), forced=st.booleans(), saved=st.booleans())
    def expire(self, count: int, forced: bool, saved: bool) -> None:
        """The oldest segments are old, or the disk is full; the newest of them may be
        needed still.
        """
        for segment in self.store.log.segments.items[:count]:
            os.utime(segment.path, (0, 0))
        self.disk.full = forced
        if saved:
            trio.run(self.store.flusher.flush)
            trio.run(self.store.indexer.catch_up)
            trio.run(self.store.index_syncer.save)
        self.store.cleaner.delete_expired_soon()
        trio.run(self.store.cleaner.round)
        self.store.health.disk_reserve = None
        oldest = self.store.log.first_offset
        mark = self.store.index_syncer.current.mark
        assert (
            self.oldest <= oldest <= max(self.oldest, mark.record_offset if mark is not None else 0)
        )
        self.fresh += oldest > self.oldest
        self.oldest = oldest
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                assert self.store.min_offset(topic, queue_id) == self.first(topic, queue_id)

    # Questions

    def shown(self) -> list[Sent]:
        """What can be read."""
        return [
            sent
            for sent in self.sent
            if self.oldest <= sent.place.log_offset < self.store.indexed.value
        ]

    def queue(self, topic: str, queue_id: int) -> list[Sent]:
        """Every message that the queue ever had."""
        return [
            sent
            for sent in self.sent
            if (sent.draft.topic, sent.draft.queue_id) == (topic, queue_id)
            and sent.place.log_offset < self.store.indexed.value
        ]

    def first(self, topic: str, queue_id: int) -> int:
        """The smallest offset that can be read."""
        return sum(sent.place.log_offset < self.oldest for sent in self.queue(topic, queue_id))

    @rule(data=st.data(), topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1))
    def ask(self, data: st.DataObject, topic: str, queue_id: int) -> None:
        """One question of each kind."""
        self.get(topic, queue_id, data.draw(st.integers(0, 40)), data.draw(st.integers(1, 40)))
        if self.sent:
            sent = data.draw(st.sampled_from(self.sent))
            self.read_record(sent)
            self.search_by_time(
                topic,
                queue_id,
                sent.place.store_timestamp + data.draw(st.integers(-1, 1)),
                data.draw(st.booleans()),
            )
        self._check_key(topic, data.draw(st.sampled_from([*KEYS, "T#red", "T#blue"])))

    def get(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        expected = self.queue(topic, queue_id)
        result = trio.run(
            lambda: self.store.get_cold(
                topic, queue_id, offset, messages_max=count, bytes_max=1 << 20
            )
        )
        found = decode_records(b"".join(result.chunks), check_crc=True)
        first = self.first(topic, queue_id)
        assert result.max_offset == len(expected)
        if offset < first:
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
            expected = []
        elif offset < len(expected):
            assert result.status is GetStatus.FOUND
            assert result.next_offset == offset + len(found) > offset
        assert [message.body for message in found] == [
            sent.draft.body for sent in expected[offset : offset + len(found)]
        ]

    def read_record(self, sent: Sent) -> None:
        record = trio.run(self.store.read_record, sent.place.log_offset)
        if sent.place.log_offset < self.oldest:
            assert record is None
            return
        assert record is not None
        assert decode_records(record, check_crc=True)[0].body == sent.draft.body
        assert trio.run(self.store.read_record, sent.place.log_offset + 1) is None

    def search_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool) -> None:
        first = self.first(topic, queue_id)
        times = [sent.place.store_timestamp for sent in self.queue(topic, queue_id)][first:]
        answer = trio.run(lambda: self.store.offset_by_time(topic, queue_id, time_ms, upper=upper))
        if upper:
            assert answer == first + max(0, sum(stored <= time_ms for stored in times) - 1)
        else:
            assert answer == first + sum(stored < time_ms for stored in times)

    def _check_key(self, topic: str, key: str) -> None:
        def carries(item: Draft) -> bool:
            words = (item.keys or "").split()
            return (
                key == item.unique_key
                or key in words
                or (item.tags is not None and key == f"T#{item.tags}")
            )

        expected = [
            sent.draft.body
            for sent in self.shown()
            if sent.draft.topic == topic and carries(sent.draft)
        ]
        assert trio.run(find_bodies, self.store, topic, key) == expected[-64:]

    def _check_everything(self) -> None:
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                first = self.first(topic, queue_id)
                expected = self.queue(topic, queue_id)[first:]
                found = trio.run(read_all, self.store, topic, queue_id)
                assert [message.body for message in found] == [sent.draft.body for sent in expected]
                assert [message.queue_offset for message in found] == list(
                    range(first, first + len(expected))
                )
                assert (
                    self.store.min_offset(topic, queue_id),
                    self.store.max_offset(topic, queue_id),
                ) == (first, first + len(expected))
                assert [message.log_offset for message in found] == [
                    sent.place.log_offset for sent in expected
                ]
            for key in (*KEYS, "T#red", "T#blue"):
                self._check_key(topic, key)
        for sent in self.shown()[-30:]:
            if sent.draft.unique_key:
                self._check_key(sent.draft.topic, sent.draft.unique_key)

    @invariant()
    def watermarks_are_in_order(self) -> None:
        if hasattr(self, "store"):
            store = self.store
            end = store.appended.value
            assert store.first_offset <= store.indexed.value <= store.confirmed.value <= end
            assert store.flushed.value <= end
            assert store.first_offset == self.oldest

    @invariant()
    def time_never_goes_back(self) -> None:
        times = [sent.place.store_timestamp for sent in self.sent]
        assert times == sorted(times)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            close_files(self.store)
        shutil.rmtree(self.base)


class SyncStoreMachine(StoreMachine):
    flush_mode = FlushMode.SYNC


async def do_nothing(_: object) -> None:
    """Queues and index are not told that segments are gone."""


MUTANTS = {
    "expiry that forgets the queues": (cleaner.Cleaner, "correct", do_nothing),
    "expiry ahead of the checkpoint": (
        cleaner.Cleaner,
        "_indexed_to",
        lambda self: min(
            self.flushed.value,
            self.indexer.indexed.value,
            self.files.log.segments.items[-1].base if self.files.log.segments.items else 0,
        ),
    ),
    "a checkpoint that runs ahead of the disk": (
        index_syncer,
        "sync_files",
        lambda disk, files, directories: sync_files(
            disk, [path for path in files if path.name == "checkpoint"], []
        ),
    ),
    "queues left as the crash left them": (QueueTable, "truncate", lambda *_, **__: None),
    "append that forgets the place of half a batch": (
        commitlog,
        "Appended",
        lambda *fields: Appended(fields[0] + 1, *fields[1:]),
    ),
}
SETTINGS = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("machine", [StoreMachine, SyncStoreMachine])
def test_the_store_is_a_list_that_survives(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_store_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker itself: each of these stores must fail it."""
    monkeypatch.setattr(*MUTANTS[mutant])
    eager = settings(
        SETTINGS,
        # The first example that fails ends it. On a busy machine threads run in other orders.
        max_examples=400,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, FlakyFailure, StoreError, RemotingError, ValueError)):
        run_state_machine_as_test(StoreMachine, settings=eager)
