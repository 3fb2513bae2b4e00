"""Messages of POP in a simulated history: a producer, consumers that acknowledge most of what they
take, and what was promised.

A history with them has no clock that makes more than a small step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import attrs
import trio
from pop_peer import Popped, popped
from simulated_cluster import SimulatedCluster

from triomq.client import BrokerError, NoNameServer, Producer, RouteNotFound, SendError, SendStatus
from triomq.client.core.config import ClientSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pop import AckMessageHeader, PopMessageHeader

POP_TOPIC, GROUP = "POPPED", "G"
POSITIONS_SAVED_MS = 1_000
"""A setting of the brokers: histories are short."""
ACTING_SETTINGS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "syncBrokerMemberGroupPeriod": 200,
}
SLACK = 0.25
"""Clocks make small steps, and requests take their time."""
DURABLE_SECONDS = 3.0
"""An acknowledgement that was answered sooner was as durable as a message."""


@attrs.define(eq=False)
class Handling:
    """One message in the hands of a consumer."""

    asked: float
    hidden_to: float


@attrs.define(eq=False)
class PopTraffic:
    """``masters``: name of a broker -> address of its master now."""

    cluster: SimulatedCluster
    seed: int
    sending: Callable[[], bool]
    client: Callable[[str], ClientSettings]
    masters: Callable[[], Mapping[str, str]]
    sent: dict[str, bool] = attrs.field(factory=dict)
    """Key -> whether it was acknowledged to its producer."""
    first: dict[str, float] = attrs.field(factory=dict)
    """Key -> when it was first asked for."""
    last: dict[str, Handling] = attrs.field(factory=dict)
    finished: dict[str, float] = attrs.field(factory=dict)
    """Key -> when an acknowledgement was answered that must hold."""
    settled: set[str] = attrs.field(factory=set)
    """Keys of which somebody has sent an acknowledgement since they came last."""
    wrong: list[str] = attrs.field(factory=list)
    senders: int = 0

    async def sell(self, name: str) -> None:
        """The producer: each message has a key of its own, and is sent once."""
        choose = random.Random(f"{self.seed} {name} popped")
        settings = ProducerSettings(retries=0, client=self.client(f"{name}-popped"))
        self.senders += 1
        number = 0
        while self.sending():
            try:
                async with Producer(
                    self.cluster.namesrv_address, group="PQ", settings=settings
                ) as producer:
                    while self.sending():
                        number += 1
                        await self._send(producer, f"{name}.q{number}")
                        await trio.sleep(choose.choice((0.05, 0.2, 0.6)))
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    async def _send(self, producer: Producer, key: str) -> None:
        acknowledged, stored = False, True
        try:
            receipt = await producer.send(POP_TOPIC, f"{key}:".encode())
            acknowledged = receipt.status is SendStatus.STORED
        except SendError as error:
            stored = error.maybe_stored
        except (BrokerError, RouteNotFound, NoNameServer):
            stored = False
        finally:
            if stored:
                self.sent[key] = acknowledged

    async def consume(self, name: str) -> None:
        """A member: it acknowledges most messages, and at the end all."""
        choose = random.Random(f"{self.seed} {name} pops")
        while True:
            try:
                async with Connector(ConnectorConfig()) as connector:
                    while True:
                        broker, address = choose.choice(sorted(self.masters().items()))
                        await self._pop(connector, broker, address, choose)
                        if self.sending():  # so that some messages wait
                            await trio.sleep(choose.choice((0, 0, 0, 0.5, 2.0)))
            except RemotingError:
                await trio.sleep(0.2)

    async def _pop(
        self, connector: Connector, broker: str, address: str, choose: random.Random
    ) -> None:
        invisible_ms = choose.choice((1_500, 3_000, 6_000))
        header = PopMessageHeader(
            GROUP, POP_TOPIC, -1, choose.randint(1, 8), invisible_ms, 500, 0, 0
        )
        asked = trio.current_time()
        command = request(RequestCode.POP_MESSAGE, header)
        answer = await connector.invoke(address, command, timeout=5)
        if answer.code:
            await trio.sleep(0.2)
            return
        now = trio.current_time()
        taken = popped(answer, POP_TOPIC, broker)
        for each in taken:
            self._note(each, asked, now, invisible_ms)
        for each in taken:
            if self.sending() and choose.random() < 0.3:
                continue
            if choose.random() < 0.2:
                await trio.sleep(choose.uniform(0, invisible_ms / 1000))
            await self._acknowledge(connector, address, each, asked + invisible_ms / 1000)

    def _note(self, taken: Popped, asked: float, now: float, invisible_ms: int) -> None:
        key = _key(taken)
        self.cluster.simulation.trace.note(f"popped {key} {taken.handle.encode()}")
        before = self.last.get(key)
        if key in self.finished and self.finished[key] < asked:
            self.wrong.append(f"popped message {key} was acknowledged, and came again")
        if (
            before is not None
            and now < before.hidden_to - SLACK
            and not self._has_started(min(asked, before.asked), now)
        ):
            self.wrong.append(f"popped message {key} came while another consumer had it")
        if key not in self.sent:
            self.sent.setdefault(key, False)  # the producer has no answer yet
        self.settled.discard(key)
        self.first.setdefault(key, asked)
        self.last[key] = Handling(asked, asked + invisible_ms / 1000)

    async def _acknowledge(
        self, connector: Connector, address: str, taken: Popped, hidden_to: float
    ) -> None:
        handle, key = taken.handle, _key(taken)
        header = AckMessageHeader(
            GROUP, taken.topic, handle.queue_id, handle.encode(), handle.offset
        )
        begun, popped_at = trio.current_time(), self.last[key].asked
        if self.cluster.acting:
            # A check point of an earlier pop may be in the log of the other broker only.
            popped_at = self.first[key]
        self.settled.add(key)  # it may be stored, though no answer comes
        command = request(RequestCode.ACK_MESSAGE, header)
        answer = await connector.invoke(address, command, timeout=5)
        now = trio.current_time()
        if (
            answer.code == 0
            and now < hidden_to - SLACK
            and now - begun < DURABLE_SECONDS
            and not self._has_started(popped_at, now)
        ):
            self.finished.setdefault(key, now)
            self.cluster.simulation.trace.note(f"acknowledged {key}")

    def _has_started(self, since: float, until: float) -> bool:
        """Return whether a broker has started in a time: what no fsync had reached may be gone, a
        pop whose answer was on its way, too.
        """
        cluster = self.cluster
        times = [*(start.time for start in cluster.starts), *cluster.losses, *cluster.ends]
        return any(since <= time <= until for time in times)

    def violations(self) -> Iterator[str]:
        """Broken promises, in words."""
        yield from self.wrong
        for key, acknowledged in self.sent.items():
            if acknowledged and key not in self.settled:
                what = "came and is lost" if key in self.last else "never came"
                yield f"popped message {key} was acknowledged to its producer, and {what}"


def _key(taken: Popped) -> str:
    return taken.body.decode().partition(":")[0]
