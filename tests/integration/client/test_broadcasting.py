"""Broadcasting consumers against a real cluster: each gets every message; offsets in files."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from serving import until

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
)
from triomq.client.receiving.local_offsets import offset_file, read_offsets, write_offsets
from triomq.testing import InProcessCluster


async def send_numbers(cluster: InProcessCluster, numbers: range) -> None:
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        await producer.send_batch(
            [Message(topic="Prices", body=b"%d" % number) for number in numbers]
        )


@asynccontextmanager
async def listening(
    cluster: InProcessCluster,
    folder: Path,
    into: list[int],
    name: str | None = None,
    *,
    ordered: bool = False,
) -> AsyncIterator[PushConsumer]:
    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        into.append(int(message.body))
        if message.body == b"13":
            raise ValueError("unlucky")

    settings = ConsumerSettings(
        offset_dir=str(folder),
        max_reconsume_times=1,
        suspend_queue=0.01,
        client=ClientSettings(instance_name=name, client_ip="10.0.0.7"),
    )
    async with PushConsumer(
        cluster.namesrv_address, group="caches", subscriptions="Prices", consume_from="first",
        handler=handle,
        broadcast=True, ordered=ordered, settings=settings,
    ) as consumer:  # fmt: skip
        await consumer.wait_assigned()
        yield consumer


@pytest.mark.feature(83)
async def test_every_member_gets_every_message(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    await triomq_cluster.create_topic("Prices", queues=4)
    mine: list[int] = []
    yours: list[int] = []
    async with (
        listening(triomq_cluster, tmp_path, mine, "one") as me,
        listening(triomq_cluster, tmp_path, yours, "two") as you,
    ):
        assert me.assignment == you.assignment
        assert len(me.assignment) == 4  # and no retry topic
        await send_numbers(triomq_cluster, range(100, 200))
        await until(lambda: len(mine) >= 100 and len(yours) >= 100)
    assert sorted(mine) == sorted(yours) == list(range(100, 200))


async def test_offsets_are_kept_in_java_s_file_and_read_again(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    await triomq_cluster.create_topic("Prices", queues=1)
    await send_numbers(triomq_cluster, range(5))
    first: list[int] = []
    second: list[int] = []
    async with listening(triomq_cluster, tmp_path, first) as consumer:
        assert consumer.client_id == "10.0.0.7@DEFAULT"
        await until(lambda: len(first) == 5)
    file = tmp_path / "10.0.0.7@DEFAULT" / "caches" / "offsets.json"
    assert file == offset_file(str(tmp_path), "10.0.0.7@DEFAULT", "caches")
    assert (
        file.read_text()
        == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"Prices"}:5}}'
    )
    await send_numbers(triomq_cluster, range(5, 8))
    async with listening(triomq_cluster, tmp_path, second):
        await until(lambda: len(second) >= 3)
    assert sorted(second) == [5, 6, 7]
    assert read_offsets(file) == {MessageQueue("Prices", "broker-a", 0): 8}


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_failure_is_logged_and_nothing_comes_again(
    triomq_cluster: InProcessCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ordered: bool,
) -> None:
    await triomq_cluster.create_topic("Prices", queues=1)
    seen: list[int] = []
    with caplog.at_level(logging.WARNING):
        async with listening(triomq_cluster, tmp_path, seen, ordered=ordered) as consumer:
            await send_numbers(triomq_cluster, range(12, 15))
            await until(lambda: 14 in seen and consumer.statistics().unsettled == 0)
    # In order, a failure means "again", here as often as `max_reconsume_times` says.
    assert sorted(seen) == ([12, 13, 13, 14] if ordered else [12, 13, 14])
    assert any("broadcasting consumers have no retries" in line for line in caplog.messages)


async def test_two_consumers_may_not_share_a_file(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    await triomq_cluster.create_topic("Prices", queues=1)
    async with listening(triomq_cluster, tmp_path, []):
        with pytest.raises(SettingsError, match="instance_name"):
            async with listening(triomq_cluster, tmp_path, []):
                raise AssertionError("must not start")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SettingsError, match="offset_dir"):
        async with listening(triomq_cluster, blocked, []):
            raise AssertionError("must not start")


def test_a_broken_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    queue = MessageQueue("Prices", "broker-a", 3)
    assert read_offsets(path) == {}
    write_offsets(path, {queue: 7})
    write_offsets(path, {queue: 9})
    assert read_offsets(path) == {queue: 9}
    path.write_text('{"offsetTable":{{"broke')
    assert read_offsets(path) == {queue: 7}
    # It is kept as offsets.json.damaged; so it is after a crash between the two renames.
    assert not path.exists()
    assert read_offsets(path) == {queue: 7}
    path.with_name("offsets.json.bak").write_text("nonsense")
    with pytest.raises(SettingsError, match="backup"):
        read_offsets(path)
