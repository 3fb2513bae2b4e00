"""Settings of the store that an admin changes while the broker runs: they have effect at once, and
after a restart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker
from serving import until

from triomq.broker.options import load_broker_config
from triomq.remoting.core.properties_file import Entry, parse_entries
from triomq.remoting.protocol.codes import RequestCode as Code

SEGMENT = 64 * 1024


async def change(peer: BrokerPeer, **settings: object) -> None:
    answer = await peer.call(
        Code.UPDATE_BROKER_CONFIG,
        body="".join(f"{key}={value}\n" for key, value in settings.items()).encode(),
    )
    assert answer.code == 0, answer.remark


async def in_effect(peer: BrokerPeer) -> dict[str, str]:
    answer = await peer.call(Code.GET_BROKER_CONFIG)
    return {entry.key: entry.value for entry in parse_entries(bytes(answer.body).decode())}


def segments(root: Path) -> int:
    return len(list((root / "commitlog").iterdir()))


@pytest.mark.feature("52a", "52b")
async def test_shorter_retention_deletes_at_once(tmp_path: Path) -> None:
    """The oldest segments go as soon as fileReservedTime allows it; nothing else has to happen, and
    the next start knows it.
    """
    never = {
        "deleteWhen": "04;05",
        "cleanResourceInterval": 3_600_000,
        "diskMaxUsedSpaceRatio": 95,
        "diskSpaceCleanForciblyRatio": 85,
        "cleanFileForciblyEnable": False,
    }
    async with (
        running_broker(
            tmp_path,
            mappedFileSizeCommitLog=SEGMENT,
            flushConsumeQueueThoroughInterval=50,
            flushIntervalConsumeQueue=20,
            **never,
        ) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        for _ in range(40):
            await peer.send("T", b"x" * 8_000)
        count = segments(tmp_path)
        assert count > 4
        every_hour = ";".join(f"{hour:02d}" for hour in range(24))
        await change(peer, deleteWhen=every_hour)
        await trio.sleep(0.2)
        assert segments(tmp_path) == count
        await change(
            peer, fileReservedTime=0, cleanResourceInterval=50, deleteCommitLogFilesInterval=0
        )
        await until(lambda: segments(tmp_path) == 1)
        await trio.sleep(0.2)  # some rounds more
        assert segments(tmp_path) == 1, "the newest stays"
        assert (await peer.pull("T", 0, 39)).bodies == [b"x" * 8_000]
        found = await in_effect(peer)
        assert (found["fileReservedTime"], found["deleteWhen"], found["cleanResourceInterval"]) == (
            "0",
            every_hour,
            "50",
        )
    config = load_broker_config(
        None, environment={}, definitions=[Entry("storePathRootDir", str(tmp_path))]
    ).config
    assert (config.store.retention.reserved_hours, config.store.retention.delete_hours) == (
        0,
        tuple(range(24)),
    )


async def test_flush_settings_reach_the_tasks(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await change(
            peer,
            flushIntervalCommitLog=7,
            flushIntervalConsumeQueue=8,
            flushConsumeQueueThoroughInterval=9,
            syncFlushTimeout=10,
        )
        found = await in_effect(peer)
        assert [
            found[key]
            for key in (
                "flushIntervalCommitLog",
                "flushIntervalConsumeQueue",
                "flushConsumeQueueThoroughInterval",
                "syncFlushTimeout",
            )
        ] == ["7", "8", "9", "10"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "deleteWhen=25",
            "deleteWhen=25: '25' is not an hour from 00 to 23; write for example 04 or 04;16",
        ),
        ("fileReservedTime=-1", "fileReservedTime=-1: out of range; use 0 to"),
        ("fileReservedTime=soon", "fileReservedTime=soon: not a whole number"),
        ("flushIntervalCommitLog=0", "flushIntervalCommitLog=0: out of range; use 1 to"),
        ("flushDiskType=SYNC_FLUSH", "flushDiskType: takes effect at a start only"),
        (
            "fileReservedTime=5\nmappedFileSizeCommitLog=65536",
            "mappedFileSizeCommitLog: takes effect at a start only",
        ),
    ],
)
async def test_what_is_refused_changes_nothing(tmp_path: Path, line: str, words: str) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        before = await in_effect(peer)
        answer = await peer.call(Code.UPDATE_BROKER_CONFIG, body=f"{line}\n".encode())
        assert (answer.code, words in (answer.remark or "")) == (1, True), answer.remark
        assert await in_effect(peer) == before
        assert not (tmp_path / "config" / "runtime.properties").exists()


async def test_percentages_are_brought_into_their_range_as_at_a_start(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await change(
            peer,
            diskMaxUsedSpaceRatio=5,
            diskSpaceCleanForciblyRatio=99,
            diskSpaceWarningLevelRatio=99,
        )
        found = await in_effect(peer)
        assert [
            found[f"disk{name}Ratio"]
            for name in ("MaxUsedSpace", "SpaceCleanForcibly", "SpaceWarningLevel")
        ] == ["10", "85", "90"]
