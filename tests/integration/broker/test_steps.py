"""Recalls, changes of invisible times and acknowledgements that come together are one append, and
are answered as those that come one by one, however their bytes are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from brokers import peer_of, running_broker
from frames import FrameClient
from pop_peer import pop

from triomq.broker.services.pop.pop_log import PopRecord, RevivePopLog
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreUnavailable
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.check_point import Ack
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody, offset_bits
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, encode_command, request
from triomq.remoting.protocol.headers.pop import AckMessageHeader, ChangeInvisibleTimeHeader
from triomq.remoting.protocol.headers.send import RecallMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.recall_handle import RecallHandle

SPLITS = {
    "one write": lambda size: [],
    "cut in a frame": lambda size: [size // 2 + 7],
    "small pieces": lambda size: list(range(97, size, 97)),
}
ABROAD = RecallHandle("T", "elsewhere", 2**42, "KEY").encode()


@attrs.define(eq=False)
class Appends:
    """What the store is given in one call; ``full``: it refuses that."""

    sizes: list[int] = attrs.field(factory=list)
    full: bool = False


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> Appends:
    made, append = Appends(), MessageStore.append

    def noted(store: MessageStore, drafts: Sequence[Draft]) -> list[Appended]:
        if made.full:
            raise StoreUnavailable("the test says so")
        made.sizes.append(len(drafts))
        return append(store, drafts)

    monkeypatch.setattr(MessageStore, "append", noted)
    return made


async def asked(
    client: FrameClient, commands: Sequence[Command], split: str = "one write"
) -> list[Command]:
    """Send requests with these cuts between the pieces; return the answers in their order."""
    for opaque, command in enumerate(commands, 1):
        command.opaque = opaque
    data, at = b"".join(map(encode_command, commands)), 0
    for cut in [*SPLITS[split](len(data)), len(data)]:
        await client.stream.send_all(data[at:cut])
        at = cut
        await trio.sleep(0.002)
    return [await client.answer(command.opaque) for command in commands]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def texts(answers: Sequence[Command]) -> list[tuple[int, str | None]]:
    return [(answer.code, answer.remark) for answer in answers]


@pytest.mark.parametrize("split", SPLITS)
async def test_recalls(tmp_path: Path, appends: Appends, split: str) -> None:
    async with (
        running_broker(tmp_path, recallMessageEnable=True) as ready,
        peer_of(ready) as peer,
        FrameClient(port_of(ready.address)) as client,
    ):
        await peer.create_topic("T", 1)
        handles = []
        for number in range(3):
            properties = {"UNIQ_KEY": f"KEY{number}", "TIMER_DELAY_SEC": str(3600 + number)}
            sent = await peer.send_raw("T", b"x", properties=properties)
            handles.append(sent.header(SendMessageResponseHeader).recall_handle or "")

        def commands() -> list[Command]:
            wanted = [handles[0], "nonsense", handles[1], ABROAD, handles[2]]
            return [
                request(Code.RECALL_MESSAGE, RecallMessageHeader("T", handle, producer_group="P"))
                for handle in wanted
            ]

        one_by_one = [(await asked(client, [command]))[0] for command in commands()]
        assert [code for code, _ in texts(one_by_one)] == [
            *(0, ResponseCode.ILLEGAL_OPERATION, 0, ResponseCode.ILLEGAL_OPERATION, 0)
        ]
        appends.sizes.clear()
        together = await asked(client, commands(), split)
        assert texts(together) == texts(one_by_one)
        assert [answer.ext for answer in together] == [answer.ext for answer in one_by_one]
        assert sum(appends.sizes) == 3
        assert split != "one write" or appends.sizes == [3]
        appends.full = True
        refused = await asked(client, commands(), split)
        assert [code for code, _ in texts(refused)] == [
            *(ResponseCode.SYSTEM_ERROR, ResponseCode.ILLEGAL_OPERATION) * 2,
            ResponseCode.SYSTEM_ERROR,
        ]
        assert "the test says so" in str(refused[0].remark)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (DurabilityResult.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS),
        (DurabilityResult.NOT_CONFIRMED, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_recall_that_a_next_master_may_lack_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: DurabilityResult, code: int
) -> None:
    """In controller mode its message came all the same, after a failover."""
    async with (
        running_broker(tmp_path, recallMessageEnable=True) as ready,
        peer_of(ready) as peer,
        FrameClient(port_of(ready.address)) as client,
    ):
        await peer.create_topic("T", 1)
        properties = {"UNIQ_KEY": "KEY", "TIMER_DELAY_SEC": "3600"}
        sent = await peer.send_raw("T", b"x", properties=properties)
        handle = sent.header(SendMessageResponseHeader).recall_handle or ""
        monkeypatch.setattr(Flusher, "durable_now", lambda flusher, end: False)
        monkeypatch.setattr(
            Flusher, "when_durable", lambda flusher, end, on_durable: on_durable(result)
        )
        header = RecallMessageHeader("T", handle, producer_group="P")
        (answer,) = await asked(client, [request(Code.RECALL_MESSAGE, header)])
        assert answer.code == code
        assert answer.remark == (result.value if code else None)


@pytest.mark.parametrize("split", SPLITS)
async def test_changes_of_invisible_times(
    tmp_path: Path, appends: Appends, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    stored: list[PopRecord] = []
    append: Any = RevivePopLog.append

    def kept(log: RevivePopLog, records: Sequence[PopRecord]) -> int:
        end: int = append(log, records)
        stored.extend(records)
        return end

    monkeypatch.setattr(RevivePopLog, "append", kept)
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        FrameClient(port_of(ready.address)) as client,
    ):
        await peer.create_topic("T", 1)
        for number in range(6):
            await peer.send("T", b"%d" % number)
        _, taken = await pop(peer, count=6, invisible_ms=60_000)

        def commands(offsets: Sequence[int]) -> list[Command]:
            headers = []
            for offset in offsets:
                handle = taken[offset].handle
                good = ChangeInvisibleTimeHeader("G", "T", 0, handle.encode(), offset, 30_000)
                headers += [good, attrs.evolve(good, receipt="nonsense")]
            return [request(Code.CHANGE_MESSAGE_INVISIBLETIME, header) for header in headers]

        appends.full = True
        refused = await asked(client, commands([0, 1, 2]), split)
        assert [answer.code for answer in refused] == [
            *(ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL) * 3
        ]
        appends.full = False
        stored.clear()
        one_by_one = [(await asked(client, [command]))[0] for command in commands([0, 1, 2])]
        appends.sizes.clear()
        together = await asked(client, commands([3, 4, 5]), split)
        assert texts(together) == texts(one_by_one)
        assert [code for code, _ in texts(together)] == [*(0, ResponseCode.MESSAGE_ILLEGAL) * 3]
        assert sum(appends.sizes) == 6, "a check point and an acknowledgement each"
        assert split != "one write" or appends.sizes == [6]
        settled = [one.record.offset for one in stored if isinstance(one.record, Ack)]
        assert settled == [0, 1, 2, 3, 4, 5]


async def test_acknowledgements_of_one_check_point_are_one_record(
    tmp_path: Path, appends: Appends
) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        FrameClient(port_of(ready.address)) as client,
    ):
        await peer.create_topic("T", 1)
        for number in range(8):
            await peer.send("T", b"%d" % number)
        _, taken = await pop(peer, count=8, invisible_ms=60_000)
        handle = taken[0].handle

        def batch(*offsets: int) -> Command:
            ack = BatchAck(
                consumer_group="G",
                topic="T",
                start_offset=handle.start_offset,
                queue_id=0,
                revive_queue_id=handle.revive_queue,
                pop_time=handle.pop_time,
                invisible_ms=handle.invisible_ms,
                bits=offset_bits(handle.start_offset, offsets),
            )
            body = BatchAckBody(broker_name=handle.broker_name, acks=[ack] if offsets else [])
            return Command(Code.BATCH_ACK_MESSAGE, body=body.encode())

        def single(offset: int) -> Command:
            header = AckMessageHeader("G", "T", 0, taken[offset].handle.encode(), offset)
            return request(Code.ACK_MESSAGE, header)

        batches = [batch(0, 1), batch(), batch(2), batch(3, 1)]
        appends.full = True
        found = await asked(client, batches)
        error, empty = ResponseCode.SYSTEM_ERROR, ResponseCode.NO_MESSAGE
        assert [answer.code for answer in found] == [error, empty, error, error]
        appends.full = False
        appends.sizes.clear()
        found = await asked(client, batches)
        assert [answer.code for answer in found] == [0, empty, 0, 0]
        assert appends.sizes == [1]
        found = await asked(client, [single(offset) for offset in (4, 5, 6)])
        assert [answer.code for answer in found] == [0] * 3
        assert appends.sizes == [1, 1]
        found = await asked(client, [*batches, single(6)])
        assert [answer.code for answer in found] == [0, empty, 0, 0, 0]
        assert appends.sizes == [1, 1], "acknowledged before"
