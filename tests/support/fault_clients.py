"""The clients of a fault test, one process in a network namespace of its own: senders, and consumers of two groups, through everything that happens.

Everything is written to the history as it happens (``fault_history``). The end of their orders means: send no more, wait until both groups have seen all that
the brokers have, read every queue of both brokers, and end.
"""

from __future__ import annotations

import json
import logging
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import attrs
import fault_clock
import trio
from crash_loop import body_of, is_whole
from fault_history import TOPIC, Outcome

from triomq import Producer, ProducerSettings, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.config import ClientSettings, ConsumerSettings
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.errors import BrokerError, SendError, TrioMQError
from triomq.client.producer.receipt import SendReceipt, SendStatus
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pull import SUBSCRIPTION, PullMessageHeader, PullMessageResponseHeader
from triomq.remoting.protocol.record import decode_records

QUEUES = 4
SENDERS = 6
GROUPS = {"concurrent": 2, "ordered": 2}
"""Members of each."""
SECONDS_MAX = 120
BODY_BYTES_MAX = 1500
CLIENT = ClientSettings(request_timeout=2.0, route_timeout=2.0, route_interval=1.0, heartbeat_interval=2.0, shutdown_timeout=2.0)
CONSUMER = ConsumerSettings(
    suspend=2.0, pull_timeout=4.0, error_delay=0.3, rebalance_interval=2.0, offset_interval=0.5, offset_timeout=2.0, lock_interval=2.0, retry_delay=0.5, client=CLIENT
)
PRODUCER = ProducerSettings(send_timeout=2.0, retries=0, client=CLIENT)
OUTCOMES = {
    SendStatus.STORED: Outcome.ACKNOWLEDGED,
    SendStatus.SLAVE_NOT_AVAILABLE: Outcome.STORED,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Outcome.STORED,
    SendStatus.FLUSH_DISK_TIMEOUT: Outcome.DOUBTFUL,
}


