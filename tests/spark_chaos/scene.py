"""The servers of the chaos runs: a name server, two brokers, and a driver that runs queries."""

from __future__ import annotations

import contextlib
import random
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.spark_chaos.checkpoints import Place
from tests.spark_chaos.judge import SentMessage, message_name
from tests.spark_chaos.spark_host import SparkHost
from tests.support.processes import our_broker
from tests.support.spark_peers import Cluster, cluster, wait_for
from triomq.client.admin.admin import Admin
from triomq.client.core.config import ProducerSettings
from triomq.client.sending.receipt import SendStatus
from triomq.remoting.protocol.codes import RequestCode
from triomq.sync import Message, Producer

BROKERS = ("broker-a", "broker-b")
ONCE = ProducerSettings(retries=0, send_timeout=60.0)
"""no send is repeated: its message would be there twice"""
STOP_SECONDS = 60.0
GROUP_SETTINGS = {"slaveReadEnable": "true", "haSendHeartbeatInterval": 200}


@attrs.define(eq=False)
class Scene:
    """What all runs share; each run has topics of its own."""

    running: Cluster
    stack: contextlib.ExitStack
    host: SparkHost

    @property
    def namesrv(self) -> str:
        return self.running.namesrv

    def start_broker(
        self, broker: str, folder: str | None = None, port: int | None = None, **settings: object
    ) -> None:
        """Start a broker, again or for the first time; returns when the name server knows it."""
        place = self.running.folder / (folder or broker)
        entered = self.stack.enter_context(
            our_broker(place, broker, self.namesrv, port, **settings)
        )
        self.running.addresses[broker], self.running.processes[broker] = entered
        self.wait_for_master(broker)

    def restart_broker(self, broker: str, **settings: object) -> None:
        """Start a broker again after its ``kill``, at the same address."""
        port = int(self.running.addresses[broker].rpartition(":")[2])
        self.start_broker(broker, None, port, **settings)

    def kill_broker(self, broker: str) -> None:
        """SIGKILL for a broker; returns when the name server has noticed it."""
        self.running.kill(broker)
        wait_for(lambda: not self.has_master(broker), f"the name server to miss {broker}")

    def give_up(self, broker: str, *processes: str) -> None:
        """SIGKILL for a broker's processes, which never return; the name server forgets them."""
        for each in (broker, *processes):
            self.running.kill(each)
        wait_for(
            lambda: broker not in self.running.broker_names(), f"the name server to miss {broker}"
        )
        answers = self.administer(lambda admin: admin.forget_broker(broker))
        assert not answers.failures, answers.reasons()

    def stop_broker(self, broker: str) -> Path:
        """End a broker cleanly. Returns: its store."""
        process = self.running.processes[broker]
        process.terminate()
        process.wait(timeout=STOP_SECONDS)
        wait_for(lambda: not self.has_master(broker), f"the name server to miss {broker}")
        return self.running.folder / broker / "store"

    def change_settings(self, broker: str, **settings: object) -> None:
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        code = RequestCode.UPDATE_BROKER_CONFIG

        async def change(admin: Admin) -> None:
            await admin.ask(self.running.addresses[broker], code, body=body)

        self.administer(change)

    def first_offsets(self, topic: str) -> dict[Place, int]:
        """Return the first offset that each queue still has."""

        async def ask(admin: Admin) -> dict[Place, int]:
            stats = await admin.topic_stats(topic)
            return {
                (queue.broker_name, queue.queue_id): offsets.min_offset
                for broker in stats.values.values()
                for queue, offsets in broker.offset_table.items()
            }

        found: dict[Place, int] = self.administer(ask)
        return found

    def wait_for_master(self, broker: str) -> None:
        wait_for(lambda: self.has_master(broker), f"{broker} to register")

    def has_master(self, broker: str) -> bool:
        async def ask(admin: Admin) -> bool:
            return any(found.name == broker and found.id == 0 for found in await admin.brokers())

        return self.administer(ask)

    def delete_topic(self, topic: str) -> None:
        async def delete(admin: Admin) -> None:
            answers = await admin.delete_topic(topic)
            assert not answers.failures, answers.reasons()

        self.administer(delete)

    def count_messages(self, topic: str) -> int:
        """Return how many messages the brokers that answer have of a topic."""

        async def count(admin: Admin) -> int:
            stats = await admin.topic_stats(topic)
            return sum(
                queue.max_offset
                for broker in stats.values.values()
                for queue in broker.offset_table.values()
            )

        return self.administer(count)

    def administer(self, act: Callable[[Admin], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with Admin(self.namesrv) as admin:
                return await act(admin)

        return trio.run(run)

    def start_group(self, group: str) -> None:
        """Start a master that waits for its slave, and the slave."""
        self.start_broker(
            group, f"{group}-master", None, brokerRole="SYNC_MASTER", **GROUP_SETTINGS
        )
        slave = our_broker(
            self.running.folder / f"{group}-slave",
            group,
            self.namesrv,
            brokerId=1,
            brokerRole="SLAVE",
            **GROUP_SETTINGS,
        )
        _, self.running.processes[f"{group}-slave"] = self.stack.enter_context(slave)
        probe = f"probe-{group}"
        self.running.create_topic(probe, 1, brokers=[group])
        wait_for(lambda: self.is_copied(probe), "the slave to copy")

    def is_copied(self, probe: str) -> bool:
        with Producer(self.namesrv, group="probes") as producer:
            return producer.send(probe, b"probe").status is SendStatus.STORED


@attrs.define(eq=False)
class Sender:
    """Sends the numbered messages of a topic and knows where each is stored."""

    namesrv: str
    topic: str
    body_bytes: int
    seed: int
    sent: list[SentMessage] = attrs.field(factory=list)

    def send(self, count: int, life: int = 1) -> list[SentMessage]:
        """Send messages to all queues in turn; every one must be acknowledged."""
        with self._producer() as producer:
            return self._send(producer, count, life)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Send some messages every few milliseconds while the block runs."""
        done = threading.Event()

        def run() -> None:
            with self._producer() as producer:
                while not done.wait(0.008):
                    self._send(producer, 4, 1)

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(run)
            try:
                yield
            finally:
                done.set()
            sending.result()

    def _producer(self) -> Producer:
        return Producer(self.namesrv, group="chaos", settings=ONCE)

    def _send(self, producer: Producer, count: int, life: int) -> list[SentMessage]:
        numbers = random.Random(f"{self.seed}/{len(self.sent)}")
        first = len(self.sent)
        bodies = [
            message_name(life, first + number).encode() + numbers.randbytes(self.body_bytes)
            for number in range(count)
        ]
        receipts = list(producer.send_many(Message(topic=self.topic, body=body) for body in bodies))
        fresh = [
            SentMessage(
                life,
                first + number,
                receipt.queue.broker_name,
                receipt.queue.queue_id,
                receipt.queue_offset,
                zlib.crc32(bodies[number]),
            )
            for number, receipt in enumerate(receipts)
        ]
        assert all(receipt.status is SendStatus.STORED for receipt in receipts)
        self.sent += fresh
        return fresh

    def ends(self, life: int = 1) -> dict[Place, int]:
        """Return the end of each queue that has messages of this life."""
        found: dict[Place, int] = {}
        for message in self.sent:
            if message.life == life:
                place = message.broker, message.queue
                found[place] = max(found.get(place, 0), message.offset + 1)
        return found


@contextlib.contextmanager
def open_scene(folder: Path, lake: str = "parquet") -> Iterator[Scene]:
    """Start the driver, then the servers, in the time that its JVM takes."""
    host = SparkHost(folder / "spark", lake)
    with contextlib.ExitStack() as stack:
        stack.callback(host.close)
        host.start()
        running = stack.enter_context(cluster(folder))
        yield Scene(running, stack, host)
