"""Calls of the four kinds, with grpcio's client as an independent peer, over real sockets."""

from __future__ import annotations

import logging
from queue import Queue
from typing import Any

import grpc
import pytest
import trio
from grpc_serving import (
    ECHO,
    FAIL,
    HOLD,
    JOIN,
    REPEAT,
    TALK,
    Echo,
    channel_to,
    grpc_serving,
    in_thread,
)
from serving import until

from triomq.remoting.grpc.status import GrpcStatus

MIB = 1024 * 1024
UNLIMITED = {"max_receive_message_length": -1, "max_send_message_length": -1}


async def refused(call: Any, request: Any = b"", **more: Any) -> grpc.RpcError:
    """Return the error with which a call ends."""
    with pytest.raises(grpc.RpcError) as caught:
        await in_thread(call, request, timeout=more.pop("timeout", 20), **more)
    return caught.value


async def test_unary() -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        echo = channel.unary_unary(ECHO)
        assert await in_thread(echo, b"hello", timeout=20) == b"hello"
        assert await in_thread(echo, b"", timeout=20) == b""
        figures = server.statistics()
        assert figures.statuses == {(ECHO, GrpcStatus.OK): 2}
        assert figures.latency[ECHO].answered == 2
        assert (figures.connections, figures.calls, figures.kept_bytes) == (1, 0, 0)


async def test_server_streaming() -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        answers = await in_thread(
            lambda: list(channel.unary_stream(REPEAT)(b"40 5000", timeout=20))
        )
        assert [int(answer[:8]) for answer in answers] == list(range(40))
        assert {len(answer) for answer in answers} == {5008}
        assert await in_thread(lambda: list(channel.unary_stream(REPEAT)(b"0 0", timeout=20))) == []


async def test_client_streaming() -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        join = channel.stream_unary(JOIN)
        parts = [b"%d" % number for number in range(100)]
        assert await in_thread(join, iter(parts), timeout=20) == b",".join(parts)
        assert await in_thread(join, iter(()), timeout=20) == b""


async def test_bidirectional_messages_cross() -> None:
    """The second request is sent only when the answer to the first is there."""
    async with grpc_serving() as server, channel_to(server) as channel:

        def talk() -> list[bytes]:
            queue: Queue[bytes | None] = Queue()
            call = channel.stream_stream(TALK)(iter(queue.get, None), timeout=20)
            answers = []
            for number in range(10):
                queue.put(b"%d" % number)
                answers.append(next(call))
            queue.put(None)
            return answers + list(call)

        assert await in_thread(talk) == [b"%d" % number for number in range(10)]


async def test_a_handler_chooses_the_status(caplog: pytest.LogCaptureFixture) -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        error = await refused(channel.unary_unary(FAIL), b"status")
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "no topic “T” 100%\n"
        assert ("x-why", "because") in error.trailing_metadata()
        error = await refused(channel.unary_unary(FAIL), b"nursery")
        assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "from a child")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_any_other_error_is_internal_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        for _ in range(3):
            error = await refused(channel.unary_unary(FAIL), b"?")
            assert error.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in error.details()
        assert await in_thread(channel.unary_unary(ECHO), b"on", timeout=20) == b"on"
        assert server.statistics().connections == 1
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert errors[0].exc_info is not None


async def test_unknown_methods() -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        path = "/test.Echo/Nothing"
        stream = channel.unary_stream(path)
        for call in (channel.unary_unary(path), lambda *words, **more: [*stream(*words, **more)]):
            error = await refused(call)
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert path in error.details()
        assert server.statistics().statuses == {("unknown", GrpcStatus.UNIMPLEMENTED): 2}


async def test_metadata_both_ways() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server, channel_to(server) as channel:
        _, call = await in_thread(
            channel.unary_unary(ECHO).with_call,
            b"",
            timeout=20,
            metadata=(("x-trailer", "bytes, in ASCII"),),
        )
        assert ("x-trailer", "bytes, in ASCII") in call.trailing_metadata()
        held = channel.unary_unary(HOLD).future(
            b"", timeout=50, metadata=(("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\0\xff\n"))
        )
        await until(lambda: bool(echo.started))
        (context,) = echo.started
        assert context.metadata["x-a"] == "2", "the last counts"
        assert context.binary_metadata("x-b-bin") == b"\0\xff\n"
        assert context.binary_metadata("x-c-bin") is None
        assert context.peer[0] == "127.0.0.1"
        assert 0 < context.time_left() < 55
        held.cancel()
        await until(lambda: echo.ended == ["cancelled"])


