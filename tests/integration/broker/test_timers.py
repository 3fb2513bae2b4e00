"""Messages with a time of delivery through a broker's socket: taken, delivered, recalled, kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, crashed_broker, peer_of, running_broker
from jumping_clock import DAY, jumping_clock
from pop_peer import Popped, pop
from replicated_brokers import broker_group, eventually

from triomq.broker.app import BrokerReady
from triomq.broker.store.timer.timer_check import TimerCheck
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import (
    RecallMessageHeader,
    RecallMessageResponseHeader,
    SendMessageResponseHeader,
)
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.protocol.record import StoredMessage

LATE_MAX_MS = 30_000
"""On a machine that runs other tests; the bench has the real figure."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def send_timed(
    peer: BrokerPeer, body: bytes, *, topic: str = "T", **properties: str
) -> SendMessageResponseHeader:
    key = f"KEY{body.decode()}"
    answer = await peer.send_raw(topic, body, properties={"UNIQ_KEY": key, **properties})
    assert answer.code == 0, (answer.code, answer.remark)
    return answer.header(SendMessageResponseHeader)


async def arrivals(
    peer: BrokerPeer, count: int, *, seconds: float = 5.0, topic: str = "T"
) -> list[StoredMessage]:
    """Return the first ``count`` messages of queue 0, and see that there are no more by then."""
    found: list[StoredMessage] = []
    with trio.move_on_after(seconds):
        while len(found) < count:
            found += (await peer.pull(topic, 0, len(found), hold_ms=3_000)).messages
    assert len(found) == count, [message.body for message in found]
    return found


def late_ms(message: StoredMessage) -> int:
    """Return how long after its time a message was stored in its topic."""
    return message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"])


