"""Requests and replies in a simulated history: producers that ask, a group that answers most of
what it gets, and what was promised.

A reply names the request that it answers, so a reply of another request is seen. When all is well
again each requester asks some more, and must get an answer to each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf

import attrs
import trio
from simulated_cluster import SimulatedCluster

from triomq.client import (
    BrokerError,
    ConsumeFrom,
    NoNameServer,
    Producer,
    PushConsumer,
    ReceivedMessage,
    ReplyNotDelivered,
    ReplyTimeout,
    RequestTimeout,
    RouteNotFound,
    SendError,
)
from triomq.client.core.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.message_properties import CORRELATION_ID

REQUEST_TOPIC, GROUP = "Q", "A"
TIMEOUTS = (0.3, 1.0, 3.0)
PATIENT_SECONDS = 30.0
"""Timeout of a request that must be answered: members of the group may still share their queues."""
PATIENT_REQUESTS = 4
SENDS_MAX = 40
"""Tries to send such a request: routes take a while to be known again."""
LATE_SECONDS = 0.01
"""How far a request may pass its timeout; no program is busy in a simulation."""
PAUSE_SECONDS_MAX = 30.0


@attrs.define(eq=False)
class Asked:
    """A request that left its program."""

    key: str
    machine: str
    seconds: float
    begun: float
    ended: float = inf
    reply: str | None = None
    """Its body."""
    correlation_id: str = ""
    """Of the reply."""
    timed_out: bool = False


@attrs.define(eq=False)
class RequestTraffic:
    """``sending``: whether the requesters go on. ``client``: settings for a client of this name."""

    cluster: SimulatedCluster
    seed: int
    retries: int
    sending: Callable[[], bool]
    client: Callable[[str], ClientSettings]
    asked: dict[str, Asked] = attrs.field(factory=dict)
    correlation_ids: dict[str, str] = attrs.field(factory=dict)
    """Key -> the id of the request, as the group got it."""
    replied: list[tuple[str, float]] = attrs.field(factory=list)
    """Key of a request, and when its replier was told that the requester has the reply."""
    complaints: list[str] = attrs.field(factory=list)
    members: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    senders: int = 0

    @property
    def answered(self) -> int:
        return sum(one.reply is not None for one in self.asked.values())

    # Requesters

    async def ask(self, name: str) -> None:
        """A requester: some requests at a time, and in the end those that must be answered."""
        choose = random.Random(f"{self.seed} {name} requests")
        self.senders += 1
        number, done = 0, False
        while not done:
            settings = ProducerSettings(
                retries=self.retries, client=self.client(f"{name}-requests")
            )
            try:
                async with Producer(
                    self.cluster.namesrv_address, group="PQ", settings=settings
                ) as producer:
                    mine: list[Asked] = []
                    while self.sending():
                        async with trio.open_nursery() as nursery:
                            for _ in range(choose.choice((1, 1, 3))):
                                number += 1
                                one = self._new(name, f"q{number}", choose.choice(TIMEOUTS))
                                mine.append(one)
                                nursery.start_soon(self._ask, producer, one)
                        await trio.sleep(choose.choice((0.3, 1.0, 2.0)))
                    mine += await self._ask_in_peace(producer, name)
                    self._compare(producer, name, mine)
                    done = True
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    def _new(self, machine: str, number: str, seconds: float) -> Asked:
        key = f"{machine}.{number}"
        one = self.asked[key] = Asked(key, machine, seconds, trio.current_time())
        return one

    async def _ask(self, producer: Producer, one: Asked) -> None:
        how = "ended with the history"
        try:
            reply = await producer.request(
                REQUEST_TOPIC, f"{one.key}:".encode(), timeout=one.seconds
            )
            one.reply, one.correlation_id, how = (
                reply.body.decode(),
                reply.correlation_id,
                "answered",
            )
        except ReplyTimeout:
            one.timed_out, how = True, "no reply in time"
        except (SendError, BrokerError, RouteNotFound, NoNameServer) as error:
            how = type(error).__name__
        finally:
            one.ended = trio.current_time()
            self.cluster.simulation.trace.note(f"{one.key}: {how}")

    async def _ask_in_peace(self, producer: Producer, name: str) -> list[Asked]:
        """Ask several at a time. A request may fail to leave, but none may stay without reply."""
        mine: list[Asked] = []

        async def ask(number: int) -> None:
            for again in range(SENDS_MAX):
                one = self._new(name, f"last{number}.{again}", PATIENT_SECONDS)
                mine.append(one)
                await self._ask(producer, one)
                if one.reply is not None:
                    return
                if one.timed_out:
                    break
                await trio.sleep(1.0)
            self.complaints.append(f"request {one.key} got no reply when all was well")

        async with trio.open_nursery() as nursery:
            for number in range(PATIENT_REQUESTS):
                nursery.start_soon(ask, number)
        return mine

    def _compare(self, producer: Producer, name: str, mine: list[Asked]) -> None:
        """Compare the figures of a producer, all of whose requests have ended."""
        found = producer.request_statistics()
        answered = sum(one.reply is not None for one in mine)
        timed_out = sum(one.timed_out for one in mine)
        if (found.waiting, found.answered, found.timed_out) != (0, answered, timed_out):
            self.complaints.append(
                f"{name} says {found}, and {answered} of its requests were answered, {timed_out}"
                " timed out, and none waits"
            )

    # Repliers

    async def answer(self, name: str) -> None:
        """A member of the group. Some of its replies are late, or come twice, or never."""
        choose = random.Random(f"{self.seed} {name} replies")

        async def handle(message: ReceivedMessage) -> None:
            key = message.body.decode().partition(":")[0]
            self.correlation_ids[key] = message.properties[CORRELATION_ID]
            chance = choose.random() if ".q" in key else 0.5
            if chance < 0.1:
                return
            if chance < 0.25:
                await trio.sleep(choose.uniform(0.1, 1.0))
            for _ in range(2 if chance > 0.85 else 1):
                await self._reply(name, key, message)

        while True:
            consumer = PushConsumer(
                self.cluster.namesrv_address,
                group=GROUP,
                subscriptions=REQUEST_TOPIC,
                handler=handle,
                concurrency=4,
                consume_from=ConsumeFrom.FIRST,
                settings=ConsumerSettings(client=self.client(f"{name}-replies")),
            )
            try:
                with trio.CancelScope() as scope:
                    self.members[name] = scope
                    async with consumer:
                        await trio.sleep_forever()
            except TrioMQError:
                await trio.sleep(0.5)

    async def _reply(self, name: str, key: str, message: ReceivedMessage) -> None:
        try:
            await message.reply(f"{key}:from {name}".encode())
        except (ReplyNotDelivered, RequestTimeout, RouteNotFound) as error:
            self.cluster.simulation.trace.note(f"reply to {key}: {type(error).__name__}")
        else:
            self.replied.append((key, trio.current_time()))
            self.cluster.simulation.trace.note(f"reply to {key}: delivered")

    # What was promised

    def violations(self) -> Iterator[str]:
        """Broken promises, in words."""
        yield from self.complaints
        for one in self.asked.values():
            yield from self._violations(one)
        for key, time in self.replied:
            if self.asked[key].reply is None and self.asked[key].ended > time:
                yield f"the replier to {key} was told that its reply arrived, and it did not"

    def _violations(self, one: Asked) -> Iterator[str]:
        took = min(one.ended, trio.current_time()) - one.begun
        if took > one.seconds + LATE_SECONDS and not self._stood_still(one):
            yield f"request {one.key} had {one.seconds:g} s, and has taken {took:.3f} s"
        if one.reply is not None:
            if one.reply.partition(":")[0] != one.key:
                yield f"request {one.key} got the reply {one.reply}"
            if one.correlation_id != self.correlation_ids.get(one.key):
                yield f"the reply to {one.key} has the id of another request"

    def _stood_still(self, one: Asked) -> bool:
        """Return whether the requester's program may have stood still meanwhile."""
        return any(
            machine == one.machine and one.begun - PAUSE_SECONDS_MAX <= begun <= one.ended
            for machine, begun in self.cluster.pauses
        )
