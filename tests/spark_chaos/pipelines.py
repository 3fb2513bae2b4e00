"""The runs with a pipeline into a lake, and what may work beside it: ``compact``, the deletion of
old messages and dates, and the backfill of another pipeline. A kill falls into a batch, and into
what works beside it. In the end each message is in the lake once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs

from tests.spark_chaos.checkpoints import Place
from tests.spark_chaos.judge import SentMessage, complaints
from tests.spark_chaos.pipeline_query import PipelineQuery
from tests.spark_chaos.plan import MERGE_GATE, ChaosPlan
from tests.spark_chaos.reading import LOST
from tests.spark_chaos.scene import BROKERS, Scene, Sender
from tests.support.spark_peers import wait_for

HELD = re.compile(r"LockHeld: process \d+ on ")
SEGMENT_BYTES = 256 << 10
"""of the broker whose old files are deleted, and whose store is read in steps"""
STEP_BYTES = 4 * SEGMENT_BYTES


@attrs.define(eq=False)
class PipelinesRun:
    """One run; ``play`` returns its record."""

    scene: Scene
    plan: ChaosPlan
    folder: Path
    broken: bool = False
    evidence: list[dict[str, Any]] = attrs.field(factory=list)
    notes: dict[str, Any] = attrs.field(factory=dict)
    found: list[str] = attrs.field(factory=list)
    """broken promises"""
    senders: list[Sender] = attrs.field(factory=list)
    may: list[SentMessage] = attrs.field(factory=list)
    """messages that may be missing, and are not there twice"""
    rows: int = 0

    def play(self) -> dict[str, Any]:
        """Run the plan. Raises: DoesNotCount."""
        begun = time.monotonic()
        play = {
            "compaction beside a pipeline": self.compaction,
            "retention beside a pipeline": self.retention,
            "backfill beside a pipeline": self.backfill,
        }[self.plan.kind]
        try:
            play()
        except BaseException:
            self.scene.host.close()  # with all that it still does
            raise
        return {
            **attrs.asdict(self.plan, filter=lambda field, _: field.name != "seed"),
            "inside": self.evidence,
            **self.notes,
            "sent": sum(len(sender.sent) for sender in self.senders),
            "rows": self.rows,
            "complaints": self.found,
            "seconds": round(time.monotonic() - begun, 1),
        }

    # The parts of a run

    @property
    def topic(self) -> str:
        return f"chaos-{self.folder.name}"

    def pipeline(self, name: str, topic: str, **more: Any) -> PipelineQuery:
        options = {
            "maxOffsetsPerTrigger": str(self.plan.per_batch),
            "metadataRefreshMs": "200",
            "pollIntervalMs": "50",
            "minPartitions": "2",
        }
        broken = self.plan.kind if self.broken else ""
        return PipelineQuery(self.scene, self.folder, name, topic, options, broken=broken, **more)

    def sender(self, topic: str, brokers: Collection[str]) -> Sender:
        """Create a topic, and return what sends to it."""
        self.scene.running.create_topic(topic, 2, brokers=list(brokers))
        made = Sender(self.scene.namesrv, topic, self.plan.body_bytes, self.plan.seed)
        self.senders.append(made)
        return made

    def send_backlog(self, sender: Sender, life: int = 1) -> None:
        """Send the batches up to the one with the fault, and a part of the next."""
        per_batch = self.plan.per_batch
        sender.send(per_batch * (self.plan.batch + 1) + per_batch // 2, life)

    def note_inside(self, pipeline: PipelineQuery, when: str) -> None:
        query, batch = pipeline.query, self.plan.batch
        assert query.is_unfinished(batch), f"{when}: {query.last_planned()} is planned"
        self.evidence.append(
            {
                "when": when,
                "query": pipeline.name,
                "planned": query.last_planned(),
                "committed": query.last_committed(),
                "at the gate": query.inside(batch),
            }
        )

    def kill_and_start(self, *pipelines: PipelineQuery) -> None:
        """SIGKILL for the driver; the next one goes on with the pipelines."""
        self.scene.host.kill()
        self.scene.host.start()
        for pipeline in pipelines:
            pipeline.query.open_gate(self.plan.batch)
            pipeline.start()

    def judge(self, pipeline: PipelineQuery, must: Collection[SentMessage]) -> None:
        """Judge the lake: it has these messages once, and no other ones but ``may``."""
        rows = list(pipeline.rows())
        self.rows += len(rows)
        self.found += [f"lake: {text}" for text in complaints(rows, must, self.may)]

    # The kinds

    def compaction(self) -> None:
        """``compact`` merges what is committed beside a batch, and beside those that follow."""
        sender = self.sender(self.topic, BROKERS)
        pipeline = self.pipeline("pipeline", self.topic)
        self.send_backlog(sender)
        batch = self.plan.batch
        pipeline.start(hold=batch)
        pipeline.wait_inside(batch)
        self.note_inside(pipeline, "the table has the batch")
        if self.plan.variant == "killed in a merge":
            upkeep = pipeline.start_upkeep(hold=MERGE_GATE)
            pipeline.wait(lambda: pipeline.query.inside(MERGE_GATE), "a merge", upkeep)
            pipeline.query.open_gate(batch)
            pipeline.wait_reached(sender.ends(), upkeep)
        else:
            pipeline.start_upkeep()
            assert pipeline.upkeep_done()["merged"] > 1
        self.kill_and_start(pipeline)
        upkeep = pipeline.start_upkeep(again=True)
        for _ in range(2):
            sender.send(self.plan.per_batch // 2)
            pipeline.wait_reached(sender.ends(), upkeep)
        self.notes["merged"] = pipeline.upkeep_done()["merged"]
        pipeline.stop()
        self.judge(pipeline, sender.sent)

    def retention(self) -> None:
        if self.plan.variant == "files of the broker":
            self.broker_deletes()
        else:
            self.dates_are_deleted()

    def dates_are_deleted(self) -> None:
        """``compact`` deletes the folder of an old date while a batch moves its files there."""
        sender = self.sender(self.topic, BROKERS)
        pipeline = self.pipeline("pipeline", self.topic, old_dates=True)
        self.send_backlog(sender)
        batch = self.plan.batch
        pipeline.start(at="moved", hold=batch)
        pipeline.wait_inside(batch)
        self.note_inside(pipeline, "the files of the batch wait for their folders")
        pipeline.start_upkeep()
        self.notes["deleted"] = pipeline.upkeep_done()["deleted"]
        assert self.notes["deleted"] == 1, "the old date was there"
        if self.plan.variant == "old dates and a kill":
            self.kill_and_start(pipeline)
        pipeline.query.open_gate(batch)
        upkeep = pipeline.start_upkeep(again=True)
        for _ in range(2):
            sender.send(self.plan.per_batch // 2)
            pipeline.wait_reached(sender.ends(), upkeep)
        pipeline.upkeep_done()
        pipeline.stop()
        pipeline.start_upkeep()
        pipeline.upkeep_done()
        self.judge(pipeline, [message for message in sender.sent if message.offset % 2])

    def broker_deletes(self) -> None:
        """A broker deletes what an unfinished batch has read, and the driver is killed.

        The pipeline says which messages are gone. Those of committed batches are in the lake, and
        so is what the broker still has.
        """
        broker = f"broker-{self.topic}"
        settings = {
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        }
        self.scene.start_broker(broker, **settings)
        try:
            sender = self.sender(self.topic, [broker])
            pipeline = self.pipeline("pipeline", self.topic)
            self.send_backlog(sender)
            pipeline.start(hold=self.plan.batch)
            pipeline.wait_inside(self.plan.batch)
            self.note_inside(pipeline, "the table has the batch")
            committed = pipeline.query.read_up_to(self.plan.batch - 1)
            self.scene.change_settings(
                broker, fileReservedTime=0, cleanResourceInterval=50, deleteCommitLogFilesInterval=0
            )
            wait_for(
                lambda: any(
                    first > committed[place]
                    for place, first in self.scene.first_offsets(self.topic).items()
                ),
                "the broker to delete what the batch has read",
            )
            self.scene.change_settings(broker, fileReservedTime=72)
            self.kill_and_start(pipeline)
            error = pipeline.error()
            if not (re.search(LOST, error) and self.topic in error):
                self.found.append(f"the error does not name the loss: {error[-600:]}")
            pipeline.options["failOnDataLoss"] = "false"
            pipeline.start()
            firsts = self.scene.first_offsets(self.topic)
            sender.send(self.plan.per_batch // 2)
            pipeline.wait_reached(sender.ends())
            pipeline.stop()
            self.notes["gone"] = sum(firsts.values())
            gone = [
                message
                for message in sender.sent
                if committed[place_of(message)] <= message.offset < firsts[place_of(message)]
            ]
            assert gone
            self.may += gone
            self.judge(pipeline, [message for message in sender.sent if message not in gone])
        finally:
            self.scene.give_up(broker)

    def backfill(self) -> None:
        """Another pipeline with the same lake begins with a store while the first one runs."""
        broker = f"broker-{self.topic}"
        self.scene.start_broker(broker, mappedFileSizeCommitLog=SEGMENT_BYTES)
        try:
            self.backfill_beside(broker)
        finally:
            self.scene.give_up(broker)

    def backfill_beside(self, broker: str) -> None:
        batch = self.plan.batch
        stored = self.sender(f"{self.topic}-stored", [broker])
        self.send_backlog(stored, life=2)
        stores = {broker: self.scene.stop_broker(broker)}
        live = self.sender(self.topic, BROKERS)
        self.send_backlog(live)
        pipeline = self.pipeline("pipeline", self.topic)
        other = self.pipeline("other", stored.topic)
        pipeline.start(hold=batch)
        pipeline.wait_inside(batch)
        self.note_inside(pipeline, "the table has the batch")
        refused = pipeline.error(pipeline.start_backfill(stores, STEP_BYTES))
        if not HELD.search(refused):
            self.found.append(f"a backfill beside its own pipeline is not refused: {refused}")
        if self.plan.variant == "killed in a step":
            filling = other.start_backfill(stores, STEP_BYTES, hold=1)
            pipeline.wait(lambda: other.query.inside(1), "a step", filling)
            self.kill_and_start(pipeline)
        else:
            pipeline.query.open_gate(batch)
        done = other.result_of(other.start_backfill(stores, STEP_BYTES))
        assert done["steps"] > 1, done
        assert done["rows"] == len(stored.sent)
        self.scene.restart_broker(broker, mappedFileSizeCommitLog=SEGMENT_BYTES)
        stored.send(self.plan.per_batch // 2, life=2)
        if self.plan.variant == "killed behind it":
            other.start(hold=0)
            other.wait_inside(0)
            self.kill_and_start(pipeline, other)
        else:
            other.start()
        live.send(self.plan.per_batch // 2)
        stored.send(self.plan.per_batch // 2, life=2)
        pipeline.wait_reached(live.ends(), other.name)
        other.wait_reached(stored.ends(2), pipeline.name)
        for each in (pipeline, other):
            each.stop()
        self.judge(pipeline, [*live.sent, *stored.sent])


def place_of(message: SentMessage) -> Place:
    return message.broker, message.queue
