"""Two queries that read one topic, into Spark's file sink and by an idempotent ``foreachBatch``.
What a run does with them: start, hold in a batch, wait, compare.

The first task of a batch waits at a gate with messages that it has not pulled. The log of each
query shows, before and after a fault, that the batch is planned and not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import attrs

from tests.spark_chaos.checkpoints import Place, QueryFolder
from tests.spark_chaos.judge import SentMessage, complaints
from tests.spark_chaos.plan import ChaosPlan, DoesNotCount
from tests.spark_chaos.scene import BROKERS, Scene, Sender
from tests.spark_chaos.spark_host import WAIT_SECONDS, check_not_busy
from tests.support.spark_peers import wait_for

SINKS = ("parquet", "foreach")


@attrs.define(eq=False)
class TwoQueries:
    """The queries of one run, their topic, and what was found."""

    scene: Scene
    plan: ChaosPlan
    folder: Path
    source: str = "rocketmq"
    evidence: list[dict[str, Any]] = attrs.field(factory=list)
    notes: dict[str, Any] = attrs.field(factory=dict)
    found: list[str] = attrs.field(factory=list)
    """broken promises"""
    rows: int = 0
    topic: str = attrs.field(init=False)
    sender: Sender = attrs.field(init=False)
    queries: dict[str, QueryFolder] = attrs.field(init=False)
    options: dict[str, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        self.topic = f"chaos-{self.folder.name}"
        self.sender = Sender(self.scene.namesrv, self.topic, plan.body_bytes, plan.seed)
        self.queries = {sink: QueryFolder(self.folder / sink, self.topic) for sink in SINKS}
        self.options = {
            "nameServer": self.scene.namesrv,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(plan.per_batch),
            "pullBatchSize": "8",
            "pullDepth": "2",
            "recordBatchBytes": "64k",
            "metadataRefreshMs": "200",
            "pollIntervalMs": "50",
        }
        if plan.tasks == 2:
            self.options["maxRecordsPerPartition"] = str(plan.per_batch // 2 + 20)

    def create_topic(self, brokers: Collection[str] = BROKERS) -> None:
        self.scene.running.create_topic(self.topic, 2, brokers=list(brokers))

    def send_backlog(self) -> None:
        """Send the batches up to the one with the fault, and a part of the next."""
        self.sender.send(self.plan.per_batch * (self.plan.batch + 1) + self.plan.per_batch // 2)

    def send_some(self) -> None:
        self.sender.send(self.plan.per_batch // 2)

    def start(self, *, hold: bool = False, at: Mapping[str, str] | None = None) -> None:
        """Start both queries, for the first time or from their checkpoints."""
        for sink in SINKS:
            job = {
                "folder": str(self.queries[sink].path),
                "format": self.source,
                "options": self.options,
                "sink": sink,
                "holds": [self.plan.batch] if hold else [],
                "passed": self.plan.passed,
                "at": (at or {}).get(sink, "task"),
            }
            self.scene.host.ask("start", name=sink, job=job)

    def stop(self) -> None:
        self.open_gates()
        if self.scene.host.process is not None and self.scene.host.process.poll() is None:
            for sink in SINKS:
                self.scene.host.ask("stop", name=sink)

    def open_gates(self) -> None:
        for query in self.queries.values():
            query.open_gate(self.plan.batch)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait while both queries run."""
        self.scene.host.wait(SINKS, condition, what)

    def wait_idle(self) -> None:
        """Wait until both queries have begun and wait for messages."""
        self.wait(
            lambda: all(
                self.scene.host.ask("state", name=sink)["message"].startswith("Waiting")
                for sink in SINKS
            ),
            "the queries to begin",
        )

    def wait_inside(self) -> None:
        self.wait(
            lambda: all(self.is_inside(sink) for sink in SINKS), f"tasks of batch {self.plan.batch}"
        )

    def is_inside(self, sink: str) -> bool:
        """Whether a query is in the batch. Raises: DoesNotCount if it has passed it already."""
        query, batch = self.queries[sink], self.plan.batch
        if query.last_planned() > batch:
            raise DoesNotCount(f"batch {batch} of {sink} had too few rows")
        return bool(query.inside(batch))

    def wait_reached(self, ends: Mapping[Place, int]) -> None:
        self.wait(
            lambda: all(query.has_reached(ends) for query in self.queries.values()),
            f"the queries to reach {ends}",
        )

    def error_of(self, sink: str) -> str:
        """Wait until a query has failed and return why."""

        def error() -> str | None:
            state = self.scene.host.ask("state", name=sink)
            return None if state["active"] else str(state["error"])

        found = str(wait_for(error, f"{sink} to fail", WAIT_SECONDS))
        check_not_busy(found)
        return found

    def note_inside(self, when: str) -> None:
        """Note that both queries are inside the batch. Raises: DoesNotCount."""
        for sink, query in self.queries.items():
            batch = self.plan.batch
            marks = query.inside(batch)
            if not marks or not query.is_unfinished(batch):
                raise DoesNotCount(
                    f"{when}: {sink} has planned batch {query.last_planned()} and committed"
                    f" {query.last_committed()}, the fault belongs into {batch} ({marks})"
                )
            self.evidence.append(
                {
                    "when": when,
                    "query": sink,
                    "planned": query.last_planned(),
                    "committed": query.last_committed(),
                    "at the gate": marks,
                }
            )

    def of_committed_batches(self, messages: Collection[SentMessage]) -> list[SentMessage]:
        """Return the messages that both queries have read before the batch with the fault."""
        ends = [query.read_up_to(self.plan.batch - 1) for query in self.queries.values()]
        assert ends[0] == ends[1]
        return [
            message
            for message in messages
            if message.offset < ends[0].get((message.broker, message.queue), 0)
        ]

    def finish(
        self,
        *,
        must: Collection[SentMessage] = (),
        may: Collection[SentMessage] = (),
        without: Collection[SentMessage] = (),
        life: int = 1,
        gone: str | None = None,
        begun_at_latest: bool = False,
    ) -> None:
        """Send a last part, wait until all is read, and judge.

        Besides ``must``, all messages of ``life`` must be there, but those of ``without``, of the
        broker ``gone``, and from before the begin of a query at ``latest``.
        """
        self.sender.send(self.plan.per_batch // 2, life)
        ends = {place: end for place, end in self.sender.ends(life).items() if place[0] != gone}
        self.wait_reached(ends)
        names = {message.name for message in (*without, *may)}
        every = [
            message
            for message in self.sender.sent
            if message.life == life and message.broker != gone and message.name not in names
        ]
        for sink in SINKS:
            begun = self.since_begin(sink, every) if begun_at_latest else every
            self.judge(sink, [*must, *begun], may)

    def since_begin(self, sink: str, messages: Collection[SentMessage]) -> list[SentMessage]:
        """Return the messages that a query had to read from its first batch on.

        The log says where that batch begins, and what its task has held was certainly in it.
        """
        query = self.queries[sink]
        ends = query.read_up_to(0)
        begins = {**ends, **query.read_up_to(0, "from")}
        held = query.held(0)
        return [
            message
            for message in messages
            if message.offset >= begins[message.broker, message.queue]
            or (message.broker, message.queue, message.offset) in held
        ]

    def judge(self, sink: str, must: Collection[SentMessage], may: Collection[SentMessage]) -> None:
        rows = list(self.queries[sink].rows(sink))
        self.rows += len(rows)
        self.found += [f"{sink}: {text}" for text in complaints(rows, must, may)]
