"""Duplicate and late answers, wrapped numbers, and the blocking connection in all these cases."""

from __future__ import annotations

import socket
import threading

import pytest
import trio
from serving import BOTH_FORMS, ECHO, serving

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.rpc_hooks import Serialisation
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, RequestTimeout
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_command, response_to
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.peer import ClientPeer

LAST = 2**31 - 1


def answer_twice(listener: socket.socket) -> None:
    """Answer every request of one client twice, unless it is one-way."""
    peer, _ = listener.accept()
    frames = FrameBuffer()
    with peer:
        while data := peer.recv(65536):
            for frame in frames.feed(data):
                asked = decode_frame(frame)
                if not asked.is_oneway:
                    answer = encode_command(response_to(asked, body=asked.body))
                    peer.sendall(answer + answer)


@pytest.fixture
def answering_twice() -> str:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            answer_twice(listener)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.feature("19b")
async def test_answers_that_come_twice_count_once(answering_twice: str) -> None:
    with trio.fail_after(20):
        async with Connector() as connector:
            for number in range(5):
                body = b"%d" % number
                assert (
                    await connector.invoke(answering_twice, Command(ECHO, body=body))
                ).body == body
            await connector.oneway(answering_twice, Command(ECHO))
            last = await connector.invoke(answering_twice, Command(ECHO, body=b"last"))
            assert last.body == b"last"
            statistics = connector.statistics()
            assert (statistics.opened, statistics.pending) == (1, 0)
            assert statistics.late in (
                5,
                6,
            )  # the second answer to the last request may still be on its way


def test_answers_that_come_twice_count_once_for_a_thread(answering_twice: str) -> None:
    with BlockingConnection(answering_twice) as connection:
        answers = connection.invoke_all(Command(ECHO, body=b"%d" % number) for number in range(100))
        assert [answer.body for answer in answers] == [b"%d" % number for number in range(100)]
        statistics = connection.statistics()
        assert (statistics.sent, statistics.replied, statistics.pending) == (100, 100, 0)
        assert statistics.late_replies in (99, 100)


async def test_numbers_wrap_on_a_living_connection() -> None:
    async with serving() as server:

        def work() -> list[int]:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                connection._peer = ClientPeer(first_opaque=LAST - 3)
                commands = [
                    Command(ECHO, body=b"%d" % number, serialize=BOTH_FORMS[number % 2])
                    for number in range(10)
                ]
                for number, answer in enumerate(connection.invoke_all(commands, in_flight_max=4)):
                    assert (answer.body, answer.serialize) == (
                        b"%d" % number,
                        BOTH_FORMS[number % 2],
                    )
                return [command.opaque for command in commands]

        assert await trio.to_thread.run_sync(work) == [
            *range(LAST - 3, LAST + 1),
            *range(-LAST - 1, -LAST + 5),
        ]


async def test_a_pipeline_of_more_than_the_buffers_hold() -> None:
    """Both sides would block for ever if all requests were written before an answer is read."""
    body = bytes(100_000)
    async with serving() as server:

        def work() -> int:
            with BlockingConnection(f"127.0.0.1:{server.port}", timeout=20) as connection:
                answers = connection.invoke_all(
                    (Command(ECHO, body=body) for _ in range(300)), 20, in_flight_max=8
                )
                return sum(len(answer.body) for answer in answers)

        assert await trio.to_thread.run_sync(work) == 300 * len(body)


def test_a_pipeline_that_fails_leaves_nothing_pending() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with BlockingConnection(address) as connection:
            peer, _ = listener.accept()
            with peer:
                with pytest.raises(RequestTimeout):
                    connection.invoke_all([Command(ECHO), Command(ECHO)], 0.05)
                assert connection.statistics().pending == 0
                frames = FrameBuffer().feed(peer.recv(65536))
                for frame in frames:
                    peer.sendall(encode_command(response_to(decode_frame(frame), body=b"late")))
                oneway = threading.Thread(target=answer_next, args=(peer,))
                oneway.start()
                assert connection.invoke(Command(ECHO, body=b"x"), 20).body == b"x"
                oneway.join()
            assert connection.statistics().late_replies == len(frames) == 2


def answer_next(peer: socket.socket) -> None:
    buffer = FrameBuffer()
    while not (frames := buffer.feed(peer.recv(65536))):
        pass
    asked = decode_frame(frames[0])
    peer.sendall(encode_command(response_to(asked, body=asked.body)))


async def test_reconnecting() -> None:
    async with serving() as server:

        def work() -> None:
            connection = BlockingConnection(
                f"127.0.0.1:{server.port}", hooks=[Serialisation(SerializeType.ROCKETMQ)]
            )
            unanswered = connection.send(Command(ECHO, body=b"before"))
            first = unanswered
            assert (
                connection.receive(connection.send(Command(ECHO, body=b"behind"))).body == b"behind"
            )  # the first answer is kept
            assert (list(connection._asked), list(connection._answers)) == ([first], [first])
            connection.reconnect()
            assert (connection._asked, connection._answers) == ({}, {})
            with pytest.raises(KeyError):
                connection.receive(unanswered)
            assert connection.invoke(Command(ECHO, body=b"after")).body == b"after"
            assert connection.send(Command(ECHO)) == first + 3  # no number is used twice
            connection.close()
            assert connection.closed
            connection.reconnect()
            with connection:
                assert connection.invoke(Command(ECHO, body=b"again")).body == b"again"

        await trio.to_thread.run_sync(work)


def test_reconnecting_without_a_server() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    connection = BlockingConnection(address)
    listener.close()
    with pytest.raises(ConnectFailed):
        connection.reconnect()
    assert connection.closed
    with pytest.raises(ConnectionLost, match="connecting anew"):
        connection.invoke(Command(ECHO))
