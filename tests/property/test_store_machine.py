"""The store against a list: any mixture of appends, reads, flushes, clean stops, kills and power failures, with files so small that everything rolls.

What must hold: a message that the page cache had survives a kill, one that was flushed survives a power failure; the log is a prefix of what was appended;
queue offsets are dense; the index finds exactly what is there; reads agree with the list.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from lossy_disk import LossyDisk
from stores import SteppingClock, draft, find_bodies, read_all, tiny_config

from triomq.broker.store import checkpointer, commitlog, recovery
from triomq.broker.store.checkpoint import Mark
from triomq.broker.store.config import FlushMode
from triomq.broker.store.draft import Appended, Draft
from triomq.broker.store.results import GetStatus
from triomq.broker.store.store import MessageStore, close_files, finish_store, load_store
from triomq.remoting.protocol.record import decode_records

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
        self.store: MessageStore
        self.disk: LossyDisk

    # Life and death

    @initialize()
    def first_start(self) -> None:
        (self.base / "0").mkdir()
        self._open()

    def _open(self) -> None:
        self.root = self.base / str(self.lives)
        self.disk = LossyDisk()
        self.disk.settle(self.root)
        self.store = trio.run(load_store, tiny_config(self.root, flush_mode=self.flush_mode, hot_bytes_max=2_000), self.clock, self.disk)

    def _next_life(self) -> Path:
        self.lives += 1
        return self.base / str(self.lives)

    @rule()
    def stop_and_start(self) -> None:
        trio.run(finish_store, self.store)
        close_files(self.store)
        assert not (self.root / "abort").exists()
        shutil.copytree(self.root, self._next_life())
        self._open()
        assert self.store.recovered.records == 0
        self._check_everything()

    @rule()
    def kill(self) -> None:
        """The process dies; the page cache lives on."""
        shutil.copytree(self.root, self._next_life())
        close_files(self.store)
        self._open()
        self._check_everything()

    @rule(seed=st.integers(0, 1 << 32))
    def fail_power(self, seed: int) -> None:
        """Only what was forced to the disk is sure; of the rest any part may be there."""
        flushed = self.store.flushed.value
        self.disk.fail_power(self.root, self._next_life(), seed)
        close_files(self.store)
        self._open()
        end = self.store.appended.value
        assert end >= flushed
        self.sent = [sent for sent in self.sent if sent.place.log_offset < end]
        assert not self.sent or self.sent[-1].place.log_offset + self.sent[-1].place.size <= end
        self._check_everything()

    # Work

    @rule(items=st.lists(one_draft, min_size=1, max_size=12))
    def append(self, items: list[tuple[Any, ...]]) -> None:
        drafts = []
        for topic, queue_id, size, tags, keys, unique in items:
            self.counter += 1
            body = f"{self.counter}:".encode() + b"x" * size
            drafts.append(
                draft(body, topic, queue_id, tags=tags, keys=" ".join(keys) or None, unique_key=f"U{self.counter}" if unique else None)
            )
        places = self.store.append(drafts)
        self.sent += [Sent(item, place) for item, place in zip(drafts, places, strict=True)]

    @rule()
    def flush(self) -> None:
        trio.run(self.store.flusher.flush)
        trio.run(self.store.indexer.catch_up)
        assert self.store.flushed.value == self.store.appended.value == self.store.indexed.value

    @rule()
    def write_queue_entries_out(self) -> None:
        for _ in self.store.queue_table.write_out():
            pass

    @rule()
    def save_checkpoint(self) -> None:
        trio.run(self.store.checkpointer.save)

    # Questions

    def shown(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.place.log_offset < self.store.indexed.value]

    def queue(self, topic: str, queue_id: int) -> list[Sent]:
        return [sent for sent in self.shown() if (sent.draft.topic, sent.draft.queue_id) == (topic, queue_id)]

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1), offset=st.integers(0, 40), count=st.integers(1, 40))
    def get(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        expected = self.queue(topic, queue_id)
        result = trio.run(lambda: self.store.get_cold(topic, queue_id, offset, messages_max=count, bytes_max=1 << 20))
        found = decode_records(b"".join(result.chunks), check_crc=True)
        assert result.max_offset == len(expected)
        if offset < len(expected):
            assert result.status is GetStatus.FOUND
            assert result.next_offset == offset + len(found) > offset
        assert [message.body for message in found] == [sent.draft.body for sent in expected[offset : offset + len(found)]]

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from([*KEYS, "T#red", "T#blue"]))
    def query(self, topic: str, key: str) -> None:
        self._check_key(topic, key)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def read_record(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.sent))
        record = trio.run(self.store.read_record, sent.place.log_offset)
        assert record is not None
        assert decode_records(record, check_crc=True)[0].body == sent.draft.body
        assert trio.run(self.store.read_record, sent.place.log_offset + 1) is None

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, QUEUES - 1), number=st.integers(0, 200), upper=st.booleans())
    def search_by_time(self, topic: str, queue_id: int, number: int, upper: bool) -> None:
        times = [sent.place.store_timestamp for sent in self.queue(topic, queue_id)]
        time = self.sent[number % len(self.sent)].place.store_timestamp if self.sent else 5
        answer = trio.run(lambda: self.store.offset_by_time_cold(topic, queue_id, time, upper=upper))
        if upper:
            assert answer == max(0, sum(stored <= time for stored in times) - 1)
        else:
            assert answer == sum(stored < time for stored in times)

    def _check_key(self, topic: str, key: str) -> None:
        def carries(item: Draft) -> bool:
            words = (item.keys or "").split()
            return key == item.unique_key or key in words or (item.tags is not None and key == f"T#{item.tags}")

        expected = [sent.draft.body for sent in self.shown() if sent.draft.topic == topic and carries(sent.draft)]
        assert trio.run(find_bodies, self.store, topic, key) == expected[-64:]

    def _check_everything(self) -> None:
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                expected = self.queue(topic, queue_id)
                found = trio.run(read_all, self.store, topic, queue_id)
                assert [message.body for message in found] == [sent.draft.body for sent in expected]
                assert [message.queue_offset for message in found] == list(range(len(expected)))
                assert [message.log_offset for message in found] == [sent.place.log_offset for sent in expected]
            for key in (*KEYS, "T#red", "T#blue"):
                self._check_key(topic, key)
        for sent in self.shown()[-30:]:
            if sent.draft.unique_key:
                self._check_key(sent.draft.topic, sent.draft.unique_key)

    @invariant()
    def watermarks_are_in_order(self) -> None:
        if hasattr(self, "store"):
            numbers = self.store.statistics()
            assert numbers.oldest <= numbers.indexed <= numbers.confirmed <= numbers.appended
            assert numbers.flushed <= numbers.appended

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


SETTINGS = settings(max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("machine", [StoreMachine, SyncStoreMachine])
@pytest.mark.feature(28, 31, 51)
def test_the_store_is_a_list_that_survives(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
