"""Messages with a time of delivery: how late they come, many in one second, a million that wait.

    python tests/bench/bench_timers.py [--rate 10000] [--seconds 10] [--burst 200000]
        [--pending 1000000]

One broker and this process on one machine. Late is the store time of a delivered message minus its
time of delivery, in whole milliseconds. 0 leaves a part out.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_broker import call, connect, create_topic, frame
from figures import add_record_option, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes

from triomq.remoting.protocol.record_reader import decode_records

WINDOW = 256
BODY = b"x" * 100


@contextmanager
def broker_on(folder: Path, namesrv: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    settings = {"storePathRootDir": folder / "store", "defaultTopicQueueNums": 1}
    with processes.our_broker(folder, "broker-a", namesrv, **settings) as found:
        yield found


def send_all(address: str, topic: str, times: Iterable[int | None]) -> int:
    """Send a message for each time (None: no time), 256 in flight; return how many are stored."""
    fields = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    count = in_flight = 0
    with connect(address) as sock:
        answers = Answers(sock)
        batch: list[bytes] = []
        for at in times:
            count += 1
            timed = f"\x02TIMER_DELIVER_MS\x01{at}" if at is not None else ""
            key = f"{count:024X}{id(sock) & 0xFFFFFFFF:08X}"
            batch.append(frame(310, {**fields, "i": f"UNIQ_KEY\x01{key}{timed}"}, BODY))
            if len(batch) == WINDOW // 2:
                sock.sendall(b"".join(batch))
                in_flight += len(batch)
                batch.clear()
                if in_flight >= WINDOW:
                    in_flight -= answers.take(WINDOW // 2)
        sock.sendall(b"".join(batch))
        answers.take(in_flight + len(batch))
    return count - answers.refused


class Answers:
    """The answers on a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.refused = 0

    def take(self, count: int) -> int:
        """Wait for so many, and count refusals."""
        for _ in range(count):
            while len(self.data) < 4 or len(self.data) < 4 + self._size():
                self.data += self.sock.recv(1 << 18)
            one, self.data = self.data[: 4 + self._size()], self.data[4 + self._size() :]
            if b'"code":0' not in one:
                self.refused += 1  # busy: another program has the machine
        return count

    def _size(self) -> int:
        return int(struct.unpack_from(">I", self.data)[0])


