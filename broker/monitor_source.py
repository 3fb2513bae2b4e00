"""What a broker reports to probes and Prometheus: readiness, status, and metrics.

Names and labels are those in a scrape of Java 5's broker (metricsExporterType=PROM): common labels
``cluster``, ``node_type``, ``node_id``; units in the names. Metrics without a counterpart there
begin with ``triomq_``. Source: broker/metrics/BrokerMetricsConstant.java,
store/metrics/DefaultStoreMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.figures.client_figures import client_figures
from triomq.broker.figures.group_lag import GroupLag
from triomq.broker.figures.message_figures import MessageFigures
from triomq.broker.figures.pop_figures import pop_figures
from triomq.broker.figures.store_figures import StoreFigures
from triomq.broker.figures.timer_figures import TimerFigures
from triomq.broker.grpc_endpoint import GrpcEndpoint
from triomq.broker.roles.acting_master import ActingMaster
from triomq.broker.roles.role import Role
from triomq.broker.service_set import ServiceSet
from triomq.broker.services.transactions.transactions import FINISH_EDGES_SECONDS
from triomq.broker.store.store import MessageStore
from triomq.remoting.monitor.access_figures import access_figures, quota_figures
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, by_label, family
from triomq.remoting.monitor.program_figures import creation_figures, server_figures
from triomq.remoting.server.server import Server


@attrs.define(eq=False)
class BrokerSource:
    """Reads the parts of a broker, and changes none."""

    config: BrokerConfig
    store: MessageStore
    role: Role
    services: ServiceSet
    acting_master: ActingMaster | None
    server: Server
    endpoint: GrpcEndpoint | None
    _lag: GroupLag = attrs.field(init=False)
    _stored: StoreFigures = attrs.field(init=False)
    _timed: TimerFigures | None = attrs.field(init=False)
    _series_max: int = attrs.field(default=10_000, init=False)

    def __attrs_post_init__(self) -> None:
        services, clock_ms = self.services, self.services.statistics.clock_ms
        self._lag = GroupLag(self.store, services.topics, services.offsets, services.pops, clock_ms)
        self._stored = StoreFigures(self.store, services.statistics, clock_ms)
        self._timed = TimerFigures(services.timers) if services.timers is not None else None

    async def refresh(self, series_max: int) -> None:
        """Read lags, timers and the oldest message. Raises: StoreIoError. Checkpoint: always."""
        self._series_max = series_max
        await trio.lowlevel.checkpoint()
        await self._lag.refresh(series_max)
        await self._stored.refresh()
        if self._timed is not None:
            await self._timed.refresh()

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
        if parted := self.role.parted():
            return f"it serves nothing: {parted}"
        return None

    def status(self) -> Mapping[str, object]:
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

    def _replication_status(self) -> Mapping[str, object]:
        slave, master = self.role.slave, self.role.master
        if slave is not None:
            status: dict[str, object] = {
                "master": slave.master.ha,
                "following": slave.following,
                "parted": slave.parted.reason,
            }
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
        yield from self._stored.figures()
        yield family(
            "triomq_name_servers_registered",
            sum(server.registered for server in self.services.registrar.servers.values()),
        )
        yield from self._compaction()
        yield family("rocketmq_broker_permission", self.services.live.broker_permission)
        yield family("rocketmq_topic_number", len(self.services.topics.configs))
        yield family("rocketmq_consumer_group_number", len(self.services.groups.configs))
        services = self.services
        messages = MessageFigures(services.statistics, services.topics)
        yield from messages.figures(self._series_max)
        yield from client_figures(services.clients.table, services.topics)
        yield from self._lag.figures()
        if services.pops is not None:
            yield from pop_figures(services.pops, services.reviver)
        yield family("triomq_limit_refusals_total", by_label("limit", self.services.limits.refused))
        if services.check is not None:
            yield from access_figures(services.check.notes)
        if services.quotas is not None:
            yield quota_figures(services.quotas)
        pushed = self.services.pushed
        yield family("triomq_replies_total", by_label("outcome", pushed.outcomes))
        yield family("triomq_replies_waiting", len(pushed))
        yield from self._transactions()
        if self._timed is not None:
            yield from self._timed.figures()
        yield from self._replication()
        figures = self.server.statistics()
        yield from server_figures(figures)
        yield from creation_figures(figures)
        if self.endpoint is not None:
            yield from self.endpoint.figures()

    def _compaction(self) -> Iterator[Family]:
        compactor = self.store.compactor
        queues = compactor.compacted.queues.values()
        if not queues:
            return
        yield family("triomq_compaction_behind_bytes", compactor.lag_bytes)
        outcomes = {
            "copied": compactor.copies_total,
            "removed": compactor.removed_total,
            "without a key": sum(queue.skipped for queue in queues),
        }
        yield family("triomq_compaction_messages_total", by_label("outcome", outcomes))
        yield family("triomq_compaction_failures_total", [Sample(compactor.failures, {})])

    def _replication(self) -> Iterator[Family]:
        tenure, keeper = self.role.tenure, self.role.keeper
        if tenure is not None:
            yield family("triomq_master_epoch", tenure.mastership.epoch)
        if keeper is not None:
            yield family("triomq_sync_state_set_size", len(keeper.leads.members))
        slave, master, end = (self.role.slave, self.role.master, self.store.appended.value)
        if slave is not None:
            yield family("triomq_replication_following", slave.following)
            yield family("triomq_replication_parted", slave.parted.known())
            if self.acting_master is not None:
                yield family("triomq_acting_master", self.acting_master.rules.acting)
            yield family(
                "triomq_replication_received_bytes_total", [Sample(slave.bytes_received, {})]
            )
        elif master is not None:
            behind = [
                Sample(end - replica.acknowledged, {"slave": replica.peer})
                for replica in master.replicas.replicas.values()
            ]
            yield family(
                "triomq_replication_turned_away_total",
                by_label("limit", master.connection_limits.refused),
            )
            yield family("triomq_replication_slaves", len(behind))
            yield family("triomq_replication_behind_bytes", behind)

    def _transactions(self) -> Iterator[Family]:
        checks = self.services.transactions
        if self.role.slave is not None:
            return
        counts = checks.transactions.counts
        yield family("rocketmq_half_messages", len(checks.transactions.open.open))
        yield family("rocketmq_commit_messages_total", by_label("topic", counts.committed))
        yield family("rocketmq_rollback_messages_total", by_label("topic", counts.rolled_back))
        yield family(
            "rocketmq_finish_message_latency_milliseconds",
            [
                Histogram({"topic": topic}, FINISH_EDGES_SECONDS, times.counts, times.seconds)
                for topic, times in counts.finishes.items()
            ],
        )
        yield family(
            "triomq_transaction_checks_total",
            [
                Sample(counts.checks, {"outcome": "asked"}),
                Sample(counts.unasked, {"outcome": "no producer"}),
                Sample(counts.abandoned, {"outcome": "given up"}),
            ],
        )
