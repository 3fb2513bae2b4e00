"""The run of the writing side: a stream from topic to topic, and a kill in each of its batches.

The first task of a batch waits at a gate when a part of its rows has been sent.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.spark_chaos.checkpoints import QueryFolder
from tests.spark_chaos.judge import NAME_BYTES, judge_sink
from tests.spark_chaos.plan import DoesNotCount
from tests.spark_chaos.scene import Scene, Sender
from tests.spark_chaos.spark_host import WAIT_SECONDS, kill_all
from triomq.sync import PullConsumer

ORIGIN = "__SPARK"
PER_BATCH = 200
PASSED = 12
"""record batches of ten rows that go through the gate before a task is held"""
BODY_BYTES = 3_000
"""more than what Spark keeps in buffers between the gate and the sink goes through"""
BROKER = "broker-b"
AWAY_SECONDS = 0.3


@attrs.define(eq=False)
class WritingRun:
    """One stream; ``play`` returns its record."""

    scene: Scene
    folder: Path
    victims: Sequence[str]
    kills: list[dict[str, Any]] = attrs.field(factory=list)
    source: str = attrs.field(init=False)
    target: str = attrs.field(init=False)
    query: QueryFolder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.source, self.target = f"from-{self.folder.name}", f"to-{self.folder.name}"
        self.query = QueryFolder(self.folder, self.source)

    def play(self) -> dict[str, Any]:
        """Kill everybody in turn. Raises: DoesNotCount."""
        begun = time.monotonic()
        running = self.scene.running
        for topic in (self.source, self.target):
            running.create_topic(topic, 2)
        sender = Sender(self.scene.namesrv, self.source, BODY_BYTES, 0)
        rows = [each.name for each in sender.send(PER_BATCH * (len(self.victims) + 2))]
        ends = sender.ends()
        self.start()
        for batch, victim in enumerate(self.victims, start=1):
            self.kill(batch, victim)
        self.wait(lambda: self.query.has_reached(ends), "all rows to be written")
        self.scene.host.ask("stop", name="sink")
        by_origin = self.by_origin(self.scene.count_messages(self.target))
        judged = judge_sink(rows, by_origin)
        for kill in self.kills:
            kill["rows repeated"] = sum(
                len(bodies) > 1
                for origin, bodies in by_origin.items()
                if origin.split("/")[1] == str(kill["batch"])
            )
        return {
            "kills": self.kills,
            "sent": len(rows),
            "messages": judged.messages,
            "repeats": judged.messages - len(by_origin),
            "complaints": judged.complaints,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def start(self) -> None:
        options = {
            "nameServer": self.scene.namesrv,
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(PER_BATCH),
            "metadataRefreshMs": "200",
        }
        sink = {
            "nameServer": self.scene.namesrv,
            "topic": self.target,
            "sendBatchBytes": "8k",
            "sendTimeoutMs": "1000",
        }
        job = {
            "folder": str(self.folder),
            "options": options,
            "sink": sink,
            "holds": list(range(1, len(self.victims) + 1)),
            "passed": PASSED,
        }
        self.scene.host.ask("start", name="sink", job=job)

    def kill(self, batch: int, victim: str) -> None:
        """Let the batch send a part of its rows, kill, and let the stream go on."""
        self.wait(lambda: self.query.inside(batch), f"batch {batch} to begin")
        self.wait_until_sent()
        self.check_inside(batch)
        host = self.scene.host
        if victim == "driver":
            host.kill()
        elif victim == "worker":
            kill_all(host.workers())
        else:
            self.scene.kill_broker(BROKER)
        self.check_inside(batch)
        self.kills.append({"batch": batch, "victim": victim})
        self.query.open_gate(batch)
        if victim == "driver":
            host.start()
            self.start()
        elif victim == "broker":
            time.sleep(AWAY_SECONDS)
            self.scene.restart_broker(BROKER)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        self.scene.host.wait(["sink"], condition, what)

    def wait_until_sent(self) -> None:
        """Wait until the topic does not grow any more: the task sends what it has, and is held."""
        counts = [-1, 0]
        while len(set(counts[-3:])) > 1:
            time.sleep(0.1)
            counts.append(self.scene.count_messages(self.target))

    def check_inside(self, batch: int) -> None:
        if not self.query.is_unfinished(batch):
            raise DoesNotCount(f"batch {batch} is not the one that runs")

    def by_origin(self, count: int) -> dict[str, list[str]]:
        """Read the target; return the rows of each value of ``__SPARK``."""
        found: dict[str, list[str]] = defaultdict(list)
        with PullConsumer(self.scene.namesrv, group="chaos", consume_from="first") as consumer:
            consumer.assign(consumer.queues(self.target))
            deadline = time.monotonic() + WAIT_SECONDS
            while count > 0 and time.monotonic() < deadline:
                for message in consumer.poll(max_messages=1000):
                    found[message.properties[ORIGIN]].append(message.body[:NAME_BYTES].decode())
                    count -= 1
        assert count == 0, f"{count} messages of {self.target} cannot be read"
        return found