async def test_too_many_and_too_few_messages() -> None:
    async with grpc_serving() as server, channel_to(server) as channel:
        as_stream = channel.stream_unary(ECHO)
        error = await refused(as_stream, iter((b"1", b"2")))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        error = await refused(as_stream, iter(()))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_deadline() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server, channel_to(server) as channel:
        error = await refused(channel.unary_unary(HOLD), b"", timeout=0.2)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: echo.ended == ["cancelled"])
        await until(lambda: server.statistics().calls == 0)
        ends = server.statistics().statuses
        assert set(ends) <= {(HOLD, GrpcStatus.DEADLINE_EXCEEDED), (HOLD, GrpcStatus.CANCELLED)}


async def test_cancelled_by_the_client() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server, channel_to(server) as channel:
        held = [channel.unary_unary(HOLD).future(b"") for _ in range(20)]
        await until(lambda: len(echo.started) == 20)
        assert server.statistics().calls == 20
        for call in held:
            call.cancel()
        await until(lambda: len(echo.ended) == 20)
        assert await in_thread(channel.unary_unary(ECHO), b"on", timeout=20) == b"on"
        assert server.statistics().connections == 1


async def test_cancelled_by_the_loss_of_the_connection() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server:
        async with channel_to(server) as channel:
            held = channel.unary_unary(HOLD).future(b"")
            await until(lambda: len(echo.started) == 1)
        assert held.done()
        await until(lambda: echo.ended == ["cancelled"])
        await until(lambda: server.statistics().connections == 0)
        assert server.places.taken == 0


async def test_large_messages_both_ways() -> None:
    """Larger than every window and frame, so both sides must grant windows again."""
    async with (
        grpc_serving(stream_window_bytes=65_535, connection_window_bytes=65_535) as server,
        channel_to(server, **UNLIMITED) as channel,
    ):
        data = bytes(range(256)) * (20 * 4096)
        assert await in_thread(channel.unary_unary(ECHO), data, timeout=60) == data
        assert server.statistics().kept_bytes == 0


async def test_a_message_above_the_limit_names_it() -> None:
    async with (
        grpc_serving(message_bytes_max=MIB) as server,
        channel_to(server, **UNLIMITED) as channel,
    ):
        echo = channel.unary_unary(ECHO)
        assert len(await in_thread(echo, bytes(MIB), timeout=20)) == MIB
        error = await refused(echo, bytes(MIB + 1))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpcMaxInboundMessageSize" in error.details()
        assert str(MIB) in error.details()
        assert server.statistics().refused == {"grpcMaxInboundMessageSize": 1}
        assert await in_thread(echo, b"on", timeout=20) == b"on"


async def test_gzip_requests() -> None:
    async with (
        grpc_serving(inflated_bytes_max=MIB) as server,
        channel_to(server, **UNLIMITED) as channel,
    ):
        echo = channel.unary_unary(ECHO)
        data = b"triomq " * 10_000
        gzip = grpc.Compression.Gzip
        assert await in_thread(echo, data, timeout=20, compression=gzip) == data
        error = await refused(echo, bytes(2 * MIB), compression=gzip)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = await refused(echo, data, compression=grpc.Compression.Deflate)
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_hundred_concurrent_calls() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server, channel_to(server) as channel:
        held = [channel.unary_unary(HOLD).future(b"") for _ in range(100)]
        echoes = {
            b"%d" % number * 300: channel.unary_unary(ECHO).future(b"%d" % number * 300)
            for number in range(100)
        }
        for data, call in echoes.items():
            assert await in_thread(call.result, 30) == data
        await until(lambda: len(echo.started) == 100)
        for call in held:
            call.cancel()
        await until(lambda: len(echo.ended) == 100)
        assert server.statistics().accepted == 1


async def test_a_slow_reader_makes_the_handler_wait() -> None:
    """The client takes one message and then none: the handler stops at the client's window."""
    sent = []
    echo = Echo()
    repeat = echo.repeat

    async def counted(request: bytes, answers: Any, call: Any) -> None:
        class Counted:
            async def send(self, answer: bytes) -> None:  # counts what the handler got rid of
                await answers.send(answer)
                sent.append(len(answer))

        await repeat(request, Counted(), call)  # type: ignore[arg-type]

    echo.repeat = counted  # type: ignore[method-assign]
    async with (
        grpc_serving(echo) as server,
        channel_to(server, http2_bdp_probe=0, http2_lookahead_bytes=65_536) as channel,
    ):
        call = channel.unary_stream(REPEAT)(b"1000 100000", timeout=60)
        assert len(await in_thread(next, call)) == 100_008
        stopped = -1
        while stopped < len(sent):
            stopped = len(sent)
            await trio.sleep(0.3)
        assert stopped < 1000, "it waits before it has sent all"
        rest = await in_thread(lambda: sum(1 for _ in call))
        assert (rest, len(sent)) == (999, 1000)
