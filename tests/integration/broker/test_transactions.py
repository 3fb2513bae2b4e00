"""Transactions through a broker's socket: halves, ends, checks, and what a crash leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, Sent, crashed_broker, peer_of, running_broker
from monitor_pages import get, value
from processes import free_port
from virtual_time import in_virtual_time

from triomq.broker.app import BrokerReady
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import OffsetResponseHeader, QueryConsumerOffsetHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.headers.transaction import (
    COMMIT,
    ROLLBACK,
    UNDECIDED,
    CheckTransactionHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from triomq.remoting.protocol.message_properties import REAL_QUEUE_ID, REAL_TOPIC
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.sys_flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED

SOON = {"transactionTimeOut": 300, "transactionCheckInterval": 300}


async def prepare(peer: BrokerPeer, body: bytes, key: str, **properties: str) -> Sent:
    """Send a half to queue 1 of T for the producer group P."""
    return await peer.send(
        "T",
        body,
        queue_id=1,
        sys_flag=TRANSACTION_PREPARED,
        properties={"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "P", **properties},
    )


def place(sent: Sent) -> int:
    return int(sent.message_id[-16:], 16)


async def end(
    peer: BrokerPeer, sent: Sent, verdict: int, *, oneway: bool = False, **changed: Any
) -> Command | None:
    fields: dict[str, Any] = {
        "producer_group": "P",
        "half_queue_offset": sent.queue_offset,
        "log_offset": place(sent),
        "verdict": verdict,
        "message_id": sent.transaction_id or "",
        **changed,
    }
    header = EndTransactionHeader(**fields)
    if oneway:
        await peer.connector.oneway(
            peer.address, request(Code.END_TRANSACTION, header, oneway=True)
        )
        return None
    return await peer.call(Code.END_TRANSACTION, header)


async def committed(peer: BrokerPeer, count: int) -> list[StoredMessage]:
    """Wait for this many messages in queue 1 of T, and see that there are no more."""
    assert len(await peer.next_bodies("T", count, 1)) == count
    await trio.sleep(0.05)
    messages: list[StoredMessage] = []
    while (pulled := await peer.pull("T", 1, len(messages))).messages:
        messages += pulled.messages
    assert len(messages) == count
    return messages


async def checks(
    peer: BrokerPeer, count: int
) -> list[tuple[CheckTransactionHeader, StoredMessage]]:
    """Wait for this many checks."""
    with trio.fail_after(10):
        while len(peer.notices) < count:
            await trio.sleep(0.02)
    asked = [one for one in peer.notices if one.code == Code.CHECK_TRANSACTION_STATE]
    return [
        (one.header(CheckTransactionHeader), decode_records(bytes(one.body))[0]) for one in asked
    ]


@pytest.mark.feature("105a", "105b", "106a", "107a", "107b", "108a")
async def test_a_half_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(peer, b"paid", "A" * 32, TAGS="t", KEYS="order-1")
        dropped = await prepare(peer, b"dropped", "B" * 32)
        assert (half.queue_id, half.queue_offset, half.transaction_id) == (1, 0, "A" * 32)
        assert (await peer.pull("T", 1)).messages == []
        stored = (await peer.pull(HALF_TOPIC)).messages
        assert [message.body for message in stored] == [b"paid", b"dropped"]
        assert stored[0].sys_flag == 0
        assert stored[0].properties[REAL_TOPIC] == "T"
        assert stored[0].properties[REAL_QUEUE_ID] == "1"
        assert stored[0].properties["__transactionId__"] == "A" * 32

        answer = await end(peer, half, COMMIT)
        assert answer is not None
        assert (answer.code, answer.remark) == (0, None)
        await end(peer, dropped, ROLLBACK, oneway=True)
        (message,) = await committed(peer, 1)
        assert message.body == b"paid"
        assert message.sys_flag == TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == place(half)
        assert message.properties["KEYS"] == "order-1"
        assert message.properties["TRAN_MSG"] == "true", "as Java keeps it"
        assert REAL_TOPIC not in message.properties
        assert (await peer.pull("T", 1, expression="t")).bodies == [b"paid"]
        ops = (await peer.pull(OP_HALF_TOPIC)).messages
        assert [op.body for op in ops] == [b"0,", b"1,"]
        assert ops[0].properties == {"TAGS": "d", "WAIT": "true"}


async def test_ends_that_fit_no_open_transaction_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(peer, b"x", "A" * 32)
        other = await peer.send("T", b"no half")

        async def refusal(sent: Sent, verdict: int = COMMIT, **changed: Any) -> tuple[int, str]:
            answer = await end(peer, sent, verdict, **changed)
            assert answer is not None
            return answer.code, (answer.remark or "").split(" (")[0]

        assert await refusal(half, 7) == (
            ResponseCode.MESSAGE_ILLEGAL,
            "commitOrRollback=7 is none of 8",
        )
        assert await refusal(half, producer_group="Q") == (
            ResponseCode.SYSTEM_ERROR,
            "The producer group wrong",
        )
        assert await refusal(half, half_queue_offset=5) == (
            ResponseCode.SYSTEM_ERROR,
            "The transaction state table offset wrong",
        )
        for offset in (place(other), place(half) + 1, 1 << 62):
            assert await refusal(half, log_offset=offset) == (
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed",
            )
        assert await refusal(half, UNDECIDED) == (0, "")
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0
        code, remark = await refusal(half)
        assert code == ResponseCode.TOPIC_NOT_EXIST
        assert "create it again" in remark
        await peer.create_topic("T")
        assert await refusal(half) == (0, "")
        assert await refusal(half) == (
            ResponseCode.ILLEGAL_OPERATION,
            f"the transaction of message {'A' * 32} has ended already",
        )
        assert len(await committed(peer, 1)) == 1


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_of_two_ends_at_the_same_moment_the_first_counts(tmp_path: Path, second: int) -> None:
    """A sender and a check handler may answer at once: the broker reads both as one batch."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        halves = [await prepare(peer, b"%d" % number, f"{number:032}") for number in range(8)]
        codes: list[int] = []

        async def both(half: Sent) -> None:
            async with trio.open_nursery() as nursery:
                for verdict in (COMMIT, second):
                    nursery.start_soon(note, half, verdict)

        async def note(half: Sent, verdict: int) -> None:
            answer = await end(peer, half, verdict)
            assert answer is not None
            codes.append(answer.code)

        async with trio.open_nursery() as nursery:
            for half in halves:
                nursery.start_soon(both, half)
        assert sorted(codes) == [0] * 8 + [ResponseCode.ILLEGAL_OPERATION] * 8
        if second == COMMIT:
            await committed(peer, 8)