@pytest.mark.feature("115", "177a")
async def test_messages_come_at_their_millisecond_in_the_order_of_their_times(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send_timed(peer, b"second", TIMER_DELAY_MS="700")
        await send_timed(peer, b"third", TIMER_DELIVER_MS=str(now_ms() + 1_100))
        await send_timed(peer, b"first", TIMER_DELAY_MS="350")
        await send_timed(peer, b"fourth", TIMER_DELAY_SEC="2")
        await send_timed(peer, b"past", TIMER_DELIVER_MS=str(now_ms() - 1))
        found = await arrivals(peer, 5)
        assert [message.body for message in found] == [
            b"past",
            b"first",
            b"second",
            b"third",
            b"fourth",
        ]
        assert all(0 <= late_ms(message) < LATE_MAX_MS for message in found[1:])
        properties = found[1].properties
        assert properties["REAL_TOPIC"] == "T"
        assert int(properties["TIMER_OUT_MS"]) % 1000 == 0
        assert int(properties["TIMER_DEQUEUE_MS"]) >= int(properties["TIMER_DELIVER_MS"])
        metrics = await peer.call(Code.GET_TIMER_METRICS)
        assert json.loads(bytes(metrics.body))["timingCount"] == {}


async def recall(peer: BrokerPeer, handle: str, *, topic: str = "T") -> tuple[int, str]:
    """Return code and remark, or message id, of a recall."""
    answer = await peer.call(
        Code.RECALL_MESSAGE, RecallMessageHeader(topic, handle, producer_group="P")
    )
    if answer.code:
        return answer.code, answer.remark or ""
    return 0, answer.header(RecallMessageResponseHeader).message_id


@pytest.mark.feature("177c")
async def test_a_recalled_message_never_comes(tmp_path: Path) -> None:
    """Also one of an open slot, one that waits for later, and one shortly before its time."""
    async with running_broker(tmp_path, recallMessageEnable=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        sent = {
            name: await send_timed(peer, name.encode(), TIMER_DELAY_MS=str(delay))
            for name, delay in (
                ("soon", 1_500),
                ("kept", 1_501),
                ("later", 4_400),
                ("close", 1_400),
            )
        }
        for name in ("soon", "later"):
            handle = sent[name].recall_handle
            assert handle is not None
            assert RecallHandle.decode(handle)[:2] == ("T", "broker-a")
            assert await recall(peer, handle) == (0, f"KEY{name}")
        close = RecallHandle.decode(sent["close"].recall_handle or "")
        await trio.sleep((close.deliver_ms - now_ms() - 300) / 1000)
        assert await recall(peer, close.encode()) == (0, "KEYclose")
        await send_timed(peer, b"last", TIMER_DELAY_MS="4500")
        assert [message.body for message in await arrivals(peer, 2, seconds=20)] == [
            b"kept",
            b"last",
        ]
        await trio.sleep(0.1)
        assert (await peer.pull("T", 0, 2)).messages == []


async def test_recalls_are_refused_with_java_s_answers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        assert await recall(peer, "x") == (
            ResponseCode.NO_PERMISSION,
            "recall failed, operation is forbidden (recallMessageEnable=false)",
        )
    async with running_broker(tmp_path, recallMessageEnable=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("U", 1)
        later = now_ms() + 60_000
        illegal = ResponseCode.ILLEGAL_OPERATION
        for topic, handle, code, remark in (
            ("None", "x", ResponseCode.TOPIC_NOT_EXIST, "the topic[None] not exist"),
            ("T", "not base64", illegal, "recall handle is invalid"),
            ("T", "djIgVCBi", illegal, "recall handle is invalid"),
            ("U", RecallHandle("T", "broker-a", later, "K").encode(), illegal, "topic not match"),
            ("T", RecallHandle("T", "b", later, "K").encode(), illegal, "service not available"),
            ("T", RecallHandle("T", "broker-a", 5, "K").encode(), illegal, "timestamp invalid"),
            (
                "T",
                RecallHandle("T", "broker-a", later + 300_000_000, "K").encode(),
                illegal,
                "timestamp invalid",
            ),
        ):
            assert (answer := await recall(peer, handle, topic=topic))[0] == code, handle
            assert remark in answer[1]


@pytest.mark.feature("116a")
async def test_many_messages_of_one_instant_come_in_their_order_and_none_early(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        instant = now_ms() + 1_500
        for number in range(200):
            await send_timed(peer, b"%d" % number, TIMER_DELIVER_MS=str(instant))
        found = await arrivals(peer, 200, seconds=LATE_MAX_MS / 1000)
        assert [message.body for message in found] == [b"%d" % number for number in range(200)]
        assert all(late_ms(message) >= 0 for message in found)


@pytest.mark.feature("115")
async def test_limits_of_timed_messages(tmp_path: Path) -> None:
    settings = {"timerMaxDelaySec": 100, "timerCongestNumEachSlot": 1}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for properties, code, remark in (
            ({"TIMER_DELAY_SEC": "101"}, 13, "bigger than the max delay 100000ms"),
            ({"TIMER_DELAY_MS": "1e3"}, 13, "property TIMER_DELAY_MS=1e3 is not a whole number"),
            ({"TIMER_DELAY_MS": "9" * 20}, 13, "is not a whole number of at most 64 bits"),
            ({"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "T+K"}, 13, "if set del msg"),
        ):
            answer = await peer.send_raw("T", b"x", properties=properties)
            assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
        deliver = (now_ms() // 1000 + 50) * 1000
        answers = []
        for number in range(4):
            answer = await peer.send_raw(
                "T", b"x", properties={"TIMER_DELIVER_MS": str(deliver - number)}
            )
            answers.append(answer.code)
            await trio.sleep(0.05)
        assert answers == [0, 0, 1, 1]
        assert (await peer.send_raw("T", properties={"TIMER_DELIVER_MS": str(deliver)})).code == 1
        # A level counts more than a time; a copy of a delivered message does not wait again.
        assert (
            await peer.send("T", properties={"DELAY": "1", "TIMER_DELAY_MS": "x"})
        ).queue_id == 0
        await peer.send("T", b"copy", properties={"TIMER_OUT_MS": "1", "TIMER_DELAY_MS": "9999"})
        found = await arrivals(peer, 2)
        assert [message.body for message in found] == [b"copy", b"x"]
        assert "TIMER_DELAY_MS" not in found[1].properties


@pytest.mark.feature("115")
async def test_without_the_wheel_timed_messages_are_refused(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, timerWheelEnable=False, recallMessageEnable=True) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        answer = await peer.send_raw("T", b"x", properties={"TIMER_DELAY_MS": "100"})
        assert (answer.code, answer.remark) == (
            1,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
        assert (await recall(peer, "x"))[0] == 1
        assert (await peer.call(Code.GET_TIMER_CHECK_POINT)).code == 0
    assert not (tmp_path / "timerwheel").exists()


@pytest.mark.feature("115")
@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
async def test_timed_messages_outlive_the_broker(tmp_path: Path, crash: bool) -> None:
    """What was delivered before does not come again after a stop; what fell due meanwhile comes."""
    settings = {"recallMessageEnable": True, "timerFlushIntervalMs": 20}

    async def work(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await peer.create_topic("T", 1)
            await send_timed(peer, b"before", TIMER_DELAY_MS="100")
            for name, delay in (("meanwhile", 1_500), ("recalled", 2_500), ("after", 2_600)):
                sent = await send_timed(peer, name.encode(), TIMER_DELAY_MS=str(delay))
                if name == "recalled":
                    assert (await recall(peer, sent.recall_handle or ""))[0] == 0
            await arrivals(peer, 1)
            await trio.sleep(0.8 if crash else 0)  # until the log is flushed and progress saved

    if crash:
        await crashed_broker(tmp_path, work, **settings)
    else:
        async with running_broker(tmp_path, **settings) as ready:
            await work(ready)
    await trio.sleep(0.7 if crash else 1.5)
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        found = await arrivals(peer, 3)
        assert [message.body for message in found] == [b"before", b"meanwhile", b"after"]
        assert 0 <= late_ms(found[2]) < LATE_MAX_MS
        await trio.sleep(0.2)
        assert (await peer.pull("T", 0, 3)).messages == []
    assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
    assert [path.stat().st_size for path in (tmp_path / "timerlog").iterdir()] == [104_857_600]


@pytest.mark.feature("115")
async def test_a_message_beyond_the_window_waits_in_several_steps(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, timerRollWindowSlot=4, timerPrecisionMs=100) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        await send_timed(peer, b"far", TIMER_DELAY_MS="1730")
        (found,) = await arrivals(peer, 1)
        assert 0 <= late_ms(found) < LATE_MAX_MS
        assert int(found.properties["TIMER_ROLL_TIMES"]) >= 2


async def test_a_message_without_its_topic_is_dropped_and_strangers_are_left_out(
    tmp_path: Path,
) -> None:
    """Any client may write to the topic of timers."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.create_topic("Gone", 1)
        await peer.send(TIMER_TOPIC, b"stranger")
        await peer.send(TIMER_TOPIC, b"stranger", properties={"TIMER_OUT_MS": "x"})
        await peer.send(
            TIMER_TOPIC, b"stranger", properties={"TIMER_OUT_MS": "1", "REAL_TOPIC": "T"}
        )
        out = str(now_ms() // 1000 * 1000)
        for strange in (
            {"REAL_QID": "9" * 5_000},
            {"REAL_QID": "99999999999"},
            {"REAL_TOPIC": TIMER_TOPIC},
            {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
            {"REAL_TOPIC": "../x"},
            {"TIMER_DEL_UNIQKEY": "x"},
            {"TIMER_OUT_MS": "9" * 19},
            {"TIMER_OUT_MS": "9" * 16},
            {"TIMER_OUT_MS": str(int(out) + 400_000_000), "TIMER_ROLL_TIMES": "9" * 5_000},
        ):
            base = {"TIMER_OUT_MS": out, "REAL_TOPIC": "T", "REAL_QID": "0"}
            await peer.send(TIMER_TOPIC, b"stranger", properties={**base, **strange})
        await send_timed(peer, b"gone", topic="Gone", TIMER_DELAY_MS="200")
        await send_timed(peer, b"kept", TIMER_DELAY_MS="300")
        await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Gone"))
        (found,) = await arrivals(peer, 1)
        assert found.body == b"kept"
        await trio.sleep(0.5)
        assert len((await peer.pull(TIMER_TOPIC)).messages) == 14  # none goes round


async def test_a_slot_between_two_steps_hides_no_other(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        due = (now_ms() // 1000 + 4) * 1000
        await send_timed(peer, b"first", TIMER_DELIVER_MS=str(due + 300))
        await peer.send(
            TIMER_TOPIC,
            b"second",
            properties={"TIMER_OUT_MS": str(due + 500), "REAL_TOPIC": "T", "REAL_QID": "0"},
        )
        found = await arrivals(peer, 2, seconds=8)
        assert [message.body for message in found] == [b"first", b"second"]


async def test_a_damaged_message_stops_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send_timed(peer, b"damaged", TIMER_DELAY_MS="700")
        await send_timed(peer, b"kept", TIMER_DELAY_MS="800")
        await trio.sleep(0.3)
        damage(tmp_path / "commitlog" / f"{0:020}")
        (found,) = await arrivals(peer, 1)
        assert found.body == b"kept"


def damage(segment: Path) -> None:
    """Change the length of the first record's body."""
    with segment.open("r+b") as log:
        log.seek(84)
        log.write(b"\x7f")


@pytest.mark.feature("115")
async def test_a_slave_that_becomes_the_master_delivers_what_still_waits(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        settings = {"recallMessageEnable": True, "timerFlushIntervalMs": 100}
        master = await group.start(0, **settings)
        slave = await group.start(1, **settings)
        await master.peer.create_topic("T", 1)
        await send_timed(master.peer, b"before", TIMER_DELAY_MS="200")
        recalled = await send_timed(master.peer, b"recalled", TIMER_DELAY_MS="9000")
        await send_timed(master.peer, b"waits", TIMER_DELAY_MS="9500")
        assert (await recall(master.peer, recalled.recall_handle or ""))[0] == 0
        await arrivals(master.peer, 1)
        delivered = now_ms()

        def point(root: Path) -> TimerCheck:
            path = root / "config" / "timercheck"
            return TimerCheck.decode(path.read_bytes() if path.exists() else b"")

        # The slave knows that "before" is delivered, and has the other three in its wheel.
        await eventually(
            lambda: point(slave.root).queue_offset == 4 and point(slave.root).read_ms > delivered
        )
        assert (await slave.peer.call(Code.GET_TIMER_CHECK_POINT)).code == 0
        await master.stop()
        await slave.stop()
        promoted = await group.start(0, folder="broker-1", **settings)
        found = await arrivals(promoted.peer, 2, seconds=12)
        assert [message.body for message in found] == [b"before", b"waits"]
        assert late_ms(found[1]) >= 0


@pytest.mark.parametrize("days", [40, pytest.param(-40, marks=pytest.mark.slow)])
async def test_a_clock_that_was_far_away_stops_no_timer_and_no_pop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Also after a restart; a slot and the time of a write may be further apart than 2**31 ms."""
    clock = jumping_clock(monkeypatch)
    clock.offset = days * DAY
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.create_topic("P", 4)
        await send_timed(peer, b"away", TIMER_DELAY_MS="300")
        assert [message.body for message in await arrivals(peer, 1)] == [b"away"]
        clock.offset = 0.0
        await send_timed(peer, b"back", TIMER_DELAY_MS="400")
        found = await arrivals(peer, 2, seconds=20.0)
        assert [message.body for message in found] == [b"away", b"back"]
        await peer.send("P", b"popped")
        code, taken = await pop(peer, topic="P", invisible_ms=1_500)
        assert (code, [each.body for each in taken]) == (0, [b"popped"])
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await send_timed(peer, b"restarted", TIMER_DELAY_MS="400")
        assert [message.body for message in await arrivals(peer, 3)][2:] == [b"restarted"]
        again: list[Popped] = []
        with trio.fail_after(20):
            while not again:
                _, again = await pop(peer, topic="P", poll_ms=2_000)
        assert [each.body for each in again] == [b"popped"]


@pytest.mark.parametrize("first", ["timed", "popped"])
async def test_the_first_message_that_waits_may_come_after_weeks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The wheel has a round of two weeks; nothing has turned it before."""
    clock = jumping_clock(monkeypatch)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.create_topic("P", 4)
        await peer.send("T", b"plain")
        clock.offset = 20 * DAY
        if first == "timed":
            await send_timed(peer, b"timed", TIMER_DELAY_MS="300")
            found = await arrivals(peer, 2, seconds=20.0)
            assert [message.body for message in found] == [b"plain", b"timed"]
            return
        await peer.send("P", b"popped")
        code, taken = await pop(peer, topic="P", invisible_ms=1_500)
        assert (code, [each.body for each in taken]) == (0, [b"popped"])
        again: list[Popped] = []
        with trio.fail_after(20):
            while not again:
                _, again = await pop(peer, topic="P", poll_ms=2_000)
        assert [each.body for each in again] == [b"popped"]
