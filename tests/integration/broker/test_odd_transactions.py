"""Transactions that a careless or hostile client, or a changed setting, makes unusual."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, Sent, peer_of, running_broker

from triomq.broker.store.draft import Appended, Draft
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.transaction import COMMIT, EndTransactionHeader
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED

HOST = b"\x7f\0\0\1\0\0\0\1"


async def prepare(
    peer: BrokerPeer, body: bytes, *, born_timestamp: int | None = None, **properties: str
) -> Sent:
    """Send a half to queue 1 of T for the producer group P."""
    return await peer.send(
        "T",
        body,
        queue_id=1,
        sys_flag=TRANSACTION_PREPARED,
        properties={
            "UNIQ_KEY": body.hex().zfill(32)[-32:],
            "TRAN_MSG": "true",
            "PGROUP": "P",
            **properties,
        },
        **({} if born_timestamp is None else {"born_timestamp": born_timestamp}),
    )


def place(sent: Sent) -> int:
    return int(sent.message_id[-16:], 16)


async def commit(peer: BrokerPeer, queue_offset: int, log_offset: int) -> Command:
    header = EndTransactionHeader("P", queue_offset, log_offset, COMMIT, "id")
    return await peer.call(Code.END_TRANSACTION, header)


async def asked(peer: BrokerPeer, count: int) -> list[bytes]:
    """Wait for this many checks; return the bodies of the messages that they are about."""
    with trio.fail_after(10):
        while len(peer.notices) < count:
            await trio.sleep(0.02)
    return [decode_records(bytes(notice.body))[0].body for notice in peer.notices]


async def test_a_half_is_in_no_further_queue_before_its_commit(tmp_path: Path) -> None:
    settings = {
        "enableLmq": True,
        "enableMultiDispatch": True,
        "transactionTimeOut": 100,
        "transactionCheckInterval": 100,
    }
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(peer, b"x", INNER_MULTI_DISPATCH="%LMQ%a")
        await trio.sleep(0.5)  # copies of the half, since no producer is there
        assert not (await peer.pull_raw("%LMQ%a")).body
        assert (await commit(peer, half.queue_offset, place(half))).code == 0
        assert await peer.next_bodies("T", 1, 1) == [b"x"]
        (message,) = (await peer.pull("%LMQ%a")).messages
        assert (message.topic, message.body) == ("T", b"x")


async def test_the_place_of_a_first_record_elsewhere_means_nothing_here(tmp_path: Path) -> None:
    """As a slave that acts for its master sends it on, after a check by that master."""
    settings = {"transactionTimeOut": 1_000, "transactionCheckInterval": 100_000}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        foreign = await prepare(peer, b"foreign", TRAN_PREPARED_QUEUE_OFFSET="1")
        await trio.sleep(0.5)
        own = await prepare(peer, b"own")
        assert own.queue_offset == 1
        assert await asked(peer, 1) == [b"foreign"]
        assert (await commit(peer, own.queue_offset, place(own))).code == 0
        assert (await commit(peer, foreign.queue_offset, place(foreign))).code == 0
        assert sorted(await peer.next_bodies("T", 2, 1)) == [b"foreign", b"own"]
        await trio.sleep(0.8)
        assert len(peer.notices) == 1, "the half at offset 1 was ended, not only looked up"


@pytest.mark.parametrize("queue_offset", [0, 1, 1_000_000_000_000])
async def test_what_looks_like_a_half_inside_a_body_ends_nothing(
    tmp_path: Path, queue_offset: int
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(peer, b"half")
        first, second = [place(await peer.send("T", b"x")) for _ in range(2)]
        at = second + (second - first) + 88  # the body of the next record
        forged = encode_record(
            topic=HALF_TOPIC,
            queue_id=0,
            queue_offset=queue_offset,
            log_offset=at,
            body=b"forged",
            properties=b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02PGROUP\x01P\x02",
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=1,
            store_host=HOST,
            flag=0,
            sys_flag=0,
            reconsume_times=0,
        )
        assert place(await peer.send("T", forged)) == at - 88
        answer = await commit(peer, queue_offset, at)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "Find prepared transaction message failed" in (answer.remark or "")
        assert (await commit(peer, half.queue_offset, place(half))).code == 0
        assert await peer.next_bodies("T", 1, 1) == [b"half"]


async def test_a_damaged_half_ends_neither_the_checks_nor_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"transactionTimeOut": 500, "transactionCheckInterval": 100_000}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        first, second = await prepare(peer, b"first"), await prepare(peer, b"second")
        with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(place(first) + 84)  # the length of the body
            log.write(b"\x7f")
        answer = await commit(peer, first.queue_offset, place(first))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "Find prepared transaction message failed" in (answer.remark or "")
        assert await asked(peer, 1) == [b"second"]
        assert "transaction 0 is dropped: its record is damaged" in caplog.text
        assert (await commit(peer, second.queue_offset, place(second))).code == 0


async def test_a_half_that_asks_for_much_time_is_given_up_before_the_log_deletes_it(
    tmp_path: Path,
) -> None:
    settings = {"transactionTimeOut": 100, "fileReservedTime": 1}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        born = int(time.time() * 1000) - 3_600_000 + 1_500
        patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "999999999"}
        await prepare(peer, b"patient", born_timestamp=born, **patient)
        with trio.fail_after(8):
            while (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code:
                await trio.sleep(0.05)
        assert (await peer.pull(CHECK_MAX_TIME_TOPIC)).bodies == [b"patient"]
        assert time.time() * 1000 >= born + 3_600_000


async def test_many_large_halves_due_at_once_do_not_drown_their_producer(tmp_path: Path) -> None:
    """After a restart all open halves are due together."""
    settings = {"mappedFileSizeCommitLog": 64 * 1024 * 1024, "transactionCheckInterval": 100_000}
    patient = {**settings, "transactionTimeOut": 100_000}
    async with running_broker(tmp_path, **patient) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for number in range(30):
            await prepare(peer, bytes([number]) * 3_000_000)
    hasty = {**settings, "transactionTimeOut": 1_000}
    async with running_broker(tmp_path, **hasty) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        bodies = await asked(peer, 30)
        assert sorted(body[0] for body in bodies) == list(range(30)), "the connection was kept"


async def test_ends_of_many_large_halves_are_no_giant_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    append = MessageStore.append

    def noted(store: MessageStore, drafts: Sequence[Draft]) -> list[Appended]:
        appends.append(sum(len(draft.body) for draft in drafts))
        return append(store, drafts)

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = [await prepare(peer, bytes([number]) * 1_000_000) for number in range(20)]
        monkeypatch.setattr(MessageStore, "append", noted)
        answers: list[int] = []

        async def end(half: Sent) -> None:
            answers.append((await commit(peer, half.queue_offset, place(half))).code)

        async with trio.open_nursery() as nursery:
            for half in sent:
                nursery.start_soon(end, half)
        assert answers == [0] * 20
        assert max(appends) < 6_000_000
        assert len(await peer.next_bodies("T", 20, 1)) == 20
