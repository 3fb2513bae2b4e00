"""How a slave copies its master's tables, and which commits it reports to the master."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import trio
from stores import empty_store

from triomq.broker.replication.slave import MasterAddress
from triomq.broker.roles.held_tables import HELD_MAX, HeldTables
from triomq.broker.roles.table_copy import TableCopy
from triomq.broker.services.delay import open_delayed_messages
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import ConsumerOffsets, OwnCommits, open_consumer_offsets
from triomq.broker.services.persisted import Version
from triomq.broker.services.pop.revive_records import REVIVE_GROUP
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.broker.store.core.errors import DiskFull
from triomq.broker.store.core.watermark import Watermark
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.offsets import (
    DelayOffsetTable,
    MovedOffsetTable,
)
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP

GROUP = TRANSACTION_GROUP


def no_end(topic: str, queue_id: int) -> int:
    """Queues without an end."""
    return 1 << 60


@attrs.define
class End:
    """A watermark."""

    value: int


@attrs.define
class OwnStore:
    """Stands in for a slave's store."""

    appended: End = attrs.field(factory=lambda: End(0))
    flushed: End = attrs.field(factory=lambda: End(0))
    delete_topic: Callable[[str], None] = lambda name: None
    max_offset: Callable[[str, int], int] = no_end


def table_copy(caller: Any, topics: Any, offsets: Any, delayed: Any, store: OwnStore) -> TableCopy:
    nothing: Any = None
    return TableCopy(
        caller,
        MasterAddress(),
        Watermark(),
        topics,
        nothing,
        offsets,
        delayed,
        store,  # type: ignore[arg-type]
    )


def slave_offsets(folder: Path) -> ConsumerOffsets:
    return open_consumer_offsets(folder, Version(lambda: 1), own=OwnCommits())


def table(**queues: int) -> MovedOffsetTable:
    """Offsets of group G: ``T_0=5``."""
    rows: dict[str, dict[int, int]] = {}
    for name, offset in queues.items():
        topic, queue_id = name.split("_")
        rows.setdefault(f"{topic}@G", {})[int(queue_id)] = offset
    return MovedOffsetTable(rows, DataVersion(0, 7, 7))


def test_only_commits_ahead_of_the_master_are_reported_to_it(tmp_path: Path) -> None:
    offsets = slave_offsets(tmp_path)
    assert offsets.replace(table(T_0=5, T_1=5, T_2=5), no_end) == []
    offsets.commit("G", "T", 0, 8)
    offsets.commit("G", "T", 1, 6)
    offsets.commit("H", "U", 0, 1)
    found = offsets.replace(table(T_0=7, T_1=9, T_2=6), no_end)
    assert sorted(found) == [("G", "T", 0, 8), ("H", "U", 0, 1)]
    assert offsets.committed == {"G": {"T": {0: 8, 1: 9, 2: 6}}, "H": {"U": {0: 1}}}
    assert offsets.version.current == DataVersion(0, 7, 7)
    offsets.own.forget(dict(offsets.own.commits))
    assert offsets.own.commits == {}
    assert offsets.replace(table(T_0=9), no_end) == []
    assert offsets.committed == {"G": {"T": {0: 9}}}


def test_a_commit_that_goes_back_wins(tmp_path: Path) -> None:
    offsets = slave_offsets(tmp_path)
    offsets.replace(table(T_0=5), no_end)
    offsets.commit("G", "T", 0, 2)
    offsets.commit("G", "T", 0, 3)
    assert offsets.replace(table(T_0=5), no_end) == [("G", "T", 0, 3)]
    assert offsets.committed == {"G": {"T": {0: 3}}}


def test_a_commit_during_a_report_is_kept(tmp_path: Path) -> None:
    offsets = slave_offsets(tmp_path)
    offsets.commit("G", "T", 0, 5)
    assert offsets.replace(table(T_0=1), no_end) == [("G", "T", 0, 5)]
    reported = dict(offsets.own.commits)
    offsets.commit("G", "T", 0, 6)
    offsets.commit("G", "T", 1, 3)  # of a queue that was not reported
    offsets.own.forget(reported)
    assert sorted(offsets.replace(table(T_0=5, T_1=1), no_end)) == [
        ("G", "T", 0, 6),
        ("G", "T", 1, 3),
    ]


def test_commits_of_deleted_topics_and_groups_are_not_reported(tmp_path: Path) -> None:
    """With them, the master would begin a topic or group of the same name where the old one was."""
    offsets = slave_offsets(tmp_path)
    for group, topic in (("G", "T"), ("G", "U"), ("H", "U")):
        offsets.commit(group, topic, 0, 5)
    offsets.forget_topic("T")
    offsets.forget_group("H")
    assert offsets.replace(table(), no_end) == [("G", "U", 0, 5)]


