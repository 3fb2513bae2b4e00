"""Requests that cannot be served now are refused at once, with Java's remarks; bytes that cannot be
sent stop the reading.
"""

from __future__ import annotations

import re

import pytest
import trio
from serving import ECHO, RawPeer, serving, until

from triomq.remoting.server import codec
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
TOO_OLD = re.compile(
    r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, period in queue: (\d+)ms,"
    r" size of queue: \d+"
)


class Gate:
    """A pool whose requests all wait until the gate opens."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.begun = 0

    async def handle(self, request: Request) -> Response:
        self.begun += 1
        await self.event.wait()
        return Response(0, body=request.body)

    async def handle_all(self, requests: list[Request]) -> list[Response | None]:
        self.begun += len(requests)
        await self.event.wait()
        return [Response(0, body=request.body) for request in requests]


@pytest.mark.parametrize("batch", [False, True])
async def test_too_many_requests(batch: bool) -> None:
    gate = Gate()
    handler = Handler(9201, gate.handle_all if batch else gate.handle, "gate", batch=batch)
    config = PoolConfig(workers=2, queue_requests_max=3)
    async with (
        serving([handler], pools={"gate": config}) as server,
        await RawPeer.open(server) as peer,
    ):
        sent = []
        for _ in range(8):  # one by one: two begin, three wait, three are refused
            opaque, data = peer.frame(9201)
            await peer.send(data)
            assert (await peer.call(ECHO)).code == 0
            sent.append(opaque)
        refused = [await peer.answer(opaque) for opaque in sent[5:]]
        assert [(answer.code, answer.remark) for answer in refused] == [(2, OVERLOAD)] * 3
        await peer.send(peer.frame(9201, flag=2)[1])  # one-way: dropped without an answer
        assert (await peer.call(ECHO)).code == 0
        statistics = server.statistics()
        assert (statistics.pools["gate"].overloaded, statistics.codes[9201].refused) == (4, 4)
        assert (gate.begun, statistics.pools["gate"].queued_requests) == (2, 3)
        gate.event.set()
        assert [(await peer.answer(opaque)).code for opaque in sent[:5]] == [0] * 5


async def test_too_many_bytes() -> None:
    gate = Gate()
    config = PoolConfig(workers=1, queue_bytes_max=10_000)
    async with (
        serving([Handler(9201, gate.handle, "gate")], pools={"gate": config}) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(9201, b"x" * size) for size in (1, 50_000, 1, 1)]
        await peer.send(b"".join(data for _, data in frames))
        assert (await peer.call(ECHO)).code == 0
        # The first works; the second is larger than the whole queue, but the queue is empty: it
        # must get its chance.
        assert [(await peer.answer(opaque)).remark for opaque, _ in frames[2:]] == [OVERLOAD] * 2
        gate.event.set()
        assert [(await peer.answer(opaque)).code for opaque, _ in frames[:2]] == [0, 0]
        assert server.statistics().pools["gate"].queued_bytes == 0


async def test_a_handler_refuses() -> None:
    busy = True
    handlers = [
        Handler(9202, lambda request: Response(0), "shared", reject=lambda: busy),
        Handler(9203, lambda request: Response(0), "shared"),
    ]
    async with serving(handlers) as server, await RawPeer.open(server) as peer:
        frames = [peer.frame(code) for code in (9202, 9203, 9202)]
        await peer.send(b"".join(data for _, data in frames))
        answers = [await peer.answer(opaque) for opaque, _ in frames]
        assert [(answer.code, answer.remark) for answer in answers] == [
            (2, REJECTED),
            (0, None),
            (2, REJECTED),
        ]
        busy = False
        assert (await peer.call(9202)).code == 0
        assert server.statistics().pools["shared"].rejected == 2


async def test_waited_too_long() -> None:
    gate = Gate()
    config = PoolConfig(workers=1, wait_ms_max=30)
    async with (
        serving([Handler(9201, gate.handle, "gate")], pools={"gate": config}) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(9201) for _ in range(4)]
        await peer.send(b"".join(data for _, data in frames))
        for opaque, _ in frames[1:]:  # the sweeper refuses; no worker is free
            answer = await peer.answer(opaque)
            assert answer.code == 2
            found = TOO_OLD.fullmatch(answer.remark or "")
            assert found
            assert int(found[1]) >= 30
        gate.event.set()
        assert (await peer.answer(frames[0][0])).code == 0
        assert server.statistics().pools["gate"].expired == 3
        await until(lambda: server.statistics().pools["gate"].idle_workers == 1)
        assert (await peer.call(9201)).code == 0
        dump = server.task_dump()
        assert re.search(r"^ *sweeper .*run$", dump, re.MULTILINE)


async def test_a_worker_does_not_begin_what_is_too_old() -> None:
    """The sweeper checks every 10 ms; the worker checks again."""
    begun: list[bytes] = []

    async def handle(request: Request) -> Response:
        begun.append(request.body)
        await trio.sleep(0.03)
        return Response(0)

    config = PoolConfig(workers=1, wait_ms_max=20)
    async with (
        serving([Handler(9204, handle, "slow")], pools={"slow": config}) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(9204, b"%d" % number) for number in range(10)]
        await peer.send(b"".join(data for _, data in frames))
        codes = [(await peer.answer(opaque)).code for opaque, _ in frames]
        assert codes == [0] + [2] * 9
        assert begun == [b"0"]


@pytest.mark.parametrize("stages", [(1, 1), (3, 8)])
async def test_a_peer_that_does_not_read_is_not_read_either(stages: tuple[int, int]) -> None:
    body = b"x" * 50_000
    limits = {"outbox_high_bytes": 200_000, "outbox_hard_bytes": 100_000_000}
    async with serving(stages=stages, **limits) as server:
        async with (
            await RawPeer.open(server, receive_buffer=4096) as lazy,
            await RawPeer.open(server) as other,
        ):
            frames = [
                lazy.frame(ECHO, body) for _ in range(400)
            ]  # 20 MB: more than the system's buffers hold
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lazy.send, b"".join(data for _, data in frames))
                connection = next(each for each in server.connections() if each.number == 0)
                await until(lambda: not connection.reading)
                for number in range(20):
                    assert (await other.call(ECHO, b"%d" % number)).body == b"%d" % number
                # One turn of reading may still be answered after the mark: bounded, whatever the
                # peer sends.
                assert connection.outbox_bytes < 200_000 + 2 * 1024 * 1024
                for opaque, _ in frames:  # now it reads: all answers come, in order and complete
                    assert (await lazy.answer(opaque)).body == body
            assert connection.outbox_bytes == 0
            assert connection.reading


async def test_the_hard_mark_closes(caplog: pytest.LogCaptureFixture) -> None:
    def flood(request: Request) -> Response:
        return Response(0, body=b"x" * 1_000_000)

    limits = {"outbox_high_bytes": 100_000, "outbox_hard_bytes": 10_000_000}
    async with serving([Handler(9205, flood, "flood")], **limits) as server:
        async with (
            await RawPeer.open(server, receive_buffer=4096) as lazy,
            await RawPeer.open(server) as other,
        ):
            await lazy.send(b"".join(lazy.frame(9205)[1] for _ in range(50)))
            await until(lambda: server.statistics().connections < 2)
            assert (await other.call(ECHO, b"fine")).body == b"fine"
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert "does not read its answers" in lines[0]


async def test_time_before_the_codec_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was read long ago is refused although its pool is idle: its sender has given
    it up or will repeat it.
    """
    late = 0.0
    handler = Handler(9201, lambda request: Response(0), "waits")
    async with (
        serving([handler], pools={"waits": PoolConfig(workers=1, wait_ms_max=200)}) as server,
        await RawPeer.open(server) as peer,
    ):
        assert (await peer.call(9201)).code == 0
        step = codec.Codec.step
        monkeypatch.setattr(
            codec.Codec, "step", lambda self, batch: step(self, (batch[0] - late, batch[1]))
        )
        late = 0.1
        assert (await peer.call(9201)).code == 0
        late = 0.3
        refused = await peer.call(9201)
        assert refused.code == 2
        assert TOO_OLD.fullmatch(refused.remark or "")
