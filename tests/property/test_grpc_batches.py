"""Unary calls in batches: any mix of calls, in any order and any split of their bytes, gets the
answers of the same calls made one by one, each with a task. A call that hangs or fails delays none.
"""

from __future__ import annotations

import random
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import h2.config
import h2.connection
import pytest
import trio
import trio.testing
from http2_pair import CALL_HEADERS, Answer, Pair, message
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.grpc.call_statistics import CallCounters
from triomq.remoting.grpc.frame_budgets import AddressResets
from triomq.remoting.grpc.grpc_connection import GrpcConnection, GrpcShared
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import Buffers
from triomq.remoting.grpc.methods import CallContext, MethodTable, UnaryCall, unary
from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.protocol.limits import Limits

PATH = dict(CALL_HEADERS)[":path"]
LATER_SECONDS, DEADLINE_SECONDS = 0.01, 2
TICK_SECONDS = 0.25
HANGS = b"hang"
TRAILER = ("x-by", "handler")


def decode(data: bytes) -> bytes:
    if data.startswith(b"undecodable"):
        raise ValueError("no such message")
    return data


def encode(answer: bytes) -> bytes:
    if answer.startswith(b"unencodable"):
        raise ValueError("no such answer")
    return answer


def result(request: bytes, call: CallContext) -> bytes:
    """What every handler answers at once, or raises."""
    match request.partition(b" ")[0]:
        case b"refused":
            raise CallFailed(GrpcStatus.NOT_FOUND, "not there", (("x-why", "because"),))
        case b"broken":
            raise LookupError("a secret")
        case b"trailer":
            call.add_trailer(*TRAILER)
    return request[::-1] if request.startswith(b"now") else request


async def handle(request: bytes, call: CallContext) -> bytes:
    if request.startswith(b"later"):
        await trio.sleep(LATER_SECONDS)
    elif request == HANGS:
        await trio.sleep_forever()
    return result(request, call)


@attrs.define(eq=False)
class Batches:
    """The batch handler. ``sizes``: of the batches that came."""

    nursery: trio.Nursery
    sizes: list[int] = attrs.field(factory=list)

    def takes(self, request: bytes, call: CallContext) -> bool:
        if request.startswith(b"doubtful"):
            raise LookupError("whether it is taken")
        return not request.startswith(b"task")

    def run(self, calls: Sequence[UnaryCall]) -> None:
        self.sizes.append(len(calls))
        for call in calls:
            if call.request.startswith(b"later"):
                self.nursery.start_soon(self._later, call)
            elif call.request != HANGS:
                try:
                    call.answer(result(call.request, call.context))
                except Exception as error:
                    call.fail(error)
                call.answer(b"a second answer is dropped")

    async def _later(self, call: UnaryCall) -> None:
        await trio.sleep(LATER_SECONDS)
        call.answer(call.request)


class Caller(Pair):
    """h2's client at a socket. ``times``: when each answer ended, by Trio's clock.

    ``writing`` is held while a frame may be cut, so that no other frame gets into it.
    """

    def __init__(self, sock: trio.SocketStream) -> None:
        self.sock = sock
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self.client.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.acknowledges = True
        self.times: dict[int, float] = {}
        self.writing = trio.Lock()

    async def listen(self) -> None:
        async for data in self.sock:
            self.take(self.client.receive_data(data))
            for stream, answer in self.answers.items():
                if answer.ended or answer.reset is not None:
                    self.times.setdefault(stream, trio.current_time())
            async with self.writing:
                await self.sock.send_all(self.client.data_to_send())


@attrs.frozen
class Sent:
    """A call: pieces of its data, and whether the client ends it with the last of them."""

    pieces: Sequence[bytes]

    def begin(self, client: Any) -> int:
        stream = client.get_next_available_stream_id()
        more = [("grpc-timeout", f"{DEADLINE_SECONDS}S"), ("grpc-encoding", "gzip")]
        client.send_headers(stream, [*CALL_HEADERS, *more], end_stream=not self.pieces)
        return int(stream)


async def answers_of(
    calls: Sequence[Sent], cuts: Callable[[int], list[int]], order: random.Random, *, batched: bool
) -> tuple[list[Any], list[float], list[int]]:
    """Make the calls on one connection; return answers, times, and sizes of batches."""
    here, there = socket.socketpair()
    with here, there:
        return await _answers_at(here, there, calls, cuts, order, batched)