@attrs.define(eq=False)
class Clients:
    """All of them."""

    namesrv: str
    brokers: dict[str, str]
    history: Path
    seed: int
    orders: Connection
    groups: dict[str, int]
    pause_seconds: float
    seen: dict[str, set[tuple[int, int]]] = attrs.field(factory=dict)
    _stopping: trio.Event = attrs.field(factory=trio.Event)
    _file: IO[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._file = self.history.open("a", buffering=1)
        self.seen = {group: set() for group in self.groups}

    def note(self, *event: object) -> None:
        self._file.write(json.dumps(event) + "\n")

    async def run(self) -> None:
        await self._create_topic()
        async with trio.open_nursery() as consuming:
            for group, members in self.groups.items():
                for _ in range(members):
                    consuming.start_soon(self._consume, group)
            async with trio.open_nursery() as sending:
                sending.start_soon(self._wait_for_orders)
                for number in range(SENDERS):
                    sending.start_soon(self._send, number)
            await self._drain()
            consuming.cancel_scope.cancel()

    async def _create_topic(self) -> None:
        with trio.fail_after(SECONDS_MAX):
            async with Admin(self.namesrv, timeout_seconds=2) as admin:
                while True:
                    try:
                        await admin.create_topic(TOPIC, queues=QUEUES)
                        if await admin.brokers():
                            return
                    except (TrioMQError, RemotingError) as error:
                        self.note("note", time.monotonic(), f"topic: {error}")
                    await trio.sleep(0.1)

    async def _wait_for_orders(self) -> None:
        await trio.to_thread.run_sync(self.orders.poll, None, abandon_on_cancel=True)
        self._stopping.set()

    async def _send(self, number: int) -> None:
        """One message after the other. What is not stored for sure is sent again; what may be, sometimes."""
        choose = random.Random(f"{self.seed}/{number}")
        async with Producer(self.namesrv, group="faults", settings=PRODUCER) as producer:
            count = 0
            while not self._stopping.is_set():
                name = f"{number}.{count}"
                count += 1
                body = body_of(name, choose.randrange(BODY_BYTES_MAX)).encode()
                queue = choose.randrange(QUEUES)
                for attempt in range(1_000):
                    outcome = await self._attempt(producer, name, attempt, body, queue)
                    if outcome is Outcome.ACKNOWLEDGED or self._stopping.is_set():
                        break
                    if outcome not in (Outcome.REFUSED, Outcome.UNSENT) and choose.random() < 0.4:
                        break
                    await trio.sleep(0.02)
                await trio.sleep(self.pause_seconds)

    async def _attempt(self, producer: Producer, name: str, attempt: int, body: bytes, queue: int) -> Outcome:
        self.note("begin", time.monotonic(), name, attempt)
        receipt: SendReceipt | None = None
        try:
            receipt = await producer.send(TOPIC, body, queue=queue)
            outcome = OUTCOMES[receipt.status]
        except SendError as error:
            outcome = Outcome.DOUBTFUL if error.maybe_stored else Outcome.REFUSED if isinstance(error.__cause__, BrokerError) else Outcome.UNSENT
        except BrokerError:
            outcome = Outcome.REFUSED
        except TrioMQError:  # no route
            outcome = Outcome.UNSENT
        place = (receipt.queue.queue_id, receipt.queue_offset, int(receipt.offset_message_id[-16:], 16)) if receipt else (-1, -1, -1)
        self.note("end", time.monotonic(), name, attempt, outcome, *place)
        return outcome

    async def _consume(self, group: str) -> None:
        async def handle(message: ReceivedMessage) -> None:
            place = (message.queue.queue_id, message.queue_offset)
            self.note("seen", time.monotonic(), group, *place, name_of(message.body))
            self.seen[group].add(place)
            await trio.lowlevel.checkpoint()

        while True:
            try:
                async with PushConsumer(
                    self.namesrv, group=group, subscriptions=TOPIC, handler=handle, ordered=group == "ordered", consume_from="first", settings=CONSUMER
                ):
                    await trio.sleep_forever()
            except TrioMQError as error:  # no name server at the start
                self.note("note", time.monotonic(), f"consumer: {error}")
                await trio.sleep(0.2)

    async def _drain(self) -> None:
        """Until everybody has everything, and then what everybody has. A time-out is for the checker to judge."""
        self.note("note", time.monotonic(), "no more sends")
        deadline = time.monotonic() + SECONDS_MAX / 2
        while True:
            try:
                lying = {broker: await trio.to_thread.run_sync(read_queues, address) for broker, address in self.brokers.items()}
                places = [{(queue, offset) for queue, offset, *_ in messages} for messages, _ in lying.values()]
                if all(each == places[0] for each in places) and all(places[0] <= seen for seen in self.seen.values()):
                    break
                reason = f"brokers have {[len(each) for each in places]}, groups {[len(seen) for seen in self.seen.values()]}"
            except (RemotingError, OSError) as error:
                lying, reason = {}, str(error)
            if time.monotonic() > deadline:
                self.note("note", time.monotonic(), f"waited in vain: {reason}")
                break
            await trio.sleep(0.1)
        for broker, (messages, bounds) in lying.items():
            for queue, ends in bounds.items():
                self.note("bounds", broker, queue, *ends)
            for queue, offset, log_offset, name in messages:
                self.note("read", broker, queue, offset, log_offset, name)
        self.note("note", time.monotonic(), "end")


def name_of(body: bytes) -> str:
    text = body.decode(errors="replace")
    name = text.partition(":")[0]
    return name if text.count(":") == 2 and is_whole(text) else f"?{name}"


def read_queues(address: str) -> tuple[list[tuple[int, int, int, str]], dict[int, tuple[int, int]]]:
    """Every message of the topic on a broker, as queue, queue offset, log offset, name; and first and end offset of its queues."""
    found: list[tuple[int, int, int, str]] = []
    bounds: dict[int, tuple[int, int]] = {}
    with BlockingConnection(address) as connection:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                header = PullMessageHeader("Reader", TOPIC, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*")
                answer = connection.invoke(request(Code.PULL_MESSAGE, header), timeout=5)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    break
                if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                    raise OSError(f"{address} answers a pull {answer.code} {answer.remark}")
                fields = answer.header(PullMessageResponseHeader)
                bounds[queue_id] = fields.min_offset, fields.max_offset
                if answer.code == ResponseCode.SUCCESS:
                    found += [(queue_id, one.queue_offset, one.log_offset, name_of(one.body)) for one in decode_records(bytes(answer.body))]
                if fields.next_begin_offset == offset:
                    break
                offset = fields.next_begin_offset
    return found, bounds


def read_into(address: str, target: Path) -> None:
    """Write what lies on a broker to a file, as soon as the broker answers and has indexed its log."""
    deadline = time.monotonic() + SECONDS_MAX
    before: list[tuple[int, int, int, str]] | None = None
    while time.monotonic() < deadline:
        try:
            found, _ = read_queues(address)
        except (RemotingError, OSError):
            fault_clock.sleep(0.05)
            continue
        if found == before:
            break
        before = found
        fault_clock.sleep(0.2)
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(before))
    fresh.replace(target)


def run_clients(namesrv: str, brokers: dict[str, str], history: Path, seed: int, orders: Connection, groups: dict[str, int], pause_seconds: float) -> None:
    """``brokers`` are name -> address of those that are read at the end, ``groups`` name -> members."""
    logging.basicConfig(level=logging.WARNING)
    trio.run(Clients(namesrv, brokers, history, seed, orders, groups, pause_seconds).run)