async def test_a_commit_of_another_queue_during_a_report_is_kept(tmp_path: Path) -> None:
    """The commit comes while the master's answer is in flight."""

    class Master:
        reported: ClassVar[list[tuple[int, int]]] = []

        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            header = command.header(UpdateConsumerOffsetHeader)
            self.reported.append((header.queue_id, header.commit_offset))
            offsets.commit("G", "T", 1, 3)
            await trio.lowlevel.checkpoint()
            return Command(0)

    offsets = slave_offsets(tmp_path)
    copy = table_copy(Master(), None, offsets, None, OwnStore())
    offsets.commit("G", "T", 0, 5)
    await copy._report("a:1", copy._replace_offsets(table(T_0=1, T_1=1)))
    await copy._report("a:1", copy._replace_offsets(table(T_0=5, T_1=1)))
    assert Master.reported == [(0, 5), (1, 3)]


async def test_a_full_disk_does_not_end_the_copying(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues of deleted topics cannot be deleted; all other tables are copied all the same."""
    master = TopicTable({"Stays": new_topic("Stays", 1)}, DataVersion(0, 7, 7))

    class Master:
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            await trio.lowlevel.checkpoint()
            return (
                Command(0, body=master.encode())
                if command.code == RequestCode.GET_ALL_TOPIC_CONFIG
                else Command(1, remark="asked for more")
            )

    def delete_topic(name: str) -> None:
        raise DiskFull(tmp_path / "checkpoint")

    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        LiveSettings(),
        Version(lambda: 1),
    )
    topics.put(new_topic("Gone", 1))
    copy = table_copy(
        Master(), topics, slave_offsets(tmp_path), None, OwnStore(delete_topic=delete_topic)
    )
    with pytest.raises(RemoteProtocolError, match="asked for more"):
        await copy.copy_all("a:1")
    assert list(topics.configs) == ["Stays"]
    assert (
        "topic Gone is gone on the master, but its queues stay here: the store takes no messages"
        " now: no space left" in caplog.text
    )


async def test_a_copied_table_of_topics_covers_the_log_as_it_was_before_the_request(
    tmp_path: Path,
) -> None:
    """While the answer is in flight the log grows with messages of topics that it lacks."""
    store = OwnStore(appended=End(100))

    class Master:
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            await trio.lowlevel.checkpoint()
            store.appended.value += 50
            return (
                Command(0, body=TopicTable({"T": new_topic("T", 1)}, DataVersion(0, 7, 7)).encode())
                if command.code == RequestCode.GET_ALL_TOPIC_CONFIG
                else Command(1)
            )

    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        LiveSettings(),
        Version(lambda: 1),
    )
    copy = table_copy(Master(), topics, slave_offsets(tmp_path), None, store)
    assert topics.complete_to == 0
    with pytest.raises(RemoteProtocolError):
        await copy.copy_all("a:1")
    assert topics.complete_to == 100


async def test_an_older_table_of_topics_deletes_no_queues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master whose config directory was emptied counts versions from 0 again; both logs still
    have the messages.
    """
    deleted: list[str] = []
    master = TopicTable({"System": new_topic("System", 1)}, DataVersion(0, 9, 1))

    class Master:
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            await trio.lowlevel.checkpoint()
            return (
                Command(0, body=master.encode())
                if command.code == RequestCode.GET_ALL_TOPIC_CONFIG
                else Command(1, remark="asked for more")
            )

    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        LiveSettings(),
        Version(lambda: 1),
    )
    for name in ("Orders", "Bills"):
        topics.put(new_topic(name, 1))
    assert topics.version.current.counter > master.data_version.counter
    copy = table_copy(
        Master(), topics, slave_offsets(tmp_path), None, OwnStore(delete_topic=deleted.append)
    )
    for count in (1, 7):  # the second is a later version of that table
        master = TopicTable(
            {"System": new_topic("System", 1)}
            | ({"New": new_topic("New", 1)} if count == 7 else {}),
            DataVersion(0, 9, count),
        )
        with pytest.raises(RemoteProtocolError, match="asked for more"):
            await copy.copy_all("a:1")
        assert deleted == []
    assert re.search(r"lacks \d+ topics \(.*Bills.*Orders.*\): their queues stay here", caplog.text)


def test_no_offset_goes_beyond_the_end_of_this_broker_s_queue(tmp_path: Path) -> None:
    """Otherwise the group would skip messages when this slave is the master."""
    ends = {("T", 0): 40, ("T", 1): 100}
    offsets = slave_offsets(tmp_path)
    offsets.replace(
        table(T_0=100, T_1=100, U_0=3), lambda topic, queue_id: ends.get((topic, queue_id), 0)
    )
    assert offsets.committed == {"G": {"T": {0: 40, 1: 100}, "U": {0: 0}}}
    ends["T", 0] = 70
    offsets.replace(
        table(T_0=100, T_1=100, U_0=3), lambda topic, queue_id: ends.get((topic, queue_id), 0)
    )
    assert offsets.committed["G"]["T"] == {0: 70, 1: 100}
    ends["T", 1] = 60  # the log has lost its tail
    changes = offsets.changes
    assert offsets.clamp(lambda topic, queue_id: ends.get((topic, queue_id), 0), 0) == [
        ("G", "T", 1, 100)
    ]
    assert offsets.committed["G"]["T"] == {0: 70, 1: 60}
    assert offsets.changes > changes


