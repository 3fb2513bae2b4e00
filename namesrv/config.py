"""NamesrvConfig: every setting of a name server that has an effect, under its Java name."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.namesrv.table_limits import NamesrvTableLimits
from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.core.java_keys import KeyTable, Reason
from triomq.remoting.core.settings import PATH, TEXT, flag, group, number, optional_text, setting
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.server.config import PoolConfig, ServerConfig
from triomq.remoting.server.network_settings import NetworkSettings
from triomq.remoting.tls.security_settings import SecuritySettings

DEFAULT_PORT = 9876
_WORKERS_MAX = 1024
PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Keys that no request may change, whatever ``configBlackList`` contains."""


@attrs.frozen(kw_only=True)
class NamesrvConfig:
    """All settings of one name server.

    listen_host: address to listen on; :: takes IPv6 and IPv4
    listen_port: port to listen on; 0: any free one
    kv_path: file of the key-value table, written on each change
    scan_interval_ms: time between two searches for silent brokers (ms)
    order_messages: routes carry orderTopicConf from the namespace ORDER_TOPIC_CONFIG
    return_order_config: answer a registration with the namespace ORDER_TOPIC_CONFIG
    acting_master: show the smallest slave of a group without master as its master
    notify_min_broker_id: notify the brokers of a group with enableSlaveActingMaster at once when
        another broker has the smallest id; they also ask every second
    delete_missing_topics: a topic that a broker no longer registers leaves the routes
    refuse_foreign: refuse a registration that moves a living broker to another address, and an
        unregistration on another connection than the broker's; then a broker that restarts
        elsewhere is back when its old connection has ended
    wait_for_service: answer no route in the first waitSecondsForService seconds
    wait_for_service_seconds: see needWaitForService
    list_all_topics: answer requests for the list of all topics
    list_topics: answer requests for the topics of a cluster and for unit topics
    protected_keys: settings that no request may change, separated by ;
    route_workers: worker tasks for route lookups
    route_queue: route lookups that may wait; one more is refused as busy
    default_workers: worker tasks for all other requests
    default_queue: other requests that may wait; one more is refused as busy
    """

    listen_host: str = setting("bindAddress", TEXT, "0.0.0.0")
    listen_port: int = number("listenPort", DEFAULT_PORT, low=0, high=65_535)
    kv_path: Path = setting(
        "kvConfigPath",
        PATH,
        attrs.Factory(lambda: Path.home() / "namesrv" / "kvConfig.json"),
        default_text="~/namesrv/kvConfig.json",
    )
    scan_interval_ms: int = number("scanNotActiveBrokerInterval", 5_000)
    order_messages: bool = flag("orderMessageEnable", False)
    return_order_config: bool = flag("returnOrderTopicConfigToBroker", True)
    acting_master: bool = flag("supportActingMaster", False)
    notify_min_broker_id: bool = flag("notifyMinBrokerIdChanged", False)
    delete_missing_topics: bool = flag("deleteTopicWithBrokerRegistration", False)
    refuse_foreign: bool = flag("refuseForeignBrokers", False, own=True)
    wait_for_service: bool = flag("needWaitForService", False)
    wait_for_service_seconds: int = number("waitSecondsForService", 45, low=0)
    list_all_topics: bool = flag("enableAllTopicList", True)
    list_topics: bool = flag("enableTopicList", True)
    protected_keys: str = optional_text(
        "configBlackList", default="configBlackList;configStorePath;kvConfigPath"
    )
    route_workers: int = number("clientRequestThreadPoolNums", 1, high=_WORKERS_MAX)
    route_queue: int = number("clientRequestThreadPoolQueueCapacity", 50_000)
    default_workers: int = number("defaultThreadPoolNums", 4, high=_WORKERS_MAX)
    default_queue: int = number("defaultThreadPoolQueueCapacity", 10_000)
    network: NetworkSettings = group(NetworkSettings)
    monitor: MonitorSettings = group(MonitorSettings)
    security: SecuritySettings = group(SecuritySettings)
    access: WriterSettings = group(WriterSettings)
    audit: AuditSettings = group(AuditSettings)
    limits: NamesrvTableLimits = group(NamesrvTableLimits)
    controller: ControllerSettings = group(ControllerSettings)

    def saved_settings_path(self) -> Path:
        """Return the file that keeps settings that a request changed for the next start."""
        return self.kv_path.with_name("runtime.properties")

    def controller_server(self) -> ServerConfig:
        """Return the configuration of the controller's listening server. Raises: ConfigError."""
        return attrs.evolve(
            self.network.server_config(
                self.listen_host, self.controller.own_peer().port, self.controller.pools()
            ),
            port_setting="controllerDLegerPeers",
        )

    def pools(self) -> Mapping[str, PoolConfig]:
        """Return the pools of the server, by the names that the handler table uses."""
        return {
            "route": PoolConfig(workers=self.route_workers, queue_requests_max=self.route_queue),
            "default": PoolConfig(
                workers=self.default_workers, queue_requests_max=self.default_queue
            ),
        }


@attrs.define(eq=False)
class RunningConfig:
    """The configuration in force. A request may replace it."""

    current: NamesrvConfig


_REASONS = {
    "graceful": Reason(
        "a stopping server always finishes what it accepted and sends the other requests away"
    ),
    "internal": Reason("set by Java itself or by its launch scripts"),
    "netty": Reason("a detail of Netty or of socket buffers"),
    "threads": Reason("sizes a Java thread pool or queue that has no counterpart here"),
    "elections": Reason(
        "the controller sees within half a second that a master is silent, or another broker can"
        " take its place, and reads what is on its disk"
    ),
    "jraft": Reason(
        "controllers that agree by jRaft",
        "remove the key, and name the controllers by controllerDLegerPeers",
    ),
    "controller-metrics": Reason("figures of the controller beside those of the name server"),
    "environments": Reason("looking up missing topics in another environment"),
}

NAMESRV_KEYS = KeyTable("mqnamesrv", Path(__file__).with_name("java_keys.tsv"), _REASONS)
"""The keys of Java's NamesrvConfig, NettyServerConfig, NettyClientConfig, ControllerConfig and
JraftConfig.
"""
