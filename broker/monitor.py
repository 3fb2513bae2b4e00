"""What a broker reports to probes and Prometheus: readiness, status, and metrics.

Names and labels are those in a scrape of Java 5's broker (metricsExporterType=PROM): common labels
``cluster``, ``node_type``, ``node_id``; units in the names. Metrics without a counterpart there
begin with ``triomq_``. Source: broker/metrics/BrokerMetricsConstant.java,
store/metrics/DefaultStoreMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig
from triomq.broker.grpc_endpoint import GrpcEndpoint
from triomq.broker.roles.acting_master import ActingMaster
from triomq.broker.roles.role import Role
from triomq.broker.service_set import ServiceSet
from triomq.broker.services.pop.reviver import Reviver
from triomq.broker.store.store import MessageStore
from triomq.remoting.monitor.metrics import Family, Sample, counter, gauge, samples_by_limit
from triomq.remoting.monitor.program_figures import server_figures
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.server.server import Server

ITEM_COUNTERS = (
    ("rocketmq_messages_in_total", "Messages stored.", "TOPIC_PUT_NUMS"),
    ("rocketmq_throughput_in_total", "Bytes of messages stored.", "TOPIC_PUT_SIZE"),
    ("rocketmq_messages_out_total", "Messages handed out.", "GROUP_GET_NUMS"),
    ("rocketmq_throughput_out_total", "Bytes of messages handed out.", "GROUP_GET_SIZE"),
    (
        "rocketmq_send_to_dlq_messages_total",
        "Messages that became dead letters.",
        "DLQ_PUT_NUMS",
    ),
)
"""Name and meaning of each counter that is made from a statistics item."""
_STORAGE = {"storage_type": "local", "storage_medium": "disk"}


@attrs.frozen(eq=False)
class BrokerSource:
    """Reads the parts of a broker, and changes none."""

    config: BrokerConfig
    store: MessageStore
    role: Role
    services: ServiceSet
    acting_master: ActingMaster | None
    server: Server
    endpoint: GrpcEndpoint | None

    def labels(self) -> Mapping[str, str]:
        """Return Java's common labels."""
        return {
            "cluster": self.config.cluster_name,
            "node_type": "broker",
            "node_id": self.config.broker_name,
            "broker_id": str(self.config.broker_id),
        }

    def not_ready(self) -> str | None:
        """Return why clients should not be sent here, None if they may be.

        Clients find a broker through a name server, so it must be registered with at least one.
        """
        servers = self.services.registrar.servers
        if servers and not any(server.registered for server in servers.values()):
            return (
                f"no name server knows this broker: none of {', '.join(servers)} took its"
                " registration"
            )
        if self.store.health.failed:
            return "the store has failed"
        return None

    def status(self) -> Mapping[str, Any]:
        """Return what this broker is, and the bounds of its log."""
        store = self.store
        return {
            "cluster": self.config.cluster_name,
            "brokerName": self.config.broker_name,
            "brokerId": self.config.broker_id,
            "brokerRole": self.config.broker_role.value,
            "address": self.services.registrar.settings.broker_address,
            "nameServers": {
                address: server.registered
                for address, server in self.services.registrar.servers.items()
            },
            "writable": store.health.writable,
            "minOffset": store.first_offset,
            "maxOffset": store.appended.value,
            "flushedOffset": store.flushed.value,
            **self._replication_status(),
        }

    def _replication_status(self) -> Mapping[str, Any]:
        slave, master = self.role.slave, self.role.master
        if slave is not None:
            status: dict[str, Any] = {"master": slave.master.ha, "following": slave.following}
            if self.acting_master is not None:
                status["duty"] = self.acting_master.rules.role.value
            return status
        end = self.store.appended.value
        return (
            {
                "slaves": {
                    replica.peer: {"behindBytes": end - replica.acknowledged}
                    for replica in master.replicas.replicas.values()
                }
            }
            if master
            else {}
        )

    def figures(self) -> Iterator[Family]:
        """Yield all families, one in each step: there may be many topics and groups."""
        yield from self._store()
        yield from self._compaction()
        yield gauge(
            "rocketmq_broker_permission",
            "4: clients may read, 2: write, 6: both.",
            self.services.live.broker_permission,
        )
        yield gauge("rocketmq_topic_number", "Topics.", len(self.services.topics.configs))
        yield gauge(
            "rocketmq_consumer_group_number", "Consumer groups.", len(self.services.groups.configs)
        )
        for name, meaning, item in ITEM_COUNTERS:
            yield counter(name, meaning, self._items(item))
        clients = self.services.clients.table
        yield gauge(
            "rocketmq_consumer_connections",
            "Connected members of each consumer group.",
            [
                Sample(len(group.members), {"consumer_group": group.name})
                for group in clients.consumers.values()
            ],
        )
        yield gauge(
            "rocketmq_producer_connections",
            "Connected producers.",
            sum(len(members) for members in clients.producers.values()),
        )
        yield self._lag()
        yield from self._pops()
        yield counter(
            "triomq_limit_refusals_total",
            "Requests that were refused because a limit of the broker's tables was reached.",
            samples_by_limit(self.services.limits.refused),
        )
        pushed = self.services.pushed
        yield counter(
            "triomq_replies_total",
            "Replies of request-reply, by what became of their delivery to the requester.",
            [Sample(count, {"outcome": outcome}) for outcome, count in pushed.outcomes.items()],
        )
        yield gauge(
            "triomq_replies_waiting", "Replies whose requester has not answered.", len(pushed)
        )
        yield from self._transactions()
        yield from self._timers()
        yield from self._replication()
        yield from server_figures(self.server.statistics())
        if self.endpoint is not None:
            yield from self.endpoint.figures()

    def _store(self) -> Iterator[Family]:
        store = self.store
        try:
            usage = store.disk.usage(self.config.store.commitlog)
        except OSError:
            usage = None
        if usage is not None:
            yield gauge(
                "rocketmq_storage_size_bytes",
                "Used space of the commit log's file system.",
                [Sample(usage.used, _STORAGE)],
            )
            yield gauge(
                "triomq_storage_used_ratio",
                "The same as a share of what users may use.",
                usage.ratio,
            )
        behind = store.appended.value - store.flushed.value
        yield gauge(
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the log that are not on the disk yet.",
            [Sample(behind, _STORAGE)],
        )
        behind = store.confirmed.value - store.indexed.value
        yield gauge(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of the log that are not in the consume queues yet.",
            [Sample(behind, _STORAGE)],
        )
        yield gauge(
            "triomq_storage_writable",
            "1 when the store takes messages of clients.",
            store.health.writable,
        )
        yield gauge("triomq_storage_min_offset_bytes", "Where the log begins.", store.first_offset)
        yield gauge("triomq_storage_max_offset_bytes", "Where the log ends.", store.appended.value)
        yield gauge(
            "triomq_storage_append_seconds_max",
            "Longest append since the start.",
            store.append_max_seconds,
        )
        yield gauge(
            "triomq_name_servers_registered",
            "Name servers that know this broker.",
            sum(server.registered for server in self.services.registrar.servers.values()),
        )

    def _compaction(self) -> Iterator[Family]:
        compactor = self.store.compactor
        queues = compactor.compacted.queues.values()
        if not queues:
            return
        yield gauge(
            "triomq_compaction_behind_bytes",
            "Bytes of the log whose messages have no copy yet; the log keeps them.",
            compactor.lag_bytes,
        )
        outcomes = {
            "copied": compactor.copies_total,
            "removed": compactor.removed_total,
            "without a key": sum(queue.skipped for queue in queues),
        }
        yield counter(
            "triomq_compaction_messages_total",
            "Messages of compaction topics by what became of them.",
            [Sample(count, {"outcome": name}) for name, count in outcomes.items()],
        )
        yield counter(
            "triomq_compaction_failures_total",
            "Rounds of copying, and searches for old values, that ended with an error.",
            [Sample(compactor.failures, {})],
        )

    def _replication(self) -> Iterator[Family]:
        slave, master, end = (self.role.slave, self.role.master, self.store.appended.value)
        if slave is not None:
            yield gauge(
                "triomq_replication_following",
                "1 while this slave hears from its master.",
                slave.following,
            )
            if self.acting_master is not None:
                yield gauge(
                    "triomq_acting_master",
                    "1 while this slave acts for its master.",
                    self.acting_master.rules.acting,
                )
            yield counter(
                "triomq_replication_received_bytes_total",
                "Bytes of the log that came from the master.",
                [Sample(slave.bytes_received, {})],
            )
        elif master is not None:
            behind = [
                Sample(end - replica.acknowledged, {"slave": replica.peer})
                for replica in master.replicas.replicas.values()
            ]
            yield counter(
                "triomq_replication_turned_away_total",
                "Connections that the HA port did not take.",
                samples_by_limit(master.connection_limits.refused),
            )
            yield gauge("triomq_replication_slaves", "Slaves that follow.", len(behind))
            yield gauge(
                "triomq_replication_behind_bytes",
                "Bytes of the log that a slave has not reported yet.",
                behind,
            )

    def _timers(self) -> Iterator[Family]:
        timers = self.services.timers
        if timers is None:
            return
        behind_ms, not_read, _ = timers.behind()
        yield gauge(
            "rocketmq_timer_dequeue_lag",
            "Milliseconds by which the delivery of timed messages is behind.",
            behind_ms,
        )
        yield gauge(
            "rocketmq_timer_enqueue_lag",
            "Timed messages that are not in the timer wheel yet.",
            not_read,
        )
        outcomes = {
            "put into the wheel": timers.enqueued,
            "delivered": timers.delivered,
            "dropped": timers.dropped,
            "refused": timers.refused,
        }
        yield counter(
            "triomq_timers_total",
            "Timed messages by what became of them; dropped are recalled ones and those without a"
            " topic, refused those for a full second.",
            [Sample(count, {"outcome": name}) for name, count in outcomes.items()],
        )

    def _pops(self) -> Iterator[Family]:
        pops, reviver = self.services.pops, self.services.reviver
        if pops is None:
            return
        yield gauge(
            "rocketmq_consumer_inflight_messages",
            "Messages that were popped, and neither acknowledged nor visible again.",
            [
                Sample(count, {"topic": topic, "consumer_group": group, **self._kind_of(topic)})
                for group, topic, count in pops.in_flight.by_topic()
            ],
        )
        yield gauge(
            "rocketmq_pop_offset_buffer_size",
            "Moves of positions that wait for the disk, or for a slave.",
            pops.uncovered,
        )
        yield gauge(
            "rocketmq_pop_checkpoint_buffer_size", "Check points in memory.", len(pops.in_flight)
        )
        outcomes = {"popped": pops.popped, "acknowledged": pops.acknowledged}
        if reviver is not None:
            outcomes |= {"came again": reviver.revived, "dead": reviver.dead}
            yield from _revived(reviver)
        yield counter(
            "triomq_pops_total",
            "Messages of POP by what became of them.",
            [Sample(count, {"outcome": name}) for name, count in outcomes.items()],
        )

    def _transactions(self) -> Iterator[Family]:
        checks = self.services.transactions
        if self.role.slave is not None:
            return
        counts = checks.transactions.counts
        yield gauge(
            "rocketmq_half_messages",
            "Transactions that are neither committed nor rolled back.",
            len(checks.transactions.open.open),
        )
        yield counter(
            "rocketmq_commit_messages_total",
            "Committed transactions.",
            [Sample(count, {"topic": topic}) for topic, count in counts.committed.items()],
        )
        yield counter(
            "rocketmq_rollback_messages_total",
            "Transactions that were rolled back.",
            [Sample(count, {"topic": topic}) for topic, count in counts.rolled_back.items()],
        )
        yield counter(
            "triomq_transaction_checks_total",
            "Transactions whose producer group was to be asked.",
            [
                Sample(counts.checks, {"outcome": "asked"}),
                Sample(counts.unasked, {"outcome": "no producer"}),
                Sample(counts.abandoned, {"outcome": "given up"}),
            ],
        )

    def _items(self, item: str) -> list[Sample]:
        samples = []
        for (kind, key), statistics in self.services.statistics.items.items():
            if kind == item:
                labels = dict(zip(("topic", "consumer_group"), key.split("@", 1), strict=False))
                samples.append(Sample(statistics.value, labels | self._kind_of(labels["topic"])))
        return samples

    def _kind_of(self, topic: str) -> dict[str, str]:
        return {
            "is_system": "true" if self.services.topics.is_system_topic(topic) else "false",
            "is_retry": "true" if topic.startswith(RETRY_PREFIX) else "false",
        }

    def _lag(self) -> Family:
        samples = []
        for group, topics in self.services.offsets.committed.items():
            for topic, queues in topics.items():
                lag = sum(
                    max(0, self.store.max_offset(topic, queue_id) - offset)
                    for queue_id, offset in queues.items()
                )
                samples.append(
                    Sample(lag, {"topic": topic, "consumer_group": group, **self._kind_of(topic)})
                )
        return gauge(
            "rocketmq_consumer_lag_messages",
            "Messages between a group's committed offsets and the ends of the queues.",
            samples,
        )


