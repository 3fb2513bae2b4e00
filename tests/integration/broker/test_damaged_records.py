"""A damaged record in a queue that the broker reads itself: it is skipped, and all goes on.

The store is that of a broker that stopped in order. Then a bit of one record is flipped, and the
broker must start, twice, and do what the records behind it ask for.
"""

from __future__ import annotations

from pathlib import Path

import monitor_pages
import processes
import pytest
import trio
from brokers import BrokerPeer, Sent, peer_of, running_broker
from damaged_logs import damage_record
from pop_peer import pop

from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.transaction import COMMIT, EndTransactionHeader
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_TestCluster"
RETRY_TOPIC = "%RETRY%G_T"
SETTINGS = {"messageDelayLevel": "1s 2s"}
EVERY_FIELD = pytest.mark.parametrize("field", ["length", "queue offset"])


async def skipped(port: int) -> dict[str, float]:
    """Return topic -> damaged records, as the metrics count them."""
    status, _, page = await monitor_pages.get(port, "/metrics")
    assert status == 200
    return {
        dict(labels)["topic"]: number
        for (name, labels), number in monitor_pages.samples(page).items()
        if name == "triomq_storage_damaged_records_total"
    }


async def bodies(peer: BrokerPeer, count: int, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Wait for messages of a queue; return them in the order of their bodies."""
    with trio.fail_after(15):
        return sorted(await peer.next_bodies(topic, count, queue_id))


async def come_again(peer: BrokerPeer, *wanted: bytes) -> list[bytes]:
    """Wait until these messages are in the retry topic; return all that are there."""
    found: list[bytes] = []
    with trio.fail_after(20):
        while set(wanted) - set(found):
            await trio.sleep(0.2)
            if (await peer.pull_raw(RETRY_TOPIC)).code != ResponseCode.TOPIC_NOT_EXIST:
                found = await peer.all_bodies(RETRY_TOPIC, 1)
    return sorted(found)


async def stays(peer: BrokerPeer) -> None:
    """Ask the broker for something after a pause in which a task could end it."""
    await trio.sleep(0.3)
    await peer.send("T", b"it lives", queue_id=3)


async def all_others_come(
    folder: Path, topic: str, field: str, later: dict[str, str], **settings: object
) -> None:
    """Damage the second of four messages that wait, and start twice; ``later`` makes one wait."""
    damage_record(folder, topic, 1, field)
    for start in range(2):
        port = processes.free_port()
        async with (
            running_broker(folder, monitorPort=port, **settings) as ready,
            peer_of(ready) as peer,
        ):
            assert await bodies(peer, 3) == [b"1", b"2", b"3"]
            if not start:
                assert await skipped(port) == {topic: 1}
            await peer.send("T", b"after", queue_id=1 + start, properties=later)
            assert await bodies(peer, 1, queue_id=1 + start) == [b"after"]


@EVERY_FIELD
async def test_a_damaged_delayed_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for body in (b"1", b"damaged", b"2", b"3"):
            await peer.send("T", body, properties={"DELAY": "2"})
    await all_others_come(tmp_path, SCHEDULE_TOPIC, field, {"DELAY": "1"}, **SETTINGS)
    logged = [line for line in caplog.messages if "cannot be read and is skipped" in line]
    assert len(logged) == 1
    assert f"message 1 of queue 1 of {SCHEDULE_TOPIC}" in logged[0]


@EVERY_FIELD
async def test_a_damaged_timed_message(tmp_path: Path, field: str) -> None:
    """It lies in the topic of timers behind others that are not in the wheel yet."""
    async with running_broker(tmp_path, timerWheelEnable=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
    async with running_broker(tmp_path, timerWheelEnable=False) as ready, peer_of(ready) as peer:
        del ready
        wait = {"TIMER_OUT_MS": "1000", "REAL_TOPIC": "T", "REAL_QID": "0"}
        for body in (b"1", b"damaged", b"2", b"3"):
            await peer.send(TIMER_TOPIC, body, properties=wait)
    later = {"TIMER_DELAY_MS": "900"}
    await all_others_come(tmp_path, TIMER_TOPIC, field, later, timerWheelEnable=True)


@EVERY_FIELD
async def test_a_damaged_record_of_pop(tmp_path: Path, field: str) -> None:
    """The first check point of the revive topic is read again by every start."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(3):
            await peer.send("T", b"%d" % number)
            assert (await pop(peer, count=1, invisible_ms=1_000))[0] == 0
        await come_again(peer, b"0", b"1", b"2")
    damage_record(tmp_path, REVIVE_TOPIC, 0, field)
    for start in range(2):
        port = processes.free_port()
        async with running_broker(tmp_path, monitorPort=port) as ready, peer_of(ready) as peer:
            with trio.fail_after(20):
                while not await skipped(port):
                    await trio.sleep(0.1)
            assert await skipped(port) == {REVIVE_TOPIC: 1}
            await peer.send("T", b"again %d" % start)
            code, taken = await pop(peer, invisible_ms=1_000)
            assert code == 0
            assert taken
            await come_again(peer, b"again %d" % start)


@EVERY_FIELD
async def test_a_damaged_message_that_pop_brings_again(tmp_path: Path, field: str) -> None:
    """The message itself is lost; those that were popped with it come again."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(3):
            await peer.send("T", b"%d" % number)
        assert (await pop(peer, invisible_ms=2_000))[0] == 0
    damage_record(tmp_path, "T", 1, field)
    for _ in range(2):
        async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
            assert await come_again(peer, b"0", b"2") == [b"0", b"2"]


async def half(peer: BrokerPeer, body: bytes) -> Sent:
    return await peer.send(
        "T",
        body,
        sys_flag=TRANSACTION_PREPARED,
        properties={"UNIQ_KEY": body.hex().zfill(32), "TRAN_MSG": "true", "PGROUP": "P"},
    )


async def commit(peer: BrokerPeer, sent: Sent) -> int:
    header = EndTransactionHeader(
        "P", sent.queue_offset, int(sent.message_id[-16:], 16), COMMIT, "id"
    )
    return (await peer.call(Code.END_TRANSACTION, header)).code


@EVERY_FIELD
@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_HALF_TOPIC])
async def test_a_damaged_record_of_transactions(tmp_path: Path, topic: str, field: str) -> None:
    """Halves behind it can be committed; op records behind it still end their halves."""
    settings = {"transactionTimeOut": 1_000, "transactionCheckInterval": 100_000}
    async with (  # which checks nothing, however long it takes: a copy would stand for its half
        running_broker(tmp_path, transactionTimeOut=100_000) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        first, second, third = [await half(peer, body) for body in (b"1", b"2", b"3")]
        if topic == OP_HALF_TOPIC:
            for sent in (second, third):
                assert await commit(peer, sent) == 0
                await trio.sleep(0.05)
    damage_record(tmp_path, topic, 0, field)
    for start in range(2):
        port = processes.free_port()
        async with (
            running_broker(tmp_path, monitorPort=port, **settings) as ready,
            peer_of(ready) as peer,
        ):
            await peer.heartbeat(producers=("P",))
            with trio.fail_after(20):
                while not start and not await skipped(port):
                    await trio.sleep(0.1)
            await stays(peer)
            if start:
                continue
            if topic == HALF_TOPIC:
                assert await commit(peer, second) == await commit(peer, third) == 0
            assert await bodies(peer, 2) == [b"2", b"3"]
            assert await skipped(port) == {topic: 1}
            if topic == OP_HALF_TOPIC:
                assert await commit(peer, first) == 0


@EVERY_FIELD
async def test_a_damaged_message_of_a_compaction_topic(tmp_path: Path, field: str) -> None:
    """It gets no copy; those behind it do."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.create_topic("Prices", 1, attributes="+cleanup.policy=COMPACTION")
        for number in range(4):
            await peer.send("Prices", b"%d" % number, properties={"KEYS": f"key {number}"})
    damage_record(tmp_path, "Prices", 1, field)
    for start in range(2):
        port = processes.free_port()
        async with running_broker(tmp_path, monitorPort=port) as ready, peer_of(ready) as peer:
            with trio.fail_after(20):
                while not start and not await skipped(port):
                    await trio.sleep(0.1)
            await stays(peer)
            status, _, page = await monitor_pages.get(port, "/metrics")
            assert status == 200
            assert monitor_pages.value(page, "triomq_compaction_failures_total") == 0
            with trio.fail_after(10):
                while (await monitor_pages.get(port, "/metrics"))[2].count(
                    "triomq_compaction_behind_bytes"
                ) and monitor_pages.value(
                    (await monitor_pages.get(port, "/metrics"))[2], "triomq_compaction_behind_bytes"
                ):
                    await trio.sleep(0.2)
