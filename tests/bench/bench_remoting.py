"""How many echoes a second the staged server gives, against the same work on plain Trio streams (a
task a connection, no stages), and against a bare epoll loop that looks into nothing.

    python tests/bench/bench_remoting.py [--seconds 2] [--shapes 1x1 1x64]
        [--handler single|batch|async] [--profile FILE]

Server and load run in two processes. Each connection keeps a fixed number of 124-byte requests in
flight, encoded beforehand.
"""

import argparse
import cProfile
import pstats
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import attrs
import psutil
import trio

from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, encode_command, encode_response_head
from triomq.remoting.protocol.fields import header, wire
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.request_decoder import RequestDecoder
from triomq.remoting.server.config import PoolConfig, ServerConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.server import Server

SHAPES = ("1x1", "1x64", "8x1", "64x1", "64x8", "500x1")
READ_BYTES = 256 * 1024


@header
class EchoHeader:
    """What a small real request carries."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")


def one_request(size_bytes: int) -> bytes:
    command = Command(
        int(RequestCode.GET_MAX_OFFSET), ext={"topic": "T", "queueId": "3"}, opaque=1000
    )
    frame = encode_command(command)
    command.body = b"x" * max(0, size_bytes - len(frame))
    return encode_command(command)


def answer(request: Request) -> Response:
    return Response(0, request.header, request.body)


def answer_all(requests: list[Request]) -> list[Response | None]:
    return [Response(0, request.header, request.body) for request in requests]


async def answer_later(requests: list[Request]) -> list[Response | None]:
    await trio.lowlevel.checkpoint()
    return answer_all(requests)


HANDLERS = {"single": (answer, False), "batch": (answer_all, True), "async": (answer_later, True)}


async def serve(kind: str, selector_count: int, codec_count: int) -> None:
    call, batch = HANDLERS[kind]
    table = HandlerTable(
        [Handler(RequestCode.GET_MAX_OFFSET, call, "echo", EchoHeader, batch=batch)]
    )
    config = ServerConfig(
        host="127.0.0.1",
        selector_count=selector_count,
        codec_count=codec_count,
        pools={"echo": PoolConfig(workers=4, wait_ms_max=5000)},
    )
    server = Server(config, table)
    async with trio.open_nursery() as nursery:
        _host, port = await nursery.start(server.run)
        print(port, flush=True)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
    print(server.statistics(), file=sys.stderr)


async def serve_streams() -> None:
    """What one would write first: a task for each connection, which decodes a request, answers it,
    and reads on.
    """
    decoder = RequestDecoder({RequestCode.GET_MAX_OFFSET: (EchoHeader, False)})

    async def serve_one(stream: trio.SocketStream) -> None:
        frames = FrameBuffer()
        try:
            async for data in stream:
                for frame in frames.feed(data):
                    decoded = decoder.decode(frame)
                    await stream.send_all(
                        encode_response_head(decoded[6], 0, decoded[1], None, len(decoded[9]))
                        + decoded[9]
                    )
        except trio.BrokenResourceError:
            return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(serve_one, listeners)


def serve_bare() -> None:
    """The floor: a loop over epoll that sends every byte back."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    open_sockets: dict[int, socket.socket] = {}
    print(listener.getsockname()[1], flush=True)
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                sock, _peer = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                open_sockets[sock.fileno()] = sock
                poller.register(sock, select.EPOLLIN)
                continue
            try:
                data = open_sockets[fd].recv(65536)
            except OSError:
                data = b""
            if data:
                open_sockets[fd].send(data)
            else:
                poller.unregister(fd)
                open_sockets.pop(fd).close()


@attrs.define(eq=False)
class Load:
    """Connections with a fixed number of requests in flight each."""

    port: int
    connections: int
    in_flight: int
    frame: bytes

    def run(self, seconds: float) -> tuple[float, int]:
        """Answers a second, and how many came in all."""
        sockets = [
            socket.create_connection(("127.0.0.1", self.port)) for _ in range(self.connections)
        ]
        poller = select.epoll()
        partial: dict[int, tuple[socket.socket, list[int]]] = {}
        for sock in sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poller.register(sock, select.EPOLLIN)
            partial[sock.fileno()] = (sock, [0])
        buffer = bytearray(READ_BYTES)
        sockets[0].sendall(self.frame)
        answer_size = sockets[0].recv_into(buffer)
        for sock in sockets:
            sock.sendall(self.frame * self.in_flight)
        count = total = 0
        started = time.perf_counter()
        warm, end = started + seconds / 5, started + seconds
        while True:
            for fd, _ in poller.poll():
                sock, rest = partial[fd]
                whole, rest[0] = divmod(rest[0] + sock.recv_into(buffer), answer_size)
                if whole:
                    count += whole
                    total += whole
                    sock.sendall(self.frame * whole)
            now = time.perf_counter()
            if warm and now > warm:
                count, started, warm = 0, now, 0.0
            if now > end:
                break
        for sock in sockets:
            sock.close()
        return count / (now - started), total


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--size", type=int, default=124)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--handler", choices=list(HANDLERS), default="batch")
    parser.add_argument("--stages", nargs=2, default=("1", "1"), metavar=("SELECTORS", "CODECS"))
    parser.add_argument("--profile", help="write a profile of the server here")
    parser.add_argument("--serve", choices=("staged", "streams", "bare"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve == "bare":
        serve_bare()
    if options.serve == "streams":
        trio.run(serve_streams)
    if options.serve:
        profile = cProfile.Profile() if options.profile else None
        if profile is not None:
            profile.enable()
        trio.run(serve, options.handler, int(options.stages[0]), int(options.stages[1]))
        if profile is not None:
            profile.disable()
            with Path(options.profile).open("w") as report:
                pstats.Stats(profile, stream=report).sort_stats("tottime").print_stats(45)
        return
    staged = ["--serve", "staged", "--handler", options.handler, "--stages", *options.stages]
    servers = {
        "staged": start(*staged, *(["--profile", options.profile] if options.profile else [])),
        "Trio streams": start("--serve", "streams"),
        "bare epoll": start("--serve", "bare"),
    }
    frame = one_request(options.size)
    print(
        f"{len(frame)}-byte requests; median of {options.repeat}, {options.seconds:g} s each:"
        " answers a second (CPU an answer)"
    )
    for shape in options.shapes:
        connections, in_flight = map(int, shape.split("x"))
        rates: dict[str, list[float]] = {name: [] for name in servers}
        cpu: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(options.repeat):
            for name, (process, port) in servers.items():
                before = cpu_seconds(process.pid)
                rate, count = Load(port, connections, in_flight, frame).run(options.seconds)
                rates[name].append(rate)
                cpu[name].append((cpu_seconds(process.pid) - before) / count * 1e6)
        cells = [
            f"{name} {statistics.median(rates[name]):9,.0f}"
            f" ({statistics.median(cpu[name]):5.1f} µs)"
            for name in servers
        ]
        print(f"{shape:>7}: " + "   ".join(cells), flush=True)
    for process, _port in servers.values():
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
