"""BrokerConfig: every setting of a broker that has an effect, under its Java name.

docs/configuration/mqbroker.md is made from it. Values only: ``triomq.broker.options`` reads files
and options. Each group of settings is a class of its own, so that each part of the broker gets only
the settings that it needs.
"""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

import enum
import socket
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.broker.config.advertise import local_address
from triomq.broker.config.endpoint_settings import EndpointSettings
from triomq.broker.config.pool_settings import PoolSettings
from triomq.broker.config.replication_settings import ReplicationSettings
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.pop.pop_settings import PopSettings
from triomq.broker.services.table_limits import BrokerTableLimits
from triomq.broker.services.timers.timer_settings import TimerSettings
from triomq.broker.store.core.config import StoreConfig
from triomq.remoting.access.access_settings import AccessSettings, PlainAclSettings
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.core.settings import (
    ADDRESSES,
    LONG_MAX,
    OPTIONAL_TEXT,
    TEXT,
    ConfigError,
    choice,
    flag,
    group,
    number,
    setting,
)
from triomq.remoting.monitor.export_settings import ExportSettings
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.server.network_settings import NetworkSettings
from triomq.remoting.tls.security_settings import SecuritySettings

DEFAULT_PORT = 10911
FAST_PORT_BELOW = 2


class BrokerRole(enum.Enum):
    """Java's ``brokerRole``: see ``check_role``, and docs/replication.md."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """All settings of one broker.

    cluster_name: the cluster that this broker joins
    broker_name: name of this broker, unique in the cluster
    broker_id: 0: master; a slave has a number from 1 on, unique under its broker name
    broker_role: ASYNC_MASTER: slaves follow, no send waits for them; SYNC_MASTER: a send waits for
        them; SLAVE: follows the master of its broker name
    broker_ip: address or host name that clients connect to; checked at start
    ha_ip: address announced to slaves
    listen_host: address to listen on, for listenPort and fastListenPort; :: takes IPv6 and IPv4
    listen_port: port to listen on; 0: any free one
    fast_port: second port, which serves everything but pulls: clients with the VIP channel send
        there, Java slaves copy the topics; -1: listenPort - 2; 0: none
    ha_port: port where slaves fetch the log; 0: any free one, as with listenPort=0
    ha_listen_host: address that haListenPort listens on, which only slaves need to reach
    namesrv_addresses: name servers to register with: host:port, separated by ;
    namesrv_dns: register with every address that a host name in namesrvAddr has, and follow its
        changes
    namesrv_follow_ms: how often such host names are looked up again (ms)
    namesrv_address_server: without namesrvAddr: ask rmqAddressServerDomain for the addresses of the
        name servers
    namesrv_fetch_ms: how often rmqAddressServerDomain is asked again (ms)
    namesrv_domain: host, host:port or complete URL that answers with host:port;host:port
    namesrv_subgroup: last part of that URL
    register_period_ms: how often the broker registers again (ms); limited to 10 to 60 s
    register_timeout_ms: how long a registration may take (ms)
    protected_keys: settings that no request may change, separated by ;
    force_register: send all topics each time; false: ask first whether they changed
    deflated_registration: send all topics deflated, without their system flags; always done if a
        frame cannot hold them as JSON
    split_registration: send all topics in parts; not for name servers with
        deleteTopicWithBrokerRegistration=true
    split_registration_count: topics in such a part
    region_id: MSG_REGION of messages and answers
    trace_on: tell clients that they may send traces
    default_topic_queue_count: queues of a topic created by a send, at most
    cluster_topic: the topic named after the cluster may be read and written
    broker_topic: the topic named after the broker may be read and written
    trace_topic: create the topic for message traces at start
    trace_topic_name: name of the topic for message traces
    store_replies: store the replies of request-reply in the topic <cluster>_REPLY_TOPIC as well
    transaction_op_bytes: how long the list of ended transactions in one record may be (bytes)
    keep_filters_ms: a filter whose group has been away for this time is forgotten (ms)
    start_beside_master: start although another master of this name is alive (option --force):
        clients reach one of the two, and not the messages of the other
    pull_expired_ms: a subscription that came with a pull is forgotten after this time (ms)
    channel_expired_ms: silence after which a client counts as gone (ms)
    offset_flush_ms: how often changed consumer offsets are saved (ms)
    """

    cluster_name: str = setting("brokerClusterName", TEXT, "DefaultCluster")
    broker_name: str = setting(
        "brokerName", TEXT, attrs.Factory(socket.gethostname), default_text="host name"
    )
    broker_id: int = number("brokerId", 0, low=-1)
    broker_role: BrokerRole = setting("brokerRole", choice(BrokerRole), BrokerRole.ASYNC_MASTER)
    broker_ip: str = setting(
        "brokerIP1",
        TEXT,
        attrs.Factory(local_address),
        default_text="first public IPv4 address of this machine, else the last private one",
    )
    ha_ip: str = setting(
        "brokerIP2",
        TEXT,
        attrs.Factory(lambda self: self.broker_ip, takes_self=True),
        default_text="brokerIP1",
    )
    listen_host: str = setting("bindAddress", TEXT, "0.0.0.0")
    listen_port: int = number("listenPort", DEFAULT_PORT, low=0, high=65_535)
    fast_port: int = number("fastListenPort", -1, low=-1, high=65_535, own=True)
    ha_port: int = number(
        "haListenPort",
        attrs.Factory(lambda self: min(self.listen_port + 1, 65_535), takes_self=True),
        low=0,
        high=65_535,
        default_text="listenPort + 1",
    )
    ha_listen_host: str = setting(
        "haBindAddress",
        TEXT,
        attrs.Factory(lambda self: self.listen_host, takes_self=True),
        default_text="bindAddress",
        own=True,
    )
    namesrv_addresses: tuple[str, ...] = setting(
        "namesrvAddr", ADDRESSES, (), default_text="environment NAMESRV_ADDR"
    )
    namesrv_dns: bool = flag("fetchNameSrvAddrByDnsLookup", False)
    namesrv_follow_ms: int = number("updateNameServerAddrPeriod", 120_000)
    namesrv_address_server: bool = flag("fetchNamesrvAddrByAddressServer", False)
    namesrv_fetch_ms: int = number("fetchNamesrvAddrInterval", 10_000)
    namesrv_domain: str = setting(
        "rmqAddressServerDomain",
        TEXT,
        "jmenv.tbsite.net",
        default_text="jmenv.tbsite.net, that of Java's system property rocketmq.namesrv.domain",
    )
    namesrv_subgroup: str = setting(
        "rmqAddressServerSubGroup",
        TEXT,
        "nsaddr",
        default_text="nsaddr, that of rocketmq.namesrv.domain.subgroup",
    )
    register_period_ms: int = number(
        "registerNameServerPeriod", 30_000, low=10_000, high=60_000, clamp=True
    )
    register_timeout_ms: int = number("registerBrokerTimeoutMills", 24_000)
    protected_keys: str = setting(
        "configBlackList", OPTIONAL_TEXT, "configBlackList;brokerConfigPath"
    )
    force_register: bool = flag("forceRegister", True)
    deflated_registration: bool = flag("compressedRegister", False)
    split_registration: bool = flag("enableSplitRegistration", False)
    split_registration_count: int = number("splitRegistrationSize", 800)
    live: LiveSettings = group(LiveSettings)
    region_id: str = setting("regionId", TEXT, "DefaultRegion")
    trace_on: bool = flag("traceOn", True)
    default_topic_queue_count: int = number("defaultTopicQueueNums", 8, high=65_535)
    cluster_topic: bool = flag("clusterTopicEnable", True)
    broker_topic: bool = flag("brokerTopicEnable", True)
    trace_topic: bool = flag("traceTopicEnable", False)
    trace_topic_name: str = setting("msgTraceTopicName", TEXT, "RMQ_SYS_TRACE_TOPIC")
    store_replies: bool = flag("storeReplyMessageEnable", True)
    transaction_op_bytes: int = number("transactionOpMsgMaxSize", 4096, low=32, high=65_536)
    keep_filters_ms: int = number("filterDataCleanTimeSpan", 86_400_000, low=0, high=LONG_MAX)
    start_beside_master: bool = flag("startBesideMaster", False, own=True)
    pull_expired_ms: int = number("subscriptionExpiredTimeout", 600_000)
    channel_expired_ms: int = number("channelExpiredTimeout", 120_000)
    offset_flush_ms: int = number("flushConsumerOffsetInterval", 5_000)
    store: StoreConfig = group(StoreConfig)
    timers: TimerSettings = group(TimerSettings)
    pop: PopSettings = group(PopSettings)
    network: NetworkSettings = group(NetworkSettings)
    monitor: MonitorSettings = group(MonitorSettings)
    exports: ExportSettings = group(ExportSettings)
    security: SecuritySettings = group(SecuritySettings)
    access: AccessSettings = group(AccessSettings)
    plain_acl: PlainAclSettings = group(PlainAclSettings)
    audit: AuditSettings = group(AuditSettings)
    endpoint: EndpointSettings = group(EndpointSettings)
    replication: ReplicationSettings = group(ReplicationSettings)
    pools: PoolSettings = group(PoolSettings)
    limits: BrokerTableLimits = group(BrokerTableLimits)

    @property
    def checks_users(self) -> bool:
        """Whether requests need the signature of a user, of either version of access control."""
        return self.access.authentication or self.plain_acl.enabled

    def saved_settings_path(self) -> Path:
        """Return the file that keeps settings changed by requests for the next start."""
        return self.store.root / "config" / "runtime.properties"

    def fast_listen_port(self) -> int:
        """Return the fast port, 0 for none; ``listen_port`` must be known."""
        if self.fast_port >= 0:
            return self.fast_port
        return max(0, self.listen_port - FAST_PORT_BELOW)


def check_role(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse an id that does not fit the role. Raises: ConfigError.

    Java silently sets brokerId 0 on a master; a file with another id describes a slave, so it is
    refused here.
    """
    if config.replication.controller.enabled:
        return
    role = config.broker_role
    where = origins.get("brokerId", "") or origins.get("brokerRole", "")
    if role is BrokerRole.SLAVE:
        if config.broker_id < 1:
            raise ConfigError(
                where,
                f"brokerId={config.broker_id} with brokerRole=SLAVE: 0 is the master's",
                "give the slave a number from 1 on, another one than other slaves of this"
                " brokerName",
            )
    elif config.broker_id != 0:
        raise ConfigError(
            where,
            f"brokerId={config.broker_id} with brokerRole={role.value}: only slaves have another id"
            " than 0",
            "write brokerId=0, or remove the line",
        )


def check_controller_mode(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse what the mode excludes. Raises: ConfigError."""
    settings = config.replication.controller
    if not settings.enabled:
        return
    where = origins.get("enableControllerMode", "")
    if not settings.addresses:
        raise ConfigError(
            where,
            "enableControllerMode=true without controllerAddr",
            "name all controllers: controllerAddr=host:port;host:port;host:port",
        )
    if config.replication.acting_master:
        raise ConfigError(
            where,
            "enableControllerMode=true with enableSlaveActingMaster=true",
            "remove enableSlaveActingMaster: the controllers elect another master",
        )
    if "allAckInSyncStateSet" in origins and not config.replication.replicas.all_in_sync:
        raise ConfigError(
            origins["allAckInSyncStateSet"],
            "allAckInSyncStateSet=false with enableControllerMode=true: messages that were"
            " acknowledged would be lost when another master is elected",
            "remove the line: a send waits for every member of the sync state set",
        )
