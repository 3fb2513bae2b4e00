"""NamesrvConfig: every setting of a name server that has an effect, under its Java name."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.namesrv.limits import LimitSettings
from triomq.remoting.java_keys import KeyTable, Reason
from triomq.remoting.monitor.settings import MonitorSettings
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.settings import NetworkSettings
from triomq.remoting.settings import BOOLEAN, INTEGER, OPTIONAL_TEXT, PATH, TEXT, group, setting
from triomq.remoting.tls.settings import SecuritySettings

DEFAULT_PORT = 9876
_INT_MAX = 2**31 - 1
_WORKERS_MAX = 1024
PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Keys that no request may change, whatever ``configBlackList`` says."""


@attrs.frozen(kw_only=True)
class NamesrvConfig:
    """All settings of one name server."""

    listen_host: str = setting("bindAddress", TEXT, "0.0.0.0", "address to listen on; :: takes IPv6 and IPv4")
    listen_port: int = setting("listenPort", INTEGER, DEFAULT_PORT, "port to listen on; 0: any free one", low=0, high=65_535)
    kv_path: Path = setting(
        "kvConfigPath",
        PATH,
        attrs.Factory(lambda: Path.home() / "namesrv" / "kvConfig.json"),
        "file of the key-value table, written on each change",
        default_text="~/namesrv/kvConfig.json",
    )
    scan_interval_ms: int = setting("scanNotActiveBrokerInterval", INTEGER, 5_000, "how often silent brokers are looked for (ms)", low=1, high=_INT_MAX)
    order_messages: bool = setting("orderMessageEnable", BOOLEAN, False, "routes carry orderTopicConf from the namespace ORDER_TOPIC_CONFIG")
    return_order_config: bool = setting("returnOrderTopicConfigToBroker", BOOLEAN, True, "answer a registration with the namespace ORDER_TOPIC_CONFIG")
    acting_master: bool = setting("supportActingMaster", BOOLEAN, False, "show the smallest slave of a group without master as its master")
    notify_smallest_id: bool = setting(
        "notifyMinBrokerIdChanged", BOOLEAN, False, "tell the brokers of a group with enableSlaveActingMaster at once when another one has the smallest id; they also ask every second"
    )
    delete_missing_topics: bool = setting(
        "deleteTopicWithBrokerRegistration", BOOLEAN, False, "a topic that a broker no longer registers leaves the routes"
    )
    refuse_foreign: bool = setting(
        "refuseForeignBrokers",
        BOOLEAN,
        False,
        "refuse a registration that moves a living broker to another address, and an unregistration on another connection than the broker's; "
        "then a broker that restarts elsewhere is back when its old connection has ended",
        own=True,
    )
    wait_for_service: bool = setting("needWaitForService", BOOLEAN, False, "answer no route in the first waitSecondsForService seconds")
    wait_for_service_seconds: int = setting("waitSecondsForService", INTEGER, 45, "see needWaitForService", low=0, high=_INT_MAX)
    list_all_topics: bool = setting("enableAllTopicList", BOOLEAN, True, "answer requests for the list of all topics")
    list_topics: bool = setting("enableTopicList", BOOLEAN, True, "answer requests for the topics of a cluster and for unit topics")
    protected_keys: str = setting(
        "configBlackList", OPTIONAL_TEXT, "configBlackList;configStorePath;kvConfigPath", "settings that no request may change, separated by ;"
    )
    route_workers: int = setting("clientRequestThreadPoolNums", INTEGER, 1, "worker tasks for route lookups", low=1, high=_WORKERS_MAX)
    route_queue: int = setting("clientRequestThreadPoolQueueCapacity", INTEGER, 50_000, "route lookups that may wait; one more is refused as busy", low=1, high=_INT_MAX)
    default_workers: int = setting("defaultThreadPoolNums", INTEGER, 4, "worker tasks for all other requests", low=1, high=_WORKERS_MAX)
    default_queue: int = setting("defaultThreadPoolQueueCapacity", INTEGER, 10_000, "other requests that may wait; one more is refused as busy", low=1, high=_INT_MAX)
    network: NetworkSettings = group(NetworkSettings)
    monitor: MonitorSettings = group(MonitorSettings)
    security: SecuritySettings = group(SecuritySettings)
    limits: LimitSettings = group(LimitSettings)

    def saved_settings_path(self) -> Path:
        """Where settings that are changed by a request are kept for the next start."""
        return self.kv_path.with_name("runtime.properties")

    def pools(self) -> Mapping[str, PoolConfig]:
        """The pools as the server wants them, by the names that the handler table uses."""
        return {
            "route": PoolConfig(workers=self.route_workers, queue_requests_max=self.route_queue),
            "default": PoolConfig(workers=self.default_workers, queue_requests_max=self.default_queue),
        }


_REASONS = {
    "graceful": Reason("a stopping server always finishes what it accepted and sends the other requests away"),
    "internal": Reason("set by Java itself or by its launch scripts"),
    "netty": Reason("a detail of Netty or of socket buffers"),
    "threads": Reason("sizes a Java thread pool or queue that has no counterpart here"),
    "controller": Reason("the controller that elects masters", "remove the key, and run Java's controller beside the name servers if brokers need one"),
    "environments": Reason("looking up missing topics in another environment"),
}

NAMESRV_KEYS = KeyTable(Path(__file__).with_name("java_keys.tsv"), _REASONS)
"""The keys of Java's NamesrvConfig, NettyServerConfig, NettyClientConfig, ControllerConfig and JraftConfig."""
