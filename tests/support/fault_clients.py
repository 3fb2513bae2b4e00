"""The clients of a fault test, a process in a network namespace of its own: senders, and consumers
of two groups, which go on through all faults.

All that happens is written to the history at once (``fault_history``). When the orders end, the
clients send no more, wait until both groups have seen all messages of the brokers, read every queue
of both brokers, and end.
"""

from __future__ import annotations

import json
import logging
import random
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import attrs
import fault_clock
import fault_delays
import trio
from crash_loop import body_of
from fault_delays import DelayedClients, name_of
from fault_history import DELAYED_TOPIC, TOPIC, Outcome
from fault_sends import CONSUMER, producing, send

from triomq import Producer, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.core.errors import TrioMQError
from triomq.client.receiving.received import ReceivedMessage
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.record_reader import decode_records

QUEUES = 4
SENDERS = 6
GROUPS = {"concurrent": 2, "ordered": 2}
"""Members of each."""
SECONDS_MAX = 120
DRAIN_SECONDS = 60.0
BODY_BYTES_MAX = 1500
CONSUMERS_ENDED = "all consumers have ended"
GIVEN_BACK_SECONDS = 20.0
"""What was given back has come again by then, or is lost."""


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
    delays: bool = False
    """Whether there are delayed messages."""
    drain_seconds: float = DRAIN_SECONDS
    """Limit of the time until all consumers have all messages, after the last send."""
    seen: dict[str, set[tuple[int, int, str]]] = attrs.field(factory=dict)
    delayed: DelayedClients = attrs.field(init=False)
    _members: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _may_consume: trio.Event = attrs.field(factory=trio.Event)
    _stopping: trio.Event = attrs.field(factory=trio.Event)
    _file: IO[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._file = self.history.open("a", buffering=1)
        self._may_consume.set()
        self.seen = {group: set() for group in self.groups}
        self.delayed = DelayedClients(self.namesrv, self.seed, self.note, self._stopping)

    def note(self, *event: object) -> None:
        self._file.write(json.dumps(event) + "\n")

    async def run(self) -> None:
        await self._create_topic()
        async with trio.open_nursery() as consuming:
            consuming.start_soon(self._consume_all)
            async with trio.open_nursery() as sending:
                sending.start_soon(self._wait_for_orders)
                for number in range(SENDERS):
                    sending.start_soon(self._send, number)
                for number in range(fault_delays.SENDERS if self.delays else 0):
                    sending.start_soon(self.delayed.send, number)
            await self._drain()
            consuming.cancel_scope.cancel()

    async def _consume_all(self) -> None:
        """Run the members of all groups; when these are cancelled, run new ones as soon as they
        may.
        """
        while True:
            await self._may_consume.wait()
            async with trio.open_nursery() as members:
                self._members = members.cancel_scope
                for group, count in self.groups.items():
                    for _ in range(count):
                        members.start_soon(self._consume, group)
                for number in range(fault_delays.MEMBERS if self.delays and self.groups else 0):
                    members.start_soon(self.delayed.consume, number)
                await trio.sleep_forever()
            self.note("note", time.monotonic(), CONSUMERS_ENDED)

    async def _create_topic(self) -> None:
        with trio.fail_after(SECONDS_MAX):
            async with Admin(self.namesrv, timeout_seconds=2) as admin:
                while True:
                    try:
                        for topic in (TOPIC, DELAYED_TOPIC) if self.delays else (TOPIC,):
                            await admin.create_topic(topic, queues=QUEUES)
                        if await admin.brokers():
                            return
                    except (TrioMQError, RemotingError) as error:
                        self.note("note", time.monotonic(), f"topic: {error}")
                    await trio.sleep(0.1)

    async def _wait_for_orders(self) -> None:
        """An order names the brokers that are left, and lets consumers end or begin again. The end
        of the orders ends the senders.
        """
        while True:
            await trio.to_thread.run_sync(self.orders.poll, None, abandon_on_cancel=True)
            try:
                left, consume = self.orders.recv()
            except EOFError:
                break
            self.note(
                "note",
                time.monotonic(),
                f"brokers left: {left}, consumers {'begin' if consume else 'end'}",
            )
            self.brokers = {name: address for name, address in self.brokers.items() if name in left}
            self.delayed.given_back.clear()  # the lost log may have had it
            if consume:
                self._may_consume.set()
            else:
                self._may_consume = trio.Event()
                self._members.cancel()
        self._stopping.set()

    async def _send(self, number: int) -> None:
        """One message after the other. What is not stored for sure is sent again; what may be,
        sometimes.
        """
        choose = random.Random(f"{self.seed}/{number}")
        async with producing(self.namesrv) as producer:
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

    async def _attempt(
        self, producer: Producer, name: str, attempt: int, body: bytes, queue: int
    ) -> Outcome:
        self.note("begin", time.monotonic(), name, attempt)
        outcome, receipt = await send(producer, TOPIC, body, queue=queue)
        place = (
            (receipt.queue.queue_id, receipt.queue_offset, int(receipt.offset_message_id[-16:], 16))
            if receipt
            else (-1, -1, -1)
        )
        self.note("end", time.monotonic(), name, attempt, outcome, *place)
        return outcome

    async def _consume(self, group: str) -> None:
        async def handle(message: ReceivedMessage) -> None:
            place = (message.queue.queue_id, message.queue_offset)
            self.note("seen", time.monotonic(), group, *place, name_of(message.body))
            self.seen[group].add((*place, name_of(message.body)))
            await trio.lowlevel.checkpoint()

        while True:
            try:
                async with PushConsumer(
                    self.namesrv,
                    group=group,
                    subscriptions=TOPIC,
                    handler=handle,
                    ordered=group == "ordered",
                    consume_from="first",
                    settings=CONSUMER,
                ):
                    await trio.sleep_forever()
            except TrioMQError as error:  # no name server at the start
                self.note("note", time.monotonic(), f"consumer: {error}")
                await trio.sleep(0.2)

    async def _drain(self) -> None:
        """Wait until both groups have seen all messages, and note what the brokers have. The
        checker judges a time-out.
        """
        self.note("note", time.monotonic(), "no more sends")
        begun = time.monotonic()
        deadline = begun + self.drain_seconds
        delivered: dict[str, list[str]] = {}
        while True:
            try:
                on_brokers = {
                    broker: await trio.to_thread.run_sync(read_queues, address)
                    for broker, address in self.brokers.items()
                }
                places = [
                    {(queue, offset, name) for queue, offset, _, name in messages}
                    for messages, _ in on_brokers.values()
                ]
                delivered = await self._read_delayed()
                late = max((self.delayed.missing(names) for names in delivered.values()), default=0)
                waiting = (
                    bool(self.delayed.given_back) and time.monotonic() < begun + GIVEN_BACK_SECONDS
                )
                if (
                    all(each == places[0] for each in places)
                    and all(places[0] <= seen for seen in self.seen.values())
                    and not late
                    and not waiting
                ):
                    break
                reason = (
                    f"brokers have {[len(each) for each in places]}, groups"
                    f" {[len(seen) for seen in self.seen.values()]}; {late} delayed messages are"
                    " missing"
                )
            except (RemotingError, OSError) as error:
                on_brokers, delivered, reason = {}, {}, str(error)
            if time.monotonic() > deadline:
                self.note("note", time.monotonic(), f"the wait ended without success: {reason}")
                break
            await trio.sleep(0.1)
        for broker, (messages, bounds) in on_brokers.items():
            for queue, ends in bounds.items():
                self.note("bounds", broker, queue, *ends)
            for queue, offset, log_offset, name in messages:
                self.note("read", broker, queue, offset, log_offset, name)
        for broker, names in delivered.items():
            for name in names:
                self.note("delivered", broker, name)
        self.note("note", time.monotonic(), "end")

    async def _read_delayed(self) -> dict[str, list[str]]:
        """Return the names of the delayed messages in their topic, by broker."""
        if not self.delays:
            return {}
        read = partial(read_queues, topic=DELAYED_TOPIC)
        return {
            broker: [name for *_, name in (await trio.to_thread.run_sync(read, address))[0]]
            for broker, address in self.brokers.items()
        }


def read_queues(
    address: str, topic: str = TOPIC
) -> tuple[list[tuple[int, int, int, str]], dict[int, tuple[int, int]]]:
    """Every message of a topic on a broker, as queue, queue offset, log offset, name; and first and
    end offset of its queues.
    """
    found: list[tuple[int, int, int, str]] = []
    bounds: dict[int, tuple[int, int]] = {}
    with BlockingConnection(address) as connection:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                header = PullMessageHeader(
                    "Reader", topic, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*"
                )
                answer = connection.invoke(request(Code.PULL_MESSAGE, header), timeout=15)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    break
                if answer.code not in (
                    ResponseCode.SUCCESS,
                    ResponseCode.PULL_NOT_FOUND,
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                ):
                    raise OSError(f"{address} answers a pull {answer.code} {answer.remark}")
                fields = answer.header(PullMessageResponseHeader)
                bounds[queue_id] = fields.min_offset, fields.max_offset
                if answer.code == ResponseCode.SUCCESS:
                    found += [
                        (queue_id, one.queue_offset, one.log_offset, name_of(one.body))
                        for one in decode_records(bytes(answer.body))
                    ]
                if fields.next_begin_offset == offset:
                    break
                offset = fields.next_begin_offset
    return found, bounds


def read_into(address: str, topic: str, target: Path) -> None:
    """Write the messages of a topic of a broker to a file, as soon as the broker answers and has
    indexed its log.
    """
    deadline = time.monotonic() + SECONDS_MAX
    before: list[tuple[int, int, int, str]] | None = None
    while time.monotonic() < deadline:
        try:
            found, _ = read_queues(address, topic)
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


def run_clients(
    namesrv: str,
    brokers: dict[str, str],
    history: Path,
    seed: int,
    orders: Connection,
    groups: dict[str, int],
    pause_seconds: float,
    delays: bool,
    drain_seconds: float,
) -> None:
    """``brokers`` are name -> address of those that are read at the end, ``groups`` name ->
    members.
    """
    logging.basicConfig(level=logging.WARNING)
    trio.run(
        Clients(
            namesrv, brokers, history, seed, orders, groups, pause_seconds, delays, drain_seconds
        ).run
    )