@pytest.mark.parametrize(
    ("properties", "sys_flag", "settings", "code", "remark"),
    [
        ({}, TRANSACTION_PREPARED, {}, ResponseCode.MESSAGE_ILLEGAL, "no property TRAN_MSG=true"),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 0, {}, ResponseCode.MESSAGE_ILLEGAL, "be delayed"),
        (
            {"TRAN_MSG": "true", "TIMER_DELAY_MS": "5"},
            0,
            {},
            ResponseCode.MESSAGE_ILLEGAL,
            "be delayed",
        ),
        (
            {"TRAN_MSG": "true", "k": "v" * 32_500},
            0,
            {},
            ResponseCode.MESSAGE_ILLEGAL,
            "checks of the transaction add to them",
        ),
        (
            {"TRAN_MSG": "true"},
            0,
            {"rejectTransactionMessage": True},
            ResponseCode.NO_PERMISSION,
            "sending transaction message is forbidden",
        ),
    ],
)
async def test_halves_that_are_refused(
    tmp_path: Path,
    properties: dict[str, str],
    sys_flag: int,
    settings: dict[str, Any],
    code: int,
    remark: str,
) -> None:
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        answer = await peer.send_raw("T", properties=properties, sys_flag=sys_flag)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert (await peer.pull(HALF_TOPIC)).messages == []


