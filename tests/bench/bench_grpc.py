"""Unary echo calls of 1 KiB with 1, 64 and 256 in flight on one connection: calls a second, the
server's processor time for each call, and what framing is of it.

    python tests/bench/bench_grpc.py [--seconds 2] [--in-flight 1 64 256] [--peer frames|grpcio]
        [--profile]

Server and load run in two processes. The peer ``frames`` sends prepared frames and looks for the
ends of streams only, so that the server is what is measured; ``grpcio`` is the official client.
``--profile`` runs 64 in flight under cProfile and adds up self times by layer.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import psutil
import trio
from hpack import Encoder

from triomq.remoting.grpc.grpc_server import GrpcServer
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.methods import CallContext, MethodTable, unary

PATH = "/bench.Echo/Echo"
BODY = b"x" * 1024
METADATA = [
    ("x-mq-client-id", "host@4242@0@abc123"),
    ("x-mq-language", "JAVA"),
    ("x-mq-protocol", "v2"),
    ("x-mq-client-version", "5.0.7"),
    ("x-mq-request-id", "0b6d3f5e-2f0c-4b7e-9d0e-3c6f7a1b2c3d"),
    ("x-mq-date-time", "20261126T180000Z"),
]
"""what an official client sends with each call"""
WINDOW = 2**31 - 1
PROFILED = 64
LAYERS = {
    "hpack (headers)": ("/hpack/",),
    "our framing and session": (
        "/http2_connection.py",
        "/http2_session.py",
        "/frames.py",
        "/frame_budgets.py",
        "/header_encoder.py",
        "/message_reader.py",
        "/call_head.py",
    ),
    "our calls and sockets": ("/remoting/grpc/",),
    "Trio": ("/trio/", "/outcome/"),
}


def same(data: bytes) -> bytes:
    return data


async def echo(request: bytes, call: CallContext) -> bytes:
    return request


async def serve(profile: Path | None) -> None:
    """Serve until SIGTERM; print the port first."""
    table = MethodTable([unary(PATH, same, same, echo)])
    server = GrpcServer(table, GrpcSettings(drain_seconds=0), listen_host="127.0.0.1")
    profiler = cProfile.Profile()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        print(server.port, flush=True)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            if profile is not None:
                profiler.enable()
            async for _ in signals:
                break
        profiler.disable()
        nursery.cancel_scope.cancel()
    if profile is not None:
        profiler.dump_stats(profile)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


class FramePeer:
    """A client that keeps *in_flight* calls open on one connection."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder = Encoder()
        self.stream = 1
        self.data = b"\0" + len(BODY).to_bytes(4) + BODY
        settings = (4).to_bytes(2) + WINDOW.to_bytes(4)
        self.sock.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, settings)
            + frame(8, 0, 0, (WINDOW - 65_535).to_bytes(4))
        )
        self.rest = b""

    def call(self) -> bytes:
        headers = self.encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", PATH),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("grpc-timeout", "3S"),
                *METADATA,
            ]
        )
        stream, self.stream = self.stream, self.stream + 2
        return frame(1, 4, stream, headers) + frame(0, 1, stream, self.data)

    def ended(self) -> int:
        """Read once; return how many calls have ended."""
        data = self.rest + self.sock.recv(1024 * 1024)
        at = count = 0
        while len(data) - at >= 9:
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if len(data) - at < 9 + size:
                break
            kind, flags = data[at + 3], data[at + 4]
            count += kind == 1 and flags & 1
            if kind in {3, 7}:
                raise SystemExit(f"the server reset a call or left: {data[at : at + 40]!r}")
            if kind == 4 and not flags & 1:
                self.sock.sendall(frame(4, 1, 0, b""))
            at += 9 + size
        self.rest = data[at:]
        return count

    def run(self, in_flight: int, seconds: float) -> int:
        self.sock.sendall(b"".join(self.call() for _ in range(in_flight)))
        until = time.perf_counter() + seconds
        count = 0
        while time.perf_counter() < until:
            ended = self.ended()
            count += ended
            if ended:
                self.sock.sendall(b"".join(self.call() for _ in range(ended)))
        left = in_flight
        while left:
            left -= self.ended()
        return count + in_flight


async def grpcio_run(port: int, in_flight: int, seconds: float) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(PATH)
        until = time.perf_counter() + seconds
        counts = [0] * in_flight

        async def repeat(number: int) -> None:
            while time.perf_counter() < until:
                await call(BODY, timeout=30, metadata=METADATA)
                counts[number] += 1

        await asyncio.gather(*(repeat(number) for number in range(in_flight)))
        return sum(counts)


def measure(peer: str, in_flight: int, seconds: float, profile: Path | None = None) -> None:
    words = [sys.executable, __file__, "--serve", *(("--dump", profile) if profile else ())]
    server = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        process = psutil.Process(server.pid)
        frames = FramePeer(port) if peer == "frames" else None

        def run(duration: float) -> int:
            if frames is not None:
                return frames.run(in_flight, duration)
            return asyncio.run(grpcio_run(port, in_flight, duration))

        run(seconds / 4)
        cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
        count = run(seconds)
        took = time.perf_counter() - began
        used = sum(process.cpu_times()[:2]) - cpu
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    print(
        f"{in_flight:>4} in flight: {count / took:>8,.0f} calls/s, {used / count * 1e6:>6.0f} µs"
        f" of the server's CPU a call, {took / count * in_flight * 1e3:>6.2f} ms a call"
    )


def summary(path: Path) -> None:
    """Print which share of the time each layer has by itself."""
    stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    shares = dict.fromkeys([*LAYERS, "Python, sockets, the rest"], 0.0)
    for (file, _, name), (_, _, own, _, _) in stats.items():
        if "epoll" in name and "poll" in name.rpartition(".")[2]:
            continue  # the time without work
        layer = next(
            (one for one, marks in LAYERS.items() if any(mark in file for mark in marks)),
            "Python, sockets, the rest",
        )
        shares[layer] += own
    total = sum(shares.values())
    for layer, own in shares.items():
        print(f"{own / total:>6.0%}  {layer}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--peer", choices=("frames", "grpcio"), default="frames")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve, options.dump)
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for in_flight in options.in_flight:
        measure(options.peer, in_flight, options.seconds)
    if options.profile:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile"
            measure(options.peer, PROFILED, options.seconds, path)
            summary(path)


if __name__ == "__main__":
    main()
