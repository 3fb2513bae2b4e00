"""Messages with a time of delivery in a simulated history: the producer, which takes some of them
back, and what was promised.

They go by the wall clock of a broker, so in these histories no clock makes more than a small step.
The wheel reaches only some seconds ahead, so half of the messages wait in steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import comb

import attrs
import trio
from simulated_cluster import SimulatedCluster

from triomq.client import (
    BrokerError,
    IllegalOperation,
    NoNameServer,
    Producer,
    RouteNotFound,
    SendError,
    SendReceipt,
    SendStatus,
)
from triomq.client.core.config import ClientSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.message_properties import TIMER_DELIVER_MS, TIMER_ROLL_TIMES
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

TIMED_TOPIC = "M"
CLOCK_STEPS = (-0.05, 0.05)
BROKER_SETTINGS = {"recallMessageEnable": "true", "timerRollWindowSlot": 4}
SLOT_MS = 1000
LATE_MS = 500
"""How late a message may come when all is well."""
SETTLED_SECONDS = 5.0
"""Time from the last fault on until all is well."""
DURABLE_SECONDS = 3.0
"""A recall that was answered sooner was as durable as a message; later, a disk or a slave may have
kept its broker waiting in vain.
"""


@attrs.frozen
class Timed:
    """A message that left its sender."""

    key: str
    acknowledged: bool
    """It must come."""
    sent: float
    delay: float


@attrs.frozen
class Recall:
    """A message was taken back, in the slot of ``deliver_ms``."""

    broker: str
    deliver_ms: int
    acknowledged: bool
    """The broker must not deliver it."""


@attrs.define(eq=False)
class TimedTraffic:
    """``sending``: whether the producer goes on. ``client``: settings for a client of this name."""

    cluster: SimulatedCluster
    seed: int
    retries: int
    sending: Callable[[], bool]
    client: Callable[[str], ClientSettings]
    sent: list[Timed] = attrs.field(factory=list)
    recalls: dict[str, Recall] = attrs.field(factory=dict)
    """Key -> a recall that left the producer."""
    senders: int = 0

    @property
    def acknowledged(self) -> int:
        return sum(one.acknowledged for one in self.sent)

    async def sell(self, name: str) -> None:
        """The producer: one message after the other, due in 0.2 to 9 s."""
        choose = random.Random(f"{self.seed} {name} timed")
        settings = ProducerSettings(retries=self.retries, client=self.client(f"{name}-timed"))
        self.senders += 1
        number = 0
        while self.sending():
            try:
                async with Producer(
                    self.cluster.namesrv_address, group="PM", settings=settings
                ) as producer:
                    while self.sending():
                        number += 1
                        key, delay = f"{name}.m{number}", choose.uniform(0.2, 9.0)
                        receipt = await self._send(producer, key, delay)
                        await trio.sleep(choose.choice((0.1, 0.4, 1.0)))
                        if receipt is not None and choose.random() < 0.3:
                            await self._recall(producer, key, receipt)
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    async def _send(self, producer: Producer, key: str, delay: float) -> SendReceipt | None:
        begun, acknowledged, stored = trio.current_time(), False, True
        receipt = None
        try:
            receipt = await producer.send(TIMED_TOPIC, f"{key}:".encode(), delay=delay)
            acknowledged = receipt.status is SendStatus.STORED
        except SendError as error:
            stored = error.maybe_stored
        except (BrokerError, RouteNotFound, NoNameServer):
            stored = False
        finally:
            if stored:
                self.sent.append(Timed(key, acknowledged, begun, delay))
        self.cluster.simulation.trace.note(
            f"{key}: in {delay:.3f} s,"
            f" {'acknowledged' if acknowledged else 'unknown' if stored else 'refused'}"
        )
        return receipt

    async def _recall(self, producer: Producer, key: str, receipt: SendReceipt) -> None:
        assert receipt.recall_handle is not None
        handle = RecallHandle.decode(receipt.recall_handle)
        begun, acknowledged, left = trio.current_time(), False, True
        try:
            await producer.recall(receipt)
            acknowledged = trio.current_time() - begun < DURABLE_SECONDS
        except IllegalOperation:
            left = False  # it is too late
        except TrioMQError:
            pass
        finally:
            if left:
                self.recalls[key] = Recall(handle.broker_name, handle.deliver_ms, acknowledged)
        self.cluster.simulation.trace.note(
            f"{key}: recall {'acknowledged' if acknowledged else 'unknown' if left else 'refused'}"
        )

    def violations(self, found: Sequence[tuple[str, StoredMessage]]) -> Iterator[str]:
        """Broken promises, in words. ``found``: what the topic has in the end, with the name of
        its broker.
        """
        keys = Counter(_key(message) for _, message in found)
        steps = Counter[str]()
        for _, message in found:
            taken = int(message.properties.get(TIMER_ROLL_TIMES, 0))
            steps[_key(message)] = max(steps[_key(message)], taken)
        sent = {one.key: one for one in self.sent}
        for one in self.sent:
            if one.acknowledged and not keys[one.key] and one.key not in self.recalls:
                yield f"timed message {one.key} was acknowledged, and never came"
        for key, count in keys.items():
            if key not in sent:
                yield f"timed message {key} came, and was never sent"
                continue
            crashes = sum(start.time >= sent[key].sent for start in self.cluster.starts)
            # A crash may repeat each step of each copy.
            if count > (1 + self.retries) * comb(1 + steps[key] + crashes, crashes):
                yield f"timed message {key} came {count} times, with {crashes} crashes since"
        for broker, message in found:
            key, deliver_ms = _key(message), int(message.properties[TIMER_DELIVER_MS])
            early = deliver_ms - message.store_timestamp
            if early > max(CLOCK_STEPS) * 1000:
                yield f"timed message {key} came {early} ms too early"
            if -early > LATE_MS and key in sent and self._all_is_well(sent[key]):
                yield f"timed message {key} came {-early} ms too late"
            if self._is_recalled(key, broker, deliver_ms):
                yield f"timed message {key} was recalled, and came"

    def _all_is_well(self, one: Timed) -> bool:
        """Return whether nothing was wrong when a message was due."""
        starts = [start.time for start in self.cluster.starts]
        return one.sent + one.delay > max(self.cluster.healed_at, *starts) + SETTLED_SECONDS

    def _is_recalled(self, key: str, broker: str, deliver_ms: int) -> bool:
        """Return whether a broker may not deliver this copy of a message.

        A recall does not wait for the slave: a new master may lack it.
        """
        recall = self.recalls.get(key)
        return (
            recall is not None
            and recall.acknowledged
            and not self.cluster.promoted_at
            and recall.broker == broker
            and (recall.deliver_ms - 1) // SLOT_MS == (deliver_ms - 1) // SLOT_MS
        )


def _key(message: StoredMessage) -> str:
    return message.body.decode().partition(":")[0]


async def read_messages(connector: Connector, address: str, queue_id: int) -> list[StoredMessage]:
    """Return all messages of a queue of the topic, pulled."""
    found: list[StoredMessage] = []
    offset = 0
    while True:
        pull = PullMessageHeader(
            "CHECK", TIMED_TOPIC, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*"
        )
        answer = await connector.invoke(address, request(RequestCode.PULL_MESSAGE, pull))
        if answer.code == ResponseCode.SUCCESS:
            found += decode_records(bytes(answer.body))
        elif answer.code not in (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            return found
        after = answer.header(PullMessageResponseHeader).next_begin_offset
        if after <= offset:
            return found
        offset = after
