"""The crash loop: a real ``mqbroker`` with SYNC_FLUSH under load, killed with SIGKILL at random
moments, again and again, on one store that grows.

Senders do not retry. After each kill the broker starts again, and its store is compared with what
it had acknowledged: every acknowledged message is at the log offset and the queue offset that its
answer named, whole and unchanged; no message is stored twice; no message is stored that was never
sent; queue offsets have no gaps. The log is read as bytes, not by the product's own code; the
queues are read by pulls, and a consumer pops the same messages (``crash_pops``). Each round draws
its numbers from (seed, round), and acknowledged messages are written down beside the store, so an
interrupted run goes on where it was.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import processes
from crash_pops import PopLedger, Popper
from store_ledger import Record, scan_log

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.process import ExitCode
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.record_reader import decode_records

NOBODY = "127.0.0.1:9"
TOPIC = "CrashLoop"
QUEUES = 4
SENDERS = 4
GRPC_PORT = 2
"""Above that of the remoting protocol."""
SEGMENT_BYTES = 4 * 1024 * 1024
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 20_000,
    "flushIntervalConsumeQueue": 200,
    "flushConsumeQueueThoroughInterval": 700,
    "defaultTopicQueueNums": QUEUES,
}


@attrs.frozen
class Acknowledged:
    """An acknowledged message and its place, as the answer named it; None: it names none."""

    body: str
    queue_id: int | None
    queue_offset: int
    log_offset: int | None

    @property
    def name(self) -> str:
        return self.body.partition(":")[0]


@attrs.define
class Figures:
    """Of all rounds so far."""

    seed: int
    rounds: int = 0
    killed_while_starting: int = 0
    acknowledged: int = 0
    stored: int = 0
    stored_unanswered: int = 0
    refused: int = 0
    """Told to come later: code 2, on a machine with much else to do."""
    lost: int = 0
    duplicates: int = 0
    checked_to: int = 0
    """Log offset up to which the log has been compared."""
    queue_ends: list[int] = attrs.field(factory=lambda: [0] * QUEUES)


class CrashLoopFailed(AssertionError):
    """A promise was broken; the directory is left as it is."""


class Sender(threading.Thread):
    """Some requests in flight on one connection, until it breaks. Answers that were under way when
    the broker died still count.
    """

    def __init__(self, address: str, name: str, depth: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.address, self.label, self.depth = address, name, depth
        self.choose = random.Random(seed)
        self.sent = 0
        self.acknowledged: list[Acknowledged] = []
        self.waiting: dict[int, str] = {}
        self.refused: dict[str, str] = {}
        """Name of a message -> why the broker, too busy, did not take it."""

    def run(self) -> None:
        try:
            with BlockingConnection(self.address) as connection:
                try:
                    while True:
                        while len(self.waiting) < self.depth:
                            self._send(connection)
                        self._receive(connection, next(iter(self.waiting)), 10)
                finally:  # answers that came out of order before the end
                    for opaque in list(self.waiting):
                        try:
                            self._receive(connection, opaque, 0.01)
                        except (RemotingError, KeyError, OSError):
                            continue
        except (RemotingError, OSError):
            return

    def _send(self, connection: BlockingConnection) -> None:
        body = body_of(f"{self.label}.{self.sent}", self.choose.randrange(1500))
        queue_id = self.choose.randrange(QUEUES)
        properties = f"UNIQ_KEY\x01{self.label}.{self.sent}\x02" + (
            "WAIT\x01false\x02" if self.choose.random() < 0.05 else ""
        )
        self.sent += 1
        header = SendMessageHeader(
            "P", TOPIC, "TBW102", QUEUES, queue_id, 0, int(time.time() * 1000), 0, properties
        )
        self.waiting[connection.send(request(Code.SEND_MESSAGE_V2, header, body.encode()))] = body

    def _receive(self, connection: BlockingConnection, opaque: int, seconds: float) -> None:
        answer = connection.receive(opaque, timeout=seconds)
        body = self.waiting.pop(opaque)
        if answer.code != 0:
            self.refused[body.partition(":")[0]] = f"{answer.code} {answer.remark}"
            return
        header = answer.header(SendMessageResponseHeader)
        self.acknowledged.append(
            Acknowledged(
                body, header.queue_id, header.queue_offset, int(header.message_id[-16:], 16)
            )
        )


def body_of(name: str, size: int) -> str:
    """Return a text that contains its own name and length, and a checksum of its content."""
    filler = base64.b64encode(random.Random(name).randbytes(size)).decode()[:size]
    return f"{name}:{hashlib.sha256(filler.encode()).hexdigest()[:16]}:{filler}"


def is_whole(body: str) -> bool:
    name, digest, filler = body.split(":", 2)
    return bool(name) and hashlib.sha256(filler.encode()).hexdigest()[:16] == digest


@attrs.define
class CrashLoop:
    """``run`` does one round; ``finish`` stops the broker in order and has the whole store
    verified.
    """

    folder: Path
    seed: int
    command: tuple[str, ...] = (sys.executable, "-m", "triomq.broker")
    """How the broker is started; tests of this loop start one with a broken rule."""
    senders: Sequence[type[Sender]] = (Sender,)
    """They take turns."""
    load_seconds: tuple[float, float] = (0.1, 0.8)
    tell: Callable[[str], None] = lambda text: None
    pops: bool = True
    """Whether a consumer pops the messages."""
    popped: PopLedger = attrs.field(init=False)
    figures: Figures = attrs.field(init=False)
    names: set[str] = attrs.field(factory=set, init=False)
    """Of every message in the log up to ``checked_to``."""
    pending: list[Acknowledged] = attrs.field(factory=list, init=False)
    """Acknowledged in the last round, not compared yet."""
    refused: list[str] = attrs.field(factory=list, init=False)
    """Names of the messages that were refused in the last round."""
    attempted: dict[str, int] = attrs.field(factory=dict, init=False)
    """Sender of the last round -> messages it has sent."""

    def __attrs_post_init__(self) -> None:
        self.figures = Figures(self.seed)
        self.popped = PopLedger(self.folder / "popped.txt")
        if self._state.exists():
            saved = json.loads(self._state.read_text())
            self.figures = Figures(**saved["figures"])
            if self.figures.seed != self.seed:
                raise ValueError(
                    f"{self.folder} belongs to seed {self.figures.seed}; take that one, or another"
                    " directory"
                )
            self.pending = [Acknowledged(*fields) for fields in saved["pending"]]
            self.attempted = saved["attempted"]
            self.refused = saved["refused"]
            self.names = {
                name_of(record)
                for record in scan_log(self._log, SEGMENT_BYTES)[0]
                if record.log_offset < self.figures.checked_to and record.topic == TOPIC
            }

    @property
    def _state(self) -> Path:
        return self.folder / "crash-loop.json"

    @property
    def _log(self) -> Path:
        return self.folder / "store" / "commitlog"

    def _save(self) -> None:
        state = {
            "figures": attrs.asdict(self.figures),
            "pending": [attrs.astuple(one) for one in self.pending],
            "attempted": self.attempted,
            "refused": self.refused,
        }
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        os.replace(fresh, self._state)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        conf = processes.write_broker_conf(
            self.folder, "broker-a", NOBODY, port, grpcServerPort=port + GRPC_PORT, **SETTINGS
        )
        with (self.folder / "broker-a.log").open("ab") as output:
            return subprocess.Popen(
                [*self.command, "-c", str(conf)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _serve(self) -> tuple[subprocess.Popen[bytes], str]:
        """A broker that answers, and its address."""
        while True:
            port = processes.free_port(span=GRPC_PORT + 1)
            process = self._start(port)
            try:
                for each in (port, port + GRPC_PORT):
                    processes.wait_listening(each, process, self.folder / "broker-a.log")
            except AssertionError:
                kill(process)
                # Another process of this machine may have taken the port.
                if process.returncode != ExitCode.PORT_IN_USE:
                    raise
            else:
                return process, f"127.0.0.1:{port}"

    def run(self) -> None:
        """One round: perhaps some kills while the broker starts; start, compare, load, kill. Raises
        CrashLoopFailed.
        """
        number = self.figures.rounds
        choose = random.Random(f"{self.seed}/{number}")
        while choose.random() < 0.15:  # recovery itself is killed
            process = self._start(processes.free_port(span=GRPC_PORT + 1))
            time.sleep(choose.uniform(0.2, 1.0))
            kill(process)
            self.figures.killed_while_starting += 1
        process, address = self._serve()
        try:
            self.compare(address)
            senders = [
                self.senders[index % len(self.senders)](
                    address, f"{number}-{index}", choose.choice((1, 8, 32)), choose.getrandbits(32)
                )
                for index in range(SENDERS)
            ]
            self.popped.begin_round()
            popper = Popper(address, TOPIC, self.popped, 0.7, number)
            for thread in (*senders, *((popper,) if self.pops else ())):
                thread.start()
            time.sleep(choose.uniform(*self.load_seconds))
        finally:
            kill(process)
        for thread in (*senders, *((popper,) if self.pops else ())):
            thread.join(timeout=30)
            assert not thread.is_alive()
        self._check_pops()
        self.pending = [one for sender in senders for one in sender.acknowledged]
        self.attempted = {sender.label: sender.sent for sender in senders}
        self.figures.rounds += 1
        self.figures.acknowledged += len(self.pending)
        refused = {name: why for sender in senders for name, why in sender.refused.items()}
        self.refused = sorted(refused)
        self.figures.refused += len(refused)
        self._save()
        other = [
            why for why in refused.values() if not why.startswith(f"{ResponseCode.SYSTEM_BUSY:d} ")
        ]
        if other:
            raise CrashLoopFailed(f"round {number}: the broker refused messages: {other[0]}")

    def _check_pops(self) -> None:
        self.popped.save()
        if self.popped.wrong:
            raise CrashLoopFailed(
                f"round {self.figures.rounds}: {len(self.popped.wrong)} faults of POP:"
                f" {self.popped.wrong[:3]}"
            )

    def _pop_the_rest(self, address: str) -> None:
        """Take and acknowledge all that is left; everything that is stored must have come."""
        self.popped.begin_round()
        popper = Popper(address, TOPIC, self.popped, 1.0, self.figures.rounds)
        popper.run()
        self._check_pops()
        missing = self.names - self.popped.finished - self.popped.unclear
        if missing:
            raise CrashLoopFailed(
                f"{len(missing)} messages never came, or were taken and did not come again:"
                f" {sorted(missing)[:3]}"
            )

    def compare(self, address: str) -> None:
        """What the recovered broker has, with what it had acknowledged before it died."""
        records, end = scan_log(self._log, SEGMENT_BYTES, self.figures.checked_to)
        records = [record for record in records if record.topic == TOPIC]
        by_name = {name_of(record): record for record in records}
        lost = [one for one in self.pending if not same(by_name.get(one.name), one)]
        self.figures.lost += len(lost)
        doubles = []
        for record in records:
            name = name_of(record)
            if name in self.names:
                doubles.append(name)
            self.names.add(name)
            if name in self.refused:
                raise CrashLoopFailed(
                    f"round {self.figures.rounds}: {name} was refused, and is stored at"
                    f" {record.log_offset}"
                )
            sender, _, number = name.rpartition(".")
            if int(number) >= self.attempted.get(sender, 0):
                raise CrashLoopFailed(
                    f"round {self.figures.rounds}: {name} was never sent, and is stored at"
                    f" {record.log_offset}"
                )
            if not is_whole(record.body.decode()):
                raise CrashLoopFailed(
                    f"round {self.figures.rounds}: {name} at {record.log_offset} is not as it was"
                    " sent"
                )
        self.figures.duplicates += len(doubles)
        if lost or doubles:
            self._save()
            raise CrashLoopFailed(
                f"round {self.figures.rounds}: {len(lost)} acknowledged messages lost {lost[:3]},"
                f" {len(doubles)} duplicates {doubles[:3]}"
            )
        self._compare_queues(address, records)
        self.figures.stored += len(records)
        self.figures.stored_unanswered += len(records) - len(self.pending)
        self.figures.checked_to = end
        self.pending = []
        self.attempted = {}
        self.refused = []
        self._save()

    def _compare_queues(self, address: str, records: list[Record]) -> None:
        with BlockingConnection(address) as connection:
            for queue_id in range(QUEUES):
                expected = [record for record in records if record.queue_id == queue_id]
                first = self.figures.queue_ends[queue_id]
                numbers = [record.queue_offset for record in expected]
                if numbers != list(range(first, first + len(expected))):
                    raise CrashLoopFailed(
                        f"round {self.figures.rounds}: the offsets of queue {queue_id} have gaps:"
                        f" {numbers[:20]} from {first} on"
                    )
                found = pull_from(connection, queue_id, first)
                if found != [record.body for record in expected]:
                    raise CrashLoopFailed(
                        f"round {self.figures.rounds}: queue {queue_id} gives {len(found)} messages"
                        f" from {first} on, the log has {len(expected)}, or others"
                    )
                self.figures.queue_ends[queue_id] = first + len(expected)

    def finish(self) -> Figures:
        """Compare the last round, stop the broker in order, and check everything with ``mqstore
        verify``.
        """
        process, address = self._serve()
        try:
            self.compare(address)
            if self.pops:
                self._pop_the_rest(address)
            process.send_signal(signal.SIGTERM)
            if process.wait(timeout=60) != 0:
                raise CrashLoopFailed(f"the broker ended with {process.returncode}")
        finally:
            kill(process)
        done = subprocess.run(
            [sys.executable, "-m", "triomq.broker.inspect", "verify", str(self.folder / "store")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CrashLoopFailed(
                "mqstore verify ends with"
                f" {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return self.figures


def pull_from(connection: BlockingConnection, queue_id: int, offset: int) -> list[bytes]:
    """Return every message of a queue from an offset on; a queue that does not exist has none."""
    bodies: list[bytes] = []
    while True:
        header = PullMessageHeader("G", TOPIC, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*")
        answer = connection.invoke(request(Code.PULL_MESSAGE, header), timeout=10)
        if answer.code != 0:
            if answer.code in (17, 19):  # no such topic yet; nothing behind this offset
                return bodies
            raise CrashLoopFailed(
                f"queue {queue_id} cannot be pulled at {offset}: {answer.code} {answer.remark}"
            )
        bodies += [message.body for message in decode_records(bytes(answer.body))]
        offset = answer.header(PullMessageResponseHeader).next_begin_offset


def same(record: Record | None, one: Acknowledged) -> bool:
    return record is not None and all(
        named in (None, found)
        for named, found in (
            (one.body, record.body.decode()),
            (one.queue_id, record.queue_id),
            (one.queue_offset, record.queue_offset),
            (one.log_offset, record.log_offset),
        )
    )


def name_of(record: Record) -> str:
    return record.body.partition(b":")[0].decode()


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
