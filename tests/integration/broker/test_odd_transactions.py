"""Transactions that a careless or hostile client, or a changed setting, makes unusual."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, Sent, peer_of, running_broker
from virtual_time import in_virtual_time

from triomq.broker.services.transactions import checks, transactions
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreIoError, StoreUnavailable
from triomq.broker.store.reading.queue_messages import QueueMessages
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.transaction import (
    COMMIT,
    ROLLBACK,
    CheckTransactionHeader,
    EndTransactionHeader,
)
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED

DAY_MS = 86_400_000
STORE_TIMESTAMP_AT = 56
"""Where a record of a sender with an IPv4 address has its store time."""
MANY_CHECKS = {
    "transactionTimeOut": 100,
    "transactionCheckInterval": 100,
    "transactionCheckMax": 10_000,
}
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


@in_virtual_time
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


@in_virtual_time
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


@in_virtual_time
async def test_a_half_whose_producers_have_much_to_read_is_asked_about_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        with monkeypatch.context() as patch:
            patch.setattr(checks, "OUTBOX_BYTES_MAX", -1)
            await prepare(peer, b"patient")
            await trio.sleep(3)
            assert peer.notices == []
        assert (await asked(peer, 1))[:1] == [b"patient"]


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


@pytest.mark.parametrize("days_behind", [0, 10])
async def test_a_half_that_asks_for_much_time_is_given_up_before_the_log_deletes_it(
    tmp_path: Path, days_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later of the times counts, its sender's and that of storing."""
    monkeypatch.setattr(checks, "OLD_SECONDS", 0.1)
    settings = {"transactionTimeOut": 100, "transactionCheckInterval": 200, "fileReservedTime": 1}
    stored = int(time.time() * 1000) - 3_600_000 + 2_500
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(
            peer,
            b"patient",
            born_timestamp=stored - days_behind * DAY_MS,
            CHECK_IMMUNITY_TIME_IN_SECONDS="999999999",
        )
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place(half) + STORE_TIMESTAMP_AT)
        log.write(stored.to_bytes(8, "big"))
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        with trio.fail_after(60):
            while (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code:
                await trio.sleep(0.05)
        assert (await peer.pull(CHECK_MAX_TIME_TOPIC)).bodies == [b"patient"]
        assert await asked(peer, 1) == [b"patient"]
        assert time.time() * 1000 >= stored + 3_600_000


async def test_a_clock_that_jumps_gives_no_half_up_while_its_block_may_still_run(
    tmp_path: Path,
) -> None:
    """All times of the half are days behind the broker's clock."""
    then = int(time.time() * 1000) - 40 * DAY_MS
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        half = await prepare(peer, b"x", born_timestamp=then)
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place(half) + STORE_TIMESTAMP_AT)
        log.write(then.to_bytes(8, "big"))
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        assert await asked(peer, 5) == [b"x"] * 5
        assert (await commit(peer, half.queue_offset, place(half))).code == 0
        assert await peer.next_bodies("T", 1, 1) == [b"x"]
        assert (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code, "none was given up"


async def test_a_sender_whose_clock_is_days_behind_is_asked_about_its_halves(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        born = int(time.time() * 1000) - 10 * DAY_MS
        half = await prepare(peer, b"x", born_timestamp=born)
        assert await asked(peer, 3) == [b"x"] * 3
        assert (await commit(peer, half.queue_offset, place(half))).code == 0
        (message,) = (await peer.pull("T", 1)).messages
        assert (message.body, message.born_timestamp) == (b"x", born)
        assert (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code, "none was given up"


async def test_a_half_of_a_sender_whose_clock_is_behind_is_old_once_its_first_record_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, deleted = MessageStore.messages, False

    async def read_or_nothing(
        self: MessageStore, topic: str, queue_id: int, offset: int, **limits: Any
    ) -> QueueMessages:
        if deleted and (topic, offset) == (HALF_TOPIC, 0):
            return QueueMessages([], [], 1)
        return await read(self, topic, queue_id, offset, **limits)

    monkeypatch.setattr(MessageStore, "messages", read_or_nothing)
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.heartbeat(producers=("P",))
        await prepare(peer, b"x", born_timestamp=int(time.time() * 1000) - 10 * DAY_MS)
        await asked(peer, 1)
        assert (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code
        deleted = True
        monkeypatch.setattr(checks, "OLD_SECONDS", 0.1)
        with trio.fail_after(60):
            while (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code:
                await trio.sleep(0.05)
        assert (await peer.pull(CHECK_MAX_TIME_TOPIC)).bodies == [b"x"]


@pytest.mark.parametrize("fault", ["read", "append"])
async def test_after_a_fault_of_the_disk_halves_are_asked_about_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The check that met the fault is put off, not dropped."""
    append, messages = MessageStore.append, MessageStore.messages
    faults: list[str] = []

    def no_append(store: MessageStore, drafts: Sequence[Draft]) -> list[Appended]:
        if fault == "append" and len(faults) < 2 and drafts[0].topic == HALF_TOPIC and asking:
            faults.append(fault)
            raise StoreUnavailable("the disk is full")
        return append(store, drafts)

    async def no_read(store: MessageStore, topic: str, *place: int, **more: int) -> QueueMessages:
        if fault == "read" and len(faults) < 2 and topic == HALF_TOPIC:
            faults.append(fault)
            raise StoreIoError(Path("commitlog/0"), OSError("Input/output error"))
        return await messages(store, topic, *place, **more)

    for module in (checks, transactions):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(MessageStore, "append", no_append)
    monkeypatch.setattr(MessageStore, "messages", no_read)
    asking = False
    async with running_broker(tmp_path, **MANY_CHECKS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for number in range(3):
            await prepare(peer, b"%d" % number)
        asking = True
        await peer.heartbeat(producers=("P",))
        with trio.fail_after(10):
            while len(faults) < 2:
                await trio.sleep(0.02)
        peer.notices.clear()
        assert set(await asked(peer, 9)) == {b"0", b"1", b"2"}


async def test_halves_above_a_lowered_limit_are_asked_about_as_any_others(tmp_path: Path) -> None:
    """They can be rolled back; a commit is refused until the limit is raised again."""
    patient = {"transactionTimeOut": 100_000}
    hasty = {**MANY_CHECKS, "maxMessageSize": 1_000}
    async with running_broker(tmp_path, **patient) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        large = [await prepare(peer, bytes([number]) * 200_000) for number in range(2)]
        small = await prepare(peer, b"small")
    async with running_broker(tmp_path, **hasty) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        bodies = await asked(peer, 9)
        assert {body[:1] for body in bodies} == {b"\0", b"\1", b"s"}
        assert (await commit(peer, small.queue_offset, place(small))).code == 0
        refused = await commit(peer, large[0].queue_offset, place(large[0]))
        assert "MESSAGE_ILLEGAL" in (refused.remark or "")
        header = EndTransactionHeader("P", large[1].queue_offset, place(large[1]), ROLLBACK, "id")
        assert (await peer.call(Code.END_TRANSACTION, header)).code == 0
        assert await peer.next_bodies("T", 1, 1) == [b"small"]
        assert (await peer.pull_raw(CHECK_MAX_TIME_TOPIC)).code, "none was given up"
    once = {"transactionTimeOut": 100, "transactionCheckInterval": 100_000}
    async with running_broker(tmp_path, **once) as ready, peer_of(ready) as peer:
        await peer.heartbeat(producers=("P",))
        assert await asked(peer, 1) == [bytes(200_000)]
        check = peer.notices[0].header(CheckTransactionHeader)
        assert (await commit(peer, check.half_queue_offset, check.log_offset)).code == 0
        assert [len(body) for body in await peer.next_bodies("T", 2, 1)] == [5, 200_000]


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
