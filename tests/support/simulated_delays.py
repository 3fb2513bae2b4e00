"""Delayed messages in a simulated history, and a group that gives some of them back: the producer,
the consumer, and what was promised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import attrs
import trio
from delayed_history import Arrival, Delayed, DelayHistory
from simulated_cluster import SimulatedCluster

from triomq.client import (
    BrokerError,
    ConsumeFrom,
    NoNameServer,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RouteNotFound,
    SendError,
    SendStatus,
)
from triomq.client.core.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError

DELAYED_TOPIC, GROUP = "D", "R"
DELAYS = {1: 1.0, 2: 5.0, 3: 10.0}
"""Level -> seconds; the brokers' default."""
GIVEN_BACK_MAX = 3
UNSAFE_SECONDS = 15.0
"""Nothing says when the disk has a message that was given back: a loss of power this long
afterwards may take it.
"""


@attrs.define(eq=False)
class DelayedTraffic:
    """``sending``: whether the sender goes on. ``client``: settings for a client of this name."""

    cluster: SimulatedCluster
    seed: int
    retries: int
    sending: Callable[[], bool]
    client: Callable[[str], ClientSettings]
    sent: list[Delayed] = attrs.field(factory=list)
    arrivals: list[Arrival] = attrs.field(factory=list)
    member: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    senders: int = 0

    @property
    def acknowledged(self) -> int:
        return sum(one.acknowledged for one in self.sent)

    @property
    def given_back(self) -> int:
        return sum(one.again for one in self.sent)

    async def sell(self, name: str) -> None:
        """The sender: one message after the other, each of a random level."""
        choose = random.Random(f"{self.seed} {name} delayed")
        settings = ProducerSettings(retries=self.retries, client=self.client(f"{name}-delayed"))
        self.senders += 1
        number = 0
        while self.sending():
            try:
                async with Producer(
                    self.cluster.namesrv_address, group="PD", settings=settings
                ) as producer:
                    while self.sending():
                        number += 1
                        await self._send(
                            producer, f"{name}.d{number}", choose.choice((1, 1, 2, 2, 3))
                        )
                        await trio.sleep(choose.choice((0.1, 0.5, 1.0)))
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    async def _send(self, producer: Producer, key: str, level: int) -> None:
        begun, wall, acknowledged, stored = (
            trio.current_time(),
            self.cluster.least_ahead(),
            False,
            True,
        )
        try:
            receipt = await producer.send(DELAYED_TOPIC, f"{key}:".encode(), delay_level=level)
            acknowledged = receipt.status is SendStatus.STORED
        except SendError as error:
            stored = error.maybe_stored
        except (BrokerError, RouteNotFound, NoNameServer):
            stored = False
        finally:
            if stored:
                wall = min(wall, self.cluster.least_ahead())
                self.sent.append(Delayed(key, acknowledged, begun, DELAYS[level], wall))
        self.cluster.simulation.trace.note(
            f"{key}: level {level},"
            f" {'acknowledged' if acknowledged else 'unknown' if stored else 'refused'}"
        )

    async def read(self, name: str) -> None:
        """A member of the group, which ends when ``member`` is cancelled, and begins again."""
        choose = random.Random(f"{self.seed} {name} delayed")

        async def handle(message: ReceivedMessage) -> None:
            key = message.body.decode().partition(":")[0]
            again = message.queue.topic != DELAYED_TOPIC
            content = message.reconsume_times >= GIVEN_BACK_MAX or choose.random() < 0.7
            self.arrivals.append(Arrival(key, trio.current_time(), content, again))
            self.cluster.simulation.trace.note(
                f"{name} got"
                f" {key}{' again' if again else ''}{'' if content else ', and gives it back'}"
            )
            if not content:
                level = choose.choice((1, 2))
                self.sent.append(
                    Delayed(
                        key,
                        False,
                        trio.current_time(),
                        DELAYS[level],
                        self.cluster.least_ahead(),
                        again=True,
                    )
                )
                await message.retry(level)

        while True:
            settings = ConsumerSettings(client=self.client(f"{name}-delayed"))
            consumer = PushConsumer(
                self.cluster.namesrv_address,
                group=GROUP,
                subscriptions=DELAYED_TOPIC,
                handler=handle,
                concurrency=4,
                consume_from=ConsumeFrom.FIRST,
                settings=settings,
            )
            try:
                with trio.CancelScope() as self.member:
                    async with consumer:
                        await trio.sleep_forever()
            except TrioMQError:
                await trio.sleep(0.5)

    def history(self, stored: Collection[str]) -> DelayHistory:
        """For the checker; ``stored`` as in ``DelayHistory``."""
        return DelayHistory(self.sent, stored, self.arrivals, self.cluster.starts, self._excused())

    def _excused(self) -> frozenset[str]:
        """Keys whose giving back a loss may have taken: brokers answer it before it is on a disk,
        or at a slave.
        """
        cluster, given_back = self.cluster, [one for one in self.sent if one.again]
        return frozenset(
            one.key
            for one in given_back
            if one.sent < cluster.promoted_at
            or any(one.sent <= loss <= one.sent + UNSAFE_SECONDS for loss in cluster.losses)
        )