def read_all(address: str, topic: str, count: int, seconds: float) -> list[tuple[int, int]]:
    """Return (store time, time of delivery) of each message of a topic's queue 0."""
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + seconds
    fields = {
        "consumerGroup": "bench", "topic": topic, "queueId": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    }  # fmt: skip
    with connect(address) as sock:
        while len(found) < count and time.monotonic() < deadline:
            header, body = call(sock, frame(11, {**fields, "queueOffset": str(len(found))}))
            if header["code"] != 0:
                time.sleep(0.1)
            for message in decode_records(body) if header["code"] == 0 else []:
                at = message.properties.get("TIMER_DELIVER_MS")
                found.append((message.store_timestamp, int(at) if at else message.store_timestamp))
    return found


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    # Anonymous memory: the log that it has mapped belongs to the page cache.
    text = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def measure_lateness(address: str, rate: int, seconds: int, file: Path | None) -> None:
    create_topic(address, "Late")
    count = rate * seconds
    # Sending takes its time, and must be over before the first is due.
    begin = int(time.time() * 1000) + 3_000 + count // 5
    choose = random.Random(1)
    times = [begin + choose.randrange(seconds * 1000) for _ in range(count)]
    started = time.monotonic()
    count = send_all(address, "Late", times)
    sent = time.monotonic() - started
    time.sleep(max(0.0, begin / 1000 + seconds + 3 - time.time()))
    found = read_all(address, "Late", count, 60)
    late = sorted(stored - at for stored, at in found)
    p99 = late[len(late) * 99 // 100]
    said = (
        f"{rate:,} due a second for {seconds} s: {len(late):,} of {count:,} delivered, late"
        f" {statistics.median(late):.0f} ms (p50), {p99} ms (p99),"
        f" {late[-1]} ms (longest), {late[0]} ms (shortest); sent at {count / sent:,.0f} a second"
    )
    print(said, flush=True)
    record(file, "177b", p99, said)


class LiveSends(threading.Thread):
    """Plain sends from a process of their own rate, counted ten times a second."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.counts: list[tuple[float, int]] = []
        self.stopped = False

    def run(self) -> None:
        total = 0
        while not self.stopped:
            total += send_all(self.address, "Live", [None] * 512)
            self.counts.append((time.time(), total))

    def rate(self, begin: float, end: float) -> float:
        inside = [entry for entry in self.counts if begin <= entry[0] <= end]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def measure_burst(address: str, count: int, file: Path | None) -> None:
    create_topic(address, "Burst")
    create_topic(address, "Live")
    at = (int(time.time() * 1000) + 8_000 + count // 8) // 1000 * 1000 + 500
    count = send_all(address, "Burst", (at + number % 1000 - 499 for number in range(count)))
    live = LiveSends(address)
    time.sleep(max(0.0, at / 1000 - time.time() - 6))
    live.start()
    before = time.time() + 0.5
    time.sleep(max(0.0, at / 1000 - time.time()))
    found = []
    deadline = time.monotonic() + 120
    with connect(address) as sock:
        while time.monotonic() < deadline:
            header, _ = call(sock, frame(30, {"topic": "Burst", "queueId": "0"}))
            fields = header["extFields"]
            assert isinstance(fields, dict)
            if int(fields["offset"]) >= count:
                break
            time.sleep(0.05)
    live.stopped = True
    live.join(10)
    found = read_all(address, "Burst", count, 120)
    first, last = found[0][0], max(stored for stored, _ in found)
    calm, busy = live.rate(before, at / 1000 - 1), live.rate(at / 1000, last / 1000)
    seconds = (last - first) / 1000
    said = (
        f"{count:,} due in one second: {len(found):,} delivered in {seconds:.1f} s,"
        f" {len(found) / max(0.001, seconds):,.0f} a second; live sends {calm:,.0f}"
        f" a second before, {busy:,.0f} meanwhile ({busy / max(1.0, calm):.0%})"
    )
    print(said, flush=True)
    record(file, "116b", seconds, said)


def measure_pending(folder: Path, namesrv: str, count: int) -> None:
    choose = random.Random(2)
    with broker_on(folder, namesrv) as (address, process):
        create_topic(address, "Wait")
        empty = memory_mb(process)
        now = int(time.time() * 1000)
        started = time.monotonic()
        times = (now + choose.randrange(7_200_000, 162_000_000) for _ in range(count))
        send_all(address, "Wait", times)
        seconds = time.monotonic() - started
        time.sleep(3)
        print(
            f"{count:,} sent at {count / seconds:,.0f} a second; the broker has"
            f" {memory_mb(process):.0f} MB, {empty:.0f} MB before",
            flush=True,
        )
        process.terminate()
        process.wait(60)
    for ended in ("stopped", "killed"):
        started = time.monotonic()
        with broker_on(folder, namesrv) as (_, process):
            seconds = time.monotonic() - started
            print(
                f"start of a {ended} broker with {count:,} waiting: {seconds:.1f} s,"
                f" {memory_mb(process):.0f} MB",
                flush=True,
            )
            time.sleep(2)
            process.send_signal(signal.SIGKILL)
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--burst", type=int, default=200_000)
    parser.add_argument("--pending", type=int, default=1_000_000)
    add_record_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="triomq-timers-") as place:
        folder = Path(place)
        with processes.our_name_server(folder / "namesrv") as namesrv:
            with broker_on(folder / "a", namesrv) as (address, _):
                if arguments.rate:
                    measure_lateness(address, arguments.rate, arguments.seconds, arguments.record)
                if arguments.burst:
                    measure_burst(address, arguments.burst, arguments.record)
            if arguments.pending:
                measure_pending(folder / "b", namesrv, arguments.pending)


if __name__ == "__main__":
    main()