async def _answers_at(
    here: socket.socket,
    there: socket.socket,
    calls: Sequence[Sent],
    cuts: Callable[[int], list[int]],
    order: random.Random,
    batched: bool,
) -> tuple[list[Any], list[float], list[int]]:
    here.setblocking(False)
    values = GrpcSettings()
    limits = Limits(values, "grpc")
    async with trio.open_nursery() as nursery:
        batches = Batches(nursery)
        parts = {"takes": batches.takes, "run": batches.run} if batched else {}
        shared = GrpcShared(
            settings=values,
            table=MethodTable([unary(PATH, decode, encode, handle, **parts)]),
            limits=limits,
            buffers=Buffers(values.buffers_bytes_max),
            resets=AddressResets(limits),
            counters=CallCounters(),
            draining=trio.Event(),
            limit=LogLimit(),
        )
        connection = GrpcConnection(here, ("192.0.2.1", 1), shared, lambda ended: None)
        nursery.start_soon(connection.run)

        async def tick() -> None:
            while True:
                await trio.sleep(TICK_SECONDS)
                connection.tick(trio.current_time())

        nursery.start_soon(tick)
        caller = Caller(trio.SocketStream(trio.socket.from_stdlib_socket(there)))
        client = caller.client
        nursery.start_soon(caller.listen)
        await caller.sock.send_all(client.data_to_send())
        await trio.testing.wait_all_tasks_blocked()  # the windows of the server are known
        streams = [call.begin(client) for call in calls]
        left = {stream: list(call.pieces) for stream, call in zip(streams, calls, strict=True)}
        while waiting := [stream for stream, pieces in left.items() if pieces]:
            stream = order.choice(waiting)
            piece = left[stream].pop(0)
            client.send_data(stream, piece, end_stream=not left[stream])
        async with caller.writing:
            data, at = client.data_to_send(), 0
            for cut in [*cuts(len(data)), len(data)]:
                if cut > at:
                    await caller.sock.send_all(data[at:cut])
                    at = cut
                    await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(DEADLINE_SECONDS + 1):
            while len(caller.times) < len(calls) or connection.calls:
                await trio.sleep(TICK_SECONDS)
        assert connection.session.buffers.kept_bytes == connection.session.calls == 0
        assert sum(shared.counters.statuses.values()) == len(calls)
        nursery.cancel_scope.cancel()
    found = [
        (answer.headers.get(b":status"), answer.messages, answer.status, answer.text, more(answer))
        for answer in (caller.answers[stream] for stream in streams)
    ]
    return found, [caller.times[stream] for stream in streams], batches.sizes


def more(answer: Answer) -> list[bytes | None]:
    return [answer.trailers.get(name) for name in (b"x-why", b"x-by")]


def played(*arguments: Any, **more: Any) -> tuple[list[Any], list[float], list[int]]:
    async def play() -> tuple[list[Any], list[float], list[int]]:
        return await answers_of(*arguments, **more)

    return trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


WORDS = ("now", "later", "task", "refused", "broken", "trailer", "undecodable", "unencodable")
REQUESTS = st.one_of(
    st.builds(lambda word, size: word.encode() + b" " * size, st.sampled_from(WORDS), st.just(3)),
    st.sampled_from([HANGS, b"now " + bytes(20_000), b""]),
)


@st.composite
def sent_calls(draw: Any) -> Sent:
    request = message(draw(REQUESTS))
    kind = draw(st.integers(0, 9))
    data = {
        0: b"",
        1: request + request,
        2: request[:-1],
        3: b"\x01" + request[1:],
        4: b"\x02" + request[1:],
    }.get(kind, request)
    size = draw(st.sampled_from([5, 6, 10_000]))
    pieces = [data[at : at + size] for at in range(0, len(data), size)][:4]
    rest = data[size * 4 :]
    return Sent([*pieces, *[rest[at : at + 16_000] for at in range(0, len(rest), 16_000)]])


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(sent_calls(), min_size=1, max_size=8),
    places=st.lists(st.floats(0, 1), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_batches_answer_as_calls_one_by_one(
    calls: list[Sent], places: list[float], order: random.Random
) -> None:
    def cuts(size: int) -> list[int]:
        return sorted(int(size * place) for place in places)

    expected = [
        played([call], lambda size: [], random.Random(0), batched=False)[0][0] for call in calls
    ]
    found, times, _ = played(calls, cuts, order, batched=True)
    assert found == expected
    for call, answer, time in zip(calls, expected, times, strict=True):
        if answer[2] != GrpcStatus.DEADLINE_EXCEEDED:
            assert time < DEADLINE_SECONDS / 2, ("delayed", call)


def test_calls_of_one_read_are_one_batch() -> None:
    calls = [Sent([message(b"now %d" % number)]) for number in range(20)]
    calls.insert(3, Sent([message(HANGS)]))
    calls.insert(5, Sent([message(b"doubtful")]))
    found, times, sizes = played(calls, lambda size: [], random.Random(1), batched=True)
    assert sizes == [21]
    assert [answer[2] for answer in found].count(GrpcStatus.OK) == 20
    assert found[3][2] == GrpcStatus.DEADLINE_EXCEEDED
    assert found[5][2] == GrpcStatus.INTERNAL
    assert sorted(times)[-2] < DEADLINE_SECONDS / 2


class Passes(trio.abc.Instrument):
    """Counts the bytes that are decoded between two looks of the loop at its sockets."""

    def __init__(self) -> None:
        self.decoded = [0]

    def before_io_wait(self, timeout: float) -> None:
        if self.decoded[-1]:
            self.decoded.append(0)

    def decode(self, data: bytes) -> bytes:
        self.decoded[-1] += len(data)
        return data


class InTurns(random.Random):
    """Sends a piece of each call before the next of any."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sent: Counter[int] = Counter()

    def choice(self, seq: Any) -> Any:
        chosen = min(seq, key=self.sent.__getitem__)
        self.sent[chosen] += 1
        return chosen


def test_large_requests_that_end_together_are_decoded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = Passes()
    monkeypatch.setattr(sys.modules[__name__], "decode", passes.decode)
    data = message(b"now" + bytes(20_000))
    calls = [Sent([data[:-1], data[-1:]])] * 40

    async def play() -> list[Any]:
        trio.lowlevel.add_instrument(passes)
        found, _, _ = await answers_of(
            calls, lambda size: [size - 40 * 10], InTurns(), batched=True
        )
        return found

    found = trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    assert {answer[2] for answer in found} == {GrpcStatus.OK}
    assert sum(passes.decoded) == 40 * 20_003
    assert max(passes.decoded) < 130_000
