"""What a broker tells its probes and Prometheus: readiness, facts, metrics under RocketMQ's names where RocketMQ has them.

Names and labels as a scrape of Java 5's broker shows them (metricsExporterType=PROM): common labels ``cluster``, ``node_type``,
``node_id``; units in the names.  What has no counterpart there begins with ``triomq_``.
Source: broker/metrics/BrokerMetricsConstant.java, store/metrics/DefaultStoreMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig
from triomq.broker.replicating import Replication
from triomq.broker.services.acting import ActingMaster
from triomq.broker.services.groups import ClientGroups
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.registration import Registration
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.limits import Limits
from triomq.remoting.monitor.metrics import Family, Sample, gauge
from triomq.remoting.monitor.process import server_figures
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.server import Server

_STORAGE = {"storage_type": "local", "storage_medium": "disk"}


@attrs.define(eq=False, kw_only=True)
class BrokerSource:
    """Reads, changes nothing."""

    config: BrokerConfig
    store: MessageStore
    live: LiveSettings
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    clients: ClientGroups[Connection]
    limits: Limits
    statistics: Statistics
    registration: Registration
    replication: Replication
    acting: ActingMaster | None
    server: Server

    def labels(self) -> Mapping[str, str]:
        """Java's common labels."""
        return {"cluster": self.config.cluster_name, "node_type": "broker", "node_id": self.config.broker_name, "broker_id": str(self.config.broker_id)}

    def not_ready(self) -> str | None:
        """Clients find a broker through a name server: without one that knows it, it is of no use to new ones."""
        servers = self.registration.servers
        if servers and not any(server.registered for server in servers.values()):
            return f"no name server knows this broker: none of {', '.join(servers)} took its registration"
        if self.store.health.failed:
            return "the store has failed"
        return None

    def status(self) -> Mapping[str, Any]:
        """Who this is and how far its log goes."""
        figures = self.store.statistics()
        return {
            "cluster": self.config.cluster_name,
            "brokerName": self.config.broker_name,
            "brokerId": self.config.broker_id,
            "brokerRole": self.config.broker_role.value,
            "address": self.registration.settings.broker_address,
            "nameServers": {address: server.registered for address, server in self.registration.servers.items()},
            "writable": figures.writable,
            "minOffset": figures.oldest,
            "maxOffset": figures.appended,
            "flushedOffset": figures.flushed,
            **self._replication_status(),
        }

    def _replication_status(self) -> Mapping[str, Any]:
        slave, master = self.replication.slave, self.replication.master
        if slave is not None:
            duty = {"duty": self.acting.rules.duty.value} if self.acting is not None else {}
            return {"master": slave.master.ha, "following": slave.following, **duty}
        end = self.store.appended.value
        return {"slaves": {replica.peer: {"behindBytes": end - replica.acknowledged} for replica in master.replicas.replicas.values()}} if master else {}

    def figures(self) -> Iterator[Family]:
        """All families; topics and groups may be many, so each is a step of its own."""
        yield from self._store()
        yield gauge("rocketmq_broker_permission", "4: clients may read, 2: write, 6: both.", self.live.broker_permission)
        yield gauge("rocketmq_topic_number", "Topics.", len(self.topics.configs))
        yield gauge("rocketmq_consumer_group_number", "Consumer groups.", len(self.groups.configs))
        yield self._items("rocketmq_messages_in_total", "Messages stored.", "TOPIC_PUT_NUMS", ("topic",))
        yield self._items("rocketmq_throughput_in_total", "Bytes of messages stored.", "TOPIC_PUT_SIZE", ("topic",))
        yield self._items("rocketmq_messages_out_total", "Messages handed out.", "GROUP_GET_NUMS", ("topic", "consumer_group"))
        yield self._items("rocketmq_throughput_out_total", "Bytes of messages handed out.", "GROUP_GET_SIZE", ("topic", "consumer_group"))
        yield self._items("rocketmq_send_to_dlq_messages_total", "Messages that became dead letters.", "DLQ_PUT_NUMS", ("topic", "consumer_group"))
        yield self._connections()
        yield gauge("rocketmq_producer_connections", "Connected producers.", sum(len(members) for members in self.clients.table.producers.values()))
        yield self._lag()
        refused = [Sample(count, {"limit": name}) for name, count in sorted(self.limits.refused.items())]
        yield Family("triomq_limit_refusals_total", "counter", "Requests that were refused because a limit of the broker's tables was reached.", refused)
        yield from self._replication()
        yield from server_figures(self.server.statistics())

    def _store(self) -> Iterator[Family]:
        figures = self.store.statistics()
        try:
            usage = self.store.disk.usage(self.config.store.commitlog)
        except OSError:
            usage = None
        if usage is not None:
            yield Family("rocketmq_storage_size_bytes", "gauge", "Used space of the commit log's file system.", [Sample(usage.used, _STORAGE)])
            yield gauge("triomq_storage_used_ratio", "The same as a share of what users may use.", usage.ratio)
        behind = figures.appended - figures.flushed
        yield Family("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of the log that are not on the disk yet.", [Sample(behind, _STORAGE)])
        behind = figures.confirmed - figures.indexed
        yield Family("rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes of the log that are not in the consume queues yet.", [Sample(behind, _STORAGE)])
        yield gauge("triomq_storage_writable", "1 when the store takes messages of clients.", figures.writable)
        yield gauge("triomq_storage_min_offset_bytes", "Where the log begins.", figures.oldest)
        yield gauge("triomq_storage_max_offset_bytes", "Where the log ends.", figures.appended)
        yield gauge("triomq_storage_append_seconds_max", "Longest append since the start.", figures.append_max_ms / 1000)
        yield gauge("triomq_name_servers_registered", "Name servers that know this broker.", sum(server.registered for server in self.registration.servers.values()))

    def _replication(self) -> Iterator[Family]:
        slave, master, end = self.replication.slave, self.replication.master, self.store.appended.value
        if slave is not None:
            yield gauge("triomq_replication_following", "1 while this slave hears from its master.", slave.following)
            if self.acting is not None:
                yield gauge("triomq_acting_master", "1 while this slave acts for its master.", self.acting.acting)
            yield Family("triomq_replication_received_bytes_total", "counter", "Bytes of the log that came from the master.", [Sample(slave.bytes_received, {})])
        elif master is not None:
            behind = [Sample(end - replica.acknowledged, {"slave": replica.peer}) for replica in master.replicas.replicas.values()]
            turned_away = [Sample(count, {"limit": name}) for name, count in sorted(master.admission.refused.items())]
            yield Family("triomq_replication_turned_away_total", "counter", "Connections that the HA port did not take.", turned_away)
            yield gauge("triomq_replication_slaves", "Slaves that follow.", len(behind))
            yield Family("triomq_replication_behind_bytes", "gauge", "Bytes of the log that a slave has not reported yet.", behind)

    def _items(self, name: str, meaning: str, item: str, parts: tuple[str, ...]) -> Family:
        samples = []
        for (kind, key), one in self.statistics.items.items():
            if kind != item:
                continue
            labels = dict(zip(parts, key.split("@", 1), strict=False))
            samples.append(Sample(one.value, {**labels, **self._kind_of(labels.get("topic", ""))}))
        return Family(name, "counter", meaning, samples)

    def _kind_of(self, topic: str) -> Mapping[str, str]:
        return {"is_system": "true" if self.topics.is_system_topic(topic) else "false", "is_retry": "true" if topic.startswith(RETRY_PREFIX) else "false"}

    def _connections(self) -> Family:
        samples = [Sample(len(group.members), {"consumer_group": group.name}) for group in self.clients.table.consumers.values()]
        return Family("rocketmq_consumer_connections", "gauge", "Connected members of each consumer group.", samples)

    def _lag(self) -> Family:
        samples = []
        for group, topics in self.offsets.committed.items():
            for topic, queues in topics.items():
                lag = sum(max(0, self.store.max_offset(topic, queue_id) - offset) for queue_id, offset in queues.items())
                samples.append(Sample(lag, {"topic": topic, "consumer_group": group, **self._kind_of(topic)}))
        return Family("rocketmq_consumer_lag_messages", "gauge", "Messages between a group's committed offsets and the ends of the queues.", samples)
