"""The runs of the reading side, by kind of fault."""

from __future__ import annotations

import re
import time
from typing import Any

import attrs

from tests.spark_chaos.plan import DoesNotCount
from tests.spark_chaos.scene import BROKERS
from tests.spark_chaos.spark_host import kill_all
from tests.spark_chaos.two_queries import SINKS, TwoQueries

LOST = r"deleted and created again|offsets \[\d+, \d+\) of \S+ are gone"
NO_BROKER = r"did not arrive within pollTimeoutMs|could be asked for"


@attrs.define(eq=False)
class ReadingRun(TwoQueries):
    """One run; ``play`` returns its record."""

    def play(self) -> dict[str, Any]:
        """Run the plan. Raises: DoesNotCount."""
        begun = time.monotonic()
        play = {
            "driver killed": self.driver_killed,
            "batch 0 killed": self.batch_0_killed,
            "worker killed": self.worker_killed,
            "broker killed and back": self.broker_killed,
            "topic recreated smaller": self.topic_recreated,
            "topic recreated larger": self.topic_recreated,
            "broker removed": self.broker_removed,
            "broker late": self.broker_late,
            "queues grown": self.queues_grown,
            "failover": self.failover,
        }[self.plan.kind]
        try:
            play()
        finally:
            self.stop()
        return {
            **attrs.asdict(self.plan, filter=lambda field, _: field.name != "seed"),
            "inside": self.evidence,
            **self.notes,
            "sent": len(self.sender.sent),
            "rows": self.rows,
            "complaints": self.found,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def driver_killed(self) -> None:
        self.create_topic()
        self.send_backlog()
        written = self.plan.variant == "after the write"
        self.start(hold=True, at={"foreach": "written"} if written else {})
        self.wait_inside()
        self.send_some()
        self.note_inside("before the kill")
        if self.plan.variant == "the source's process":
            victims = self.scene.host.source_processes()
            assert len(victims) == len(SINKS)
            kill_all(victims)
            self.note_inside("after the kill")
            self.open_gates()
            for sink in SINKS:
                self.error_of(sink)
        else:
            self.scene.host.kill()
            self.note_inside("after the kill")
            self.scene.host.start()
            self.open_gates()
        self.start()
        self.finish()

    def batch_0_killed(self) -> None:
        """Messages arrive before, in and after batch 0, so every latest offset is another one."""
        self.create_topic()
        earlier = self.sender.send(self.plan.per_batch)
        self.options["startingOffsets"] = self.plan.variant
        with self.sender.live():
            self.start(hold=True)
            self.wait_inside()
            self.note_inside("before the kill")
            self.scene.host.kill()
        self.note_inside("after the kill")
        self.scene.host.start()
        self.open_gates()
        del self.options["maxOffsetsPerTrigger"]
        self.options.pop("maxRecordsPerPartition", None)
        self.start()
        if self.plan.variant == "earliest":
            self.finish()
        else:
            self.finish(without=earlier, begun_at_latest=True)

    def worker_killed(self) -> None:
        """Spark repeats the task in the same batch."""
        self.create_topic()
        self.send_backlog()
        self.start(hold=True)
        self.wait_inside()
        self.send_some()
        self.note_inside("before the kill")
        held = {
            int(mark.rpartition("-")[2])
            for query in self.queries.values()
            for mark in query.inside(self.plan.batch)
        }
        workers = self.scene.host.workers()
        victims = [each for each in workers if self.plan.variant == "all" or each.pid in held]
        assert held <= {each.pid for each in victims}
        kill_all(victims)
        self.notes["workers killed"] = len(victims)
        self.note_inside("after the kill")
        self.open_gates()
        self.finish()
        for sink, query in self.queries.items():
            again = [mark for mark in query.inside(self.plan.batch) if "-task-1-" in mark]
            if not again:
                raise DoesNotCount(f"no task of {sink} was repeated")

    def broker_killed(self) -> None:
        """Tasks wait for the broker, since they have not pulled all of its messages."""
        self.create_topic()
        self.send_backlog()
        self.start(hold=True)
        self.wait_inside()
        self.send_some()
        self.note_inside("before the kill")
        self.scene.kill_broker(self.plan.victim)
        try:
            self.open_gates()
            time.sleep(self.plan.away_seconds)
            self.note_inside("tasks wait for the broker")
        finally:  # a run that does not count is played again with both brokers
            self.scene.restart_broker(self.plan.victim)
        self.finish()

    def topic_recreated(self) -> None:
        """The new life reaches, smaller, less far than the query, or farther."""
        self.create_topic()
        self.send_backlog()
        first_life = list(self.sender.sent)
        strict = self.plan.variant == "error"
        self.options["failOnDataLoss"] = "true" if strict else "false"
        self.options["pollTimeoutMs"] = "1500"
        self.start(hold=True)
        self.wait_inside()
        self.note_inside("before the topic is deleted")
        self.scene.delete_topic(self.topic)
        self.create_topic()
        larger = self.plan.kind == "topic recreated larger"
        per_batch, batch = self.plan.per_batch, self.plan.batch
        # Smaller: it ends inside the batch, behind or ahead of what the tasks have pulled.
        count = per_batch * (batch + 4) if larger else per_batch * batch + per_batch // 4
        self.sender.send(count, life=2)
        self.note_inside("after it was created again")
        self.open_gates()
        committed = self.of_committed_batches(first_life)
        rest = [message for message in first_life if message not in committed]
        if strict:
            for sink in SINKS:
                error = self.error_of(sink)
                if not (re.search(LOST, error) and self.topic in error):
                    self.found.append(f"{sink}: the error does not name the loss: {error[-600:]}")
                self.judge(sink, committed, rest)
            self.notes["error"] = "names the loss"
            self.options["failOnDataLoss"] = "false"
            self.start()
        self.finish(must=committed, may=rest, life=2)

    def broker_removed(self) -> None:
        """A broker with unread messages never returns, and the operator gives it up."""
        self.create_topic()
        self.send_backlog()
        skipped = self.plan.variant == "skipped"
        self.options |= {
            "failOnDataLoss": "false" if skipped else "true",
            "pollTimeoutMs": "1500",
            "unavailableBrokerTimeout": "2s",
        }
        self.start(hold=True)
        self.wait_inside()
        self.send_some()
        gone = self.plan.victim
        of_gone = [message for message in self.sender.sent if message.broker == gone]
        committed = self.of_committed_batches(of_gone)
        self.note_inside("before the kill")
        self.scene.kill_broker(gone)
        try:
            self.note_inside("after the kill")
            self.open_gates()
            if not skipped:
                for sink in SINKS:
                    error = self.error_of(sink)
                    if not (re.search(NO_BROKER, error) and gone in error):
                        self.found.append(
                            f"{sink}: the error does not name the broker: {error[-600:]}"
                        )
                left = {broker: [0, 1] for broker in BROKERS if broker != gone}
                del self.options["subscribe"]
                self.options["assign"] = f'{{"{self.topic}": {left}}}'.replace("'", '"')
                self.start()
            self.finish(
                must=committed,
                may=[message for message in of_gone if message not in committed],
                gone=gone,
            )
        finally:
            self.scene.restart_broker(gone)

    def broker_late(self) -> None:
        """A broker is away when the query begins, and comes back inside a batch."""
        self.create_topic()
        earlier = self.sender.send(self.plan.per_batch)
        late = self.plan.victim
        self.scene.kill_broker(late)
        if self.plan.variant == "latest":
            self.options["startingOffsets"] = "latest"
            self.start(hold=True)
            self.wait_idle()
        else:
            del self.options["startingOffsets"]
            time.sleep(0.01)  # times are milliseconds
            self.options["startingTimestamp"] = str(time.time_ns() // 1_000_000)
            self.options["startingOffsetsByTimestampStrategy"] = "latest"
            self.start(hold=True)
            self.wait_idle()
        self.send_backlog()
        self.wait_inside()
        self.note_inside("before the broker comes")
        self.scene.restart_broker(late)
        self.send_some()
        self.note_inside("after it came")
        self.open_gates()
        self.finish(without=earlier)

    def queues_grown(self) -> None:
        self.create_topic()
        self.send_backlog()
        self.start(hold=True)
        self.wait_inside()
        self.note_inside("before the change")
        if self.plan.variant == "more queues":
            self.scene.running.create_topic(self.topic, 4)
            self.read_grown_queues()
            return
        other = f"broker-{self.topic}"
        self.scene.start_broker(other)
        try:
            self.scene.running.create_topic(self.topic, 3, brokers=[other])
            self.read_grown_queues()
        finally:
            self.scene.give_up(other)

    def read_grown_queues(self) -> None:
        self.send_some()
        self.note_inside("after it")
        self.open_gates()
        self.finish()
        self.notes["queues"] = len(self.sender.ends())

    def failover(self) -> None:
        """The master of a group dies; its slave is read, and then promoted or relieved."""
        group = f"a-group-{self.topic}"  # the task that is held reads it first
        slave = f"{group}-slave"
        self.scene.start_group(group)
        try:
            self.read_group(group, slave)
        finally:  # the next runs change topics at all masters that the name server remembers
            self.scene.give_up(group, slave)

    def read_group(self, group: str, slave: str) -> None:
        self.create_topic(brokers=[group, "broker-a"])
        self.send_backlog()
        self.start(hold=True)
        self.wait_inside()
        self.send_some()
        self.note_inside("before the master is killed")
        self.scene.kill_broker(group)
        self.note_inside("after it was killed")
        self.open_gates()
        self.wait_reached(self.sender.ends())
        assert not self.scene.has_master(group)
        self.notes["all was read from the slave"] = True
        if self.plan.variant == "promoted slave":
            self.scene.running.kill(slave)
            self.scene.start_broker(group, slave, None, brokerRole="ASYNC_MASTER")
        else:
            self.scene.start_broker(
                group, f"{group}-master", None, brokerRole="ASYNC_MASTER", slaveReadEnable="true"
            )
        self.finish()