def test_a_slave_copies_moves_and_leaves_it_to_its_master_to_tell_them(tmp_path: Path) -> None:
    offsets = slave_offsets(tmp_path)
    moves = {"T@G": {0: 5}}
    offsets.replace(MovedOffsetTable({"T@G": {0: 5}}, None, moves, {"T@G": {0: 900}}), no_end)
    assert offsets.pending_reset("G", "T", 0) is None
    assert offsets.take_reset("G", "T", 0) is None
    (tmp_path / "consumerOffset.json").write_bytes(offsets.encode())
    master = open_consumer_offsets(tmp_path, Version(lambda: 0))
    assert master.moved_at("G", "T", 0) == 900
    master.clamp(no_end, 700)  # its log is shorter: what is popped from here on counts
    assert master.moved_at("G", "T", 0) == 700
    assert master.take_reset("G", "T", 0) == 5
    offsets.replace(MovedOffsetTable({"T@G": {0: 5}}), no_end)
    assert (offsets.resets, offsets.moved) == ({}, {})


def test_a_copied_table_waits_for_the_slave_s_own_log() -> None:
    progress: HeldTables[dict[int, int]] = HeldTables()
    assert progress.take(1000) is None
    progress.hold(100, {1: 1})
    assert progress.newest == {1: 1}
    progress.hold(200, {1: 2})
    progress.hold(300, {1: 3})
    assert progress.take(99) is None
    assert progress.take(250) == {1: 2}
    assert progress.take(250) is None
    for number in range(4, 2 * HELD_MAX):
        progress.hold(100 * number, {1: number})
    assert progress.take(300) == {1: 3}
    assert progress.take(1 << 40) == {1: 2 * HELD_MAX - 1}


async def test_progress_of_delayed_messages_is_used_when_the_slave_s_disk_has_the_copies(
    tmp_path: Path,
) -> None:
    """The slave asks for the end of the master's log after the table, so that end is behind the
    copies.
    """
    progress, log_end, store = {1: 5}, 700, OwnStore()
    asked: list[int] = []

    class Master:
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            await trio.lowlevel.checkpoint()
            asked.append(command.code)
            if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
                return Command(0, body=DelayOffsetTable(progress, DataVersion(0, 7, 7)).encode())
            return Command(0, body=KvTable({"commitLogMaxOffset": str(log_end)}).encode())

    delayed = open_delayed_messages(tmp_path, empty_store(), None, Version(lambda: 1), lambda: 1)  # type: ignore[arg-type]
    copy = table_copy(Master(), None, slave_offsets(tmp_path), delayed, store)
    await copy._copy_delays("a:1")
    copy.use_progress()
    assert delayed.offsets == {}
    store.flushed.value = 699
    copy.use_progress()
    assert delayed.offsets == {}
    store.flushed.value = 700
    copy.use_progress()
    assert delayed.offsets == {1: 5}
    await copy._copy_delays("a:1")
    assert asked == [
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_DELAY_OFFSET,
    ]


async def test_progress_of_transactions_and_pop_is_used_when_the_slave_s_disk_has_the_messages(
    tmp_path: Path,
) -> None:
    """Otherwise a half counts as ended whose committed message this slave does not have yet, and a
    check point as done whose messages are not in their retry topic here.
    """
    store = OwnStore()

    class Master:
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            assert command.code == RequestCode.GET_BROKER_RUNTIME_INFO
            return Command(0, body=KvTable({"commitLogMaxOffset": "900"}).encode())

    offsets = slave_offsets(tmp_path)
    copy = table_copy(Master(), None, offsets, None, store)

    async def copied(half: int, op: int) -> dict[str, dict[int, int]]:
        rows = {
            f"{HALF_TOPIC}@{GROUP}": {0: half},
            f"{OP_HALF_TOPIC}@{GROUP}": {0: op},
            f"rmq_sys_REVIVE_LOG_C@{REVIVE_GROUP}": {0: op},
        }
        progress = MovedOffsetTable({**rows, "T@G": {0: half}}, DataVersion(0, half, half))
        await copy._hold_progress("a:1", progress)
        await copy._report("a:1", copy._replace_offsets(progress))
        assert offsets.committed_offset("G", "T", 0) == half, "consumers' offsets are used at once"
        revived = offsets.committed.get(REVIVE_GROUP, {}).get("rmq_sys_REVIVE_LOG_C", {})
        assert revived == offsets.committed.get(GROUP, {}).get(OP_HALF_TOPIC, {})
        return offsets.committed.get(GROUP, {})

    assert await copied(7, 3) == {}
    store.flushed.value = 899
    assert await copied(7, 3) == {}
    store.flushed.value = 900
    assert await copied(7, 3) == {HALF_TOPIC: {0: 7}, OP_HALF_TOPIC: {0: 3}}
    store.flushed.value = 500
    assert await copied(9, 4) == {HALF_TOPIC: {0: 7}, OP_HALF_TOPIC: {0: 3}}