def _revived(reviver: Reviver) -> Iterator[Family]:
    """What Java tells of the revive topic. Source: broker/metrics/PopMetricsManager.java."""
    yield counter(
        "rocketmq_pop_revive_in_message_total",
        "Check points and acknowledgements that were stored.",
        [
            Sample(count, {"revive_message_type": kind, "put_status": "PUT_OK"})
            for kind, count in reviver.log.stored.items()
        ],
    )
    yield counter(
        "rocketmq_pop_revive_out_message_total",
        "Those that were read from the revive topic.",
        [Sample(count, {"revive_message_type": kind}) for kind, count in reviver.read.items()],
    )
    yield counter(
        "rocketmq_pop_revive_retry_messages_total",
        "Messages that came again.",
        [Sample(reviver.revived, {"put_status": "PUT_OK"})],
    )
    behind = list(reviver.behind())
    yield gauge(
        "rocketmq_pop_revive_lag",
        "Records of the revive topic that are not done.",
        [Sample(count, {"queue_id": str(queue_id)}) for queue_id, count, _ in behind],
    )
    yield gauge(
        "rocketmq_pop_revive_latency",
        "Milliseconds since the oldest of them was due.",
        [Sample(late_ms, {"queue_id": str(queue_id)}) for queue_id, _, late_ms in behind],
    )