async def test_the_figures(tmp_path: Path) -> None:
    port = free_port()
    settings = {**SOON, "monitorPort": port, "bindAddress": "127.0.0.1"}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = [await prepare(peer, b"x", f"{number:032}") for number in range(4)]
        for number, verdict in enumerate((COMMIT, COMMIT, ROLLBACK)):
            await end(peer, sent[number], verdict)
        await peer.heartbeat(producers=("P",))
        await checks(peer, 1)
        _, _, page = await get(port, "/metrics")
        assert value(page, "rocketmq_half_messages") == 1
        assert value(page, "rocketmq_commit_messages_total", topic="T") == 2
        assert value(page, "rocketmq_rollback_messages_total", topic="T") == 1
        assert value(page, "triomq_transaction_checks_total", outcome="asked") == 1
        assert value(page, "rocketmq_messages_in_total", topic=HALF_TOPIC) == 4
        assert value(page, "rocketmq_messages_in_total", topic="T") == 2


@pytest.mark.feature("109b")
async def test_a_producer_of_the_group_is_asked(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SOON) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        half = await prepare(peer, b"slow", "A" * 32, TAGS="t")
        patient = await prepare(peer, b"patient", "C" * 32, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        ((header, message),) = await checks(peer, 1)
        assert (header.half_queue_offset, header.topic, header.broker_name) == (
            2,
            HALF_TOPIC,
            "broker-a",
        )
        assert header.message_id == header.transaction_id == "A" * 32
        assert (message.topic, message.queue_id, message.body) == ("T", 1, b"slow")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert message.log_offset == header.log_offset
        # The producer may answer with the place of the first record or of the copy.
        answer = await end(peer, half, COMMIT)
        assert answer is not None
        assert answer.code == 0
        answer = await end(
            peer, half, COMMIT, half_queue_offset=2, log_offset=header.log_offset, from_check=True
        )
        assert answer is not None
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert [message.body for message in await committed(peer, 1)] == [b"slow"]
        await trio.sleep(0.7)
        assert len(peer.notices) == 1, "no check of what has ended, none of the patient one"
        await end(peer, patient, COMMIT)
        await committed(peer, 2)


@pytest.mark.feature("77c")
async def test_another_producer_of_the_group_is_asked_when_the_sender_is_gone(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, **SOON) as ready, peer_of(ready) as other:
        await other.create_topic("T")
        await other.heartbeat(producers=("P",))
        async with peer_of(ready) as sender:
            await sender.heartbeat(producers=("P",))
            await prepare(sender, b"orphan", "A" * 32)
        ((header, message),) = await checks(other, 1)
        assert message.body == b"orphan"
        assert header.transaction_id == "A" * 32


@pytest.mark.feature("109c")
async def test_fifteen_answers_that_it_is_not_decided_yet_end_the_checks(tmp_path: Path) -> None:
    settings = {"transactionTimeOut": 20, "transactionCheckInterval": 20}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        half = await prepare(peer, b"undecided", "A" * 32)
        for count in range(1, 16):
            header, message = (await checks(peer, count))[count - 1]
            assert message.properties["TRANSACTION_CHECK_TIMES"] == str(count)
            answer = await end(
                peer,
                half,
                UNDECIDED,
                half_queue_offset=header.half_queue_offset,
                log_offset=header.log_offset,
                from_check=True,
            )
            assert answer is not None
            assert answer.code == 0
        with trio.fail_after(10):
            while (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code:
                await trio.sleep(0.02)
        assert (await peer.pull(CHECK_MAX_TIME_TOPIC)).bodies == [b"undecided"]
        assert len(await checks(peer, 15)) == 15
        assert (await peer.pull("T", 1)).messages == []


async def test_after_the_last_check_a_half_is_given_up_and_may_be_resumed(tmp_path: Path) -> None:
    settings = {**SOON, "transactionCheckMax": 2}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        await prepare(peer, b"forgotten", "A" * 32)
        asked = await checks(peer, 2)
        assert [message.properties["TRANSACTION_CHECK_TIMES"] for _, message in asked] == ["1", "2"]
        with trio.fail_after(10):
            while (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code:
                await trio.sleep(0.05)
        given_up = (await peer.pull(CHECK_MAX_TIME_TOPIC)).messages
        assert given_up[0].properties[REAL_TOPIC] == "T"
        await trio.sleep(0.5)
        assert len(peer.notices) == 2
        assert (await peer.pull("T", 1)).messages == []
        answer = await peer.call(
            Code.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheckHeader(message_id=given_up[0].offset_message_id),
        )
        assert answer.code == 0, answer.remark
        header, _ = (await checks(peer, 3))[-1]
        answer = await peer.call(
            Code.END_TRANSACTION,
            EndTransactionHeader("P", header.half_queue_offset, header.log_offset, COMMIT, "A"),
        )
        assert answer.code == 0, answer.remark
        await committed(peer, 1)


@in_virtual_time
async def test_without_a_producer_no_check_is_counted(tmp_path: Path) -> None:
    settings = {**SOON, "transactionCheckMax": 1}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await prepare(peer, b"alone", "A" * 32)
        await trio.sleep(1.5)
        given_up = await peer.pull_raw(CHECK_MAX_TIME_TOPIC)
        assert given_up.code == ResponseCode.TOPIC_NOT_EXIST
        await peer.heartbeat(producers=("P",))
        ((_, message),) = await checks(peer, 1)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.feature("108b", "110a")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_after_a_restart_only_open_halves_are_checked(
    tmp_path: Path, crash: bool, flush: str
) -> None:
    settings = {**SOON, "flushDiskType": flush}

    async def work(ready: BrokerReady) -> list[Sent]:
        async with peer_of(ready) as peer:
            await peer.create_topic("T")
            sent = [await prepare(peer, b"%d" % n, f"{n:032}") for n in range(6)]
            for number, verdict in ((0, COMMIT), (1, ROLLBACK), (3, COMMIT)):
                await end(peer, sent[number], verdict)
            progress = QueryConsumerOffsetHeader("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0)
            with trio.fail_after(30):  # until it is beyond what is settled; a kill may come earlier
                while not crash:
                    answer = await peer.call(Code.QUERY_CONSUMER_OFFSET, progress)
                    if answer.code == 0 and answer.header(OffsetResponseHeader).offset >= 2:
                        break
                    await trio.sleep(0.02)
            return sent

    if crash:
        sent = await crashed_broker(tmp_path, work, **settings)
    else:
        async with running_broker(tmp_path, **settings) as ready:
            sent = await work(ready)
        offsets = json.loads((tmp_path / "config/consumerOffset.json").read_text())["offsetTable"]
        assert offsets[f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"] != {}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        asked = await checks(peer, 3)
        assert sorted(message.body for _, message in asked[:3]) == [b"2", b"4", b"5"]
        late = await end(peer, sent[0], COMMIT)
        assert late is not None
        assert late.code == ResponseCode.ILLEGAL_OPERATION, "committed before the restart"
        for header, _ in asked[:3]:
            answer = await peer.call(
                Code.END_TRANSACTION,
                EndTransactionHeader("P", header.half_queue_offset, header.log_offset, COMMIT, "x"),
            )
            assert answer.code == 0, answer.remark
        bodies = sorted(message.body for message in await committed(peer, 5))
        assert bodies == [b"0", b"2", b"3", b"4", b"5"]


async def test_many_transactions_at_once(tmp_path: Path) -> None:
    """One append for a batch of ends; the offset of the group follows the oldest open half."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = [await prepare(peer, b"%d" % n, f"{n:032}") for n in range(200)]
        async with trio.open_nursery() as nursery:
            for one in sent[:-1]:
                nursery.start_soon(end, peer, one, COMMIT)
        messages = await peer.next_bodies("T", 199, 1)
        assert sorted(map(int, messages)) == list(range(199))
        asked = QueryConsumerOffsetHeader("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0)
        with trio.fail_after(20):
            while (await peer.call(Code.QUERY_CONSUMER_OFFSET, asked)).ext != {"offset": "199"}:
                await trio.sleep(0.1)
