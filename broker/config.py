"""BrokerConfig: every setting of a broker that has an effect, under its Java name (docs/configuration.md is made from it).

Values only: files and options are read by `triomq.broker.options`.  Groups are classes of their own so that each part of
the broker is given the part it needs.  Thread counts of Java are numbers of worker tasks here; their defaults are ours,
since no speed depends on them.
"""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

import enum
import socket
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.broker.advertise import local_address
from triomq.broker.replication_settings import ReplicationSettings
from triomq.broker.services.limits import LimitSettings
from triomq.broker.store.config import (
    BATCH_ENTRY_BYTES,
    DEFAULT_DELAY_LEVELS,
    FlushMode,
    StoreConfig,
    format_delay_levels,
    parse_delay_levels,
)
from triomq.broker.store.retention import RetentionRules, format_hours, parse_hours
from triomq.remoting import open_files
from triomq.remoting.monitor.settings import MonitorSettings
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.settings import NetworkSettings
from triomq.remoting.settings import (
    ADDRESSES,
    BOOLEAN,
    INTEGER,
    OPTIONAL_TEXT,
    PATH,
    TEXT,
    ConfigError,
    Kind,
    choice,
    group,
    setting,
)
from triomq.remoting.tls.settings import SecuritySettings

DEFAULT_PORT = 10911
FAST_PORT_BELOW = 2
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_WORKERS_MAX = 1024
_QUEUE_ENTRY_BYTES = 20
DELAY_LEVELS: Kind[tuple[int, ...]] = Kind("times such as 10s, 5m, 2h or 1d, separated by spaces", parse_delay_levels, format_delay_levels)

HOURS: Kind[tuple[int, ...]] = Kind("hours from 00 to 23, separated by ;", parse_hours, format_hours)


class BrokerRole(enum.Enum):
    """Java's ``brokerRole``: see `check_role`, and docs/replication.md."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _workers(java: str, default: int, what: str, *, own: bool = False) -> int:
    value: int = setting(java, INTEGER, default, f"worker tasks for {what}", low=1, high=_WORKERS_MAX, own=own)
    return value


def _capacity(java: str, default: int, what: str, *, own: bool = False) -> int:
    value: int = setting(java, INTEGER, default, f"{what} that may wait; one more is refused as busy", low=1, high=_INT_MAX, own=own)
    return value


def _patience(java: str, default: int, what: str) -> int:
    value: int = setting(java, INTEGER, default, f"{what} that waited longer (ms) are refused as busy; 0: never", low=0, high=_INT_MAX)
    return value


@attrs.frozen(kw_only=True)
class PoolSettings:
    """Bounds of the business pools: one for each family of requests."""

    send_workers: int = _workers("sendMessageThreadPoolNums", 4, "sending")
    send_queue: int = _capacity("sendThreadPoolQueueCapacity", 10_000, "sends")
    send_wait_ms: int = _patience("waitTimeMillsInSendQueue", 200, "sends")
    pull_workers: int = _workers("pullMessageThreadPoolNums", 4, "pulling")
    pull_queue: int = _capacity("pullThreadPoolQueueCapacity", 100_000, "pulls")
    pull_wait_ms: int = _patience("waitTimeMillsInPullQueue", 5_000, "pulls")
    lite_pull_workers: int = _workers("litePullMessageThreadPoolNums", 4, "pulling by lite pull consumers")
    lite_pull_queue: int = _capacity("litePullThreadPoolQueueCapacity", 100_000, "lite pulls")
    lite_pull_wait_ms: int = _patience("waitTimeMillsInLitePullQueue", 5_000, "lite pulls")
    ack_workers: int = _workers("ackMessageThreadPoolNums", 1, "acknowledgements of POP consumers")
    ack_queue: int = _capacity("ackThreadPoolQueueCapacity", 100_000, "acknowledgements")
    ack_wait_ms: int = _patience("waitTimeMillsInAckQueue", 3_000, "acknowledgements")
    reply_workers: int = _workers("processReplyMessageThreadPoolNums", 1, "replies of request-reply")
    reply_queue: int = _capacity("replyThreadPoolQueueCapacity", 10_000, "replies")
    query_workers: int = _workers("queryMessageThreadPoolNums", 2, "queries by key or id")
    query_queue: int = _capacity("queryThreadPoolQueueCapacity", 20_000, "queries")
    client_workers: int = _workers("clientManageThreadPoolNums", 1, "clients that come and go")
    client_queue: int = _capacity("clientManagerThreadPoolQueueCapacity", 1_000_000, "client requests")
    consumer_workers: int = _workers("consumerManageThreadPoolNums", 1, "offsets and members of consumer groups")
    consumer_queue: int = _capacity("consumerManagerThreadPoolQueueCapacity", 1_000_000, "consumer requests")
    heartbeat_workers: int = _workers("heartbeatThreadPoolNums", 4, "heartbeats")
    heartbeat_queue: int = _capacity("heartbeatThreadPoolQueueCapacity", 50_000, "heartbeats")
    heartbeat_wait_ms: int = _patience("waitTimeMillsInHeartbeatQueue", 31_000, "heartbeats")
    transaction_workers: int = _workers("endTransactionThreadPoolNums", 1, "ends of transactions")
    transaction_queue: int = _capacity("endTransactionPoolQueueCapacity", 100_000, "ends of transactions")
    transaction_wait_ms: int = _patience("waitTimeMillsInTransactionQueue", 3_000, "ends of transactions")
    balance_workers: int = _workers("loadBalanceProcessorThreadPoolNums", 1, "assigning queues to consumers")
    balance_queue: int = _capacity("loadBalanceThreadPoolQueueCapacity", 100_000, "requests for assignments")
    admin_workers: int = _workers("adminBrokerThreadPoolNums", 1, "administration, and everything without a pool of its own")
    admin_queue: int = _capacity("adminBrokerThreadPoolQueueCapacity", 10_000, "admin requests")
    admin_wait_ms: int = _patience("waitTimeMillsInAdminBrokerQueue", 5_000, "admin requests, and those of the pools lock, offset, disk, change and relay,")
    lock_queue: int = _capacity("lockThreadPoolQueueCapacity", 100_000, "locks of queues", own=True)
    offset_workers: int = _workers("offsetThreadPoolNums", 4, "bounds of queues and offsets by time, which may wait for the disk", own=True)
    offset_queue: int = _capacity("offsetThreadPoolQueueCapacity", 100_000, "requests for offsets", own=True)
    disk_workers: int = _workers("diskThreadPoolNums", 4, "statistics and resets that read old messages", own=True)
    disk_queue: int = _capacity("diskThreadPoolQueueCapacity", 1_000, "statistics and resets", own=True)
    change_workers: int = _workers("changeThreadPoolNums", 64, "changes of topics and groups, which wait for the disk and the name servers", own=True)
    change_queue: int = _capacity("changeThreadPoolQueueCapacity", 1_000, "changes of topics and groups", own=True)
    relay_workers: int = _workers("relayThreadPoolNums", 64, "questions to consumers, which wait for their answers", own=True)
    relay_queue: int = _capacity("relayThreadPoolQueueCapacity", 1_000, "questions to consumers", own=True)
    fast_failure: bool = setting(
        "brokerFastFailureEnable", BOOLEAN, True, "refuse requests that waited too long, or behind a stalled disk; false: they wait until their turn comes"
    )

    def by_name(self) -> Mapping[str, PoolConfig]:
        """The pools as the server wants them, by the names that the handler table uses."""

        def pool(workers: int, queue: int, wait_ms: int = 0) -> PoolConfig:
            return PoolConfig(workers=workers, queue_requests_max=queue, wait_ms_max=wait_ms if self.fast_failure else 0)

        return {
            "send": pool(self.send_workers, self.send_queue, self.send_wait_ms),
            "pull": pool(self.pull_workers, self.pull_queue, self.pull_wait_ms),
            "lite-pull": pool(self.lite_pull_workers, self.lite_pull_queue, self.lite_pull_wait_ms),
            "ack": pool(self.ack_workers, self.ack_queue, self.ack_wait_ms),
            "reply": pool(self.reply_workers, self.reply_queue),
            "query": pool(self.query_workers, self.query_queue),
            "client": pool(self.client_workers, self.client_queue),
            "consumer": pool(self.consumer_workers, self.consumer_queue),
            "heartbeat": pool(self.heartbeat_workers, self.heartbeat_queue, self.heartbeat_wait_ms),
            "transaction": pool(self.transaction_workers, self.transaction_queue, self.transaction_wait_ms),
            "balance": pool(self.balance_workers, self.balance_queue),
            "admin": pool(self.admin_workers, self.admin_queue, self.admin_wait_ms),
            "lock": pool(1, self.lock_queue, self.admin_wait_ms),  # a lock waits for nothing
            "offset": pool(self.offset_workers, self.offset_queue, self.admin_wait_ms),
            "disk": pool(self.disk_workers, self.disk_queue, self.admin_wait_ms),
            "change": pool(self.change_workers, self.change_queue, self.admin_wait_ms),
            "relay": pool(self.relay_workers, self.relay_queue, self.admin_wait_ms),
        }


@attrs.frozen(kw_only=True)
class RetentionSettings:
    """When old messages are deleted, and when new ones are refused; the names of the fields are those of `RetentionRules`."""

    reserved_hours: int = setting("fileReservedTime", INTEGER, 72, "a commit log file may be deleted when its last message is so old (hours)", low=0, high=_INT_MAX)
    delete_hours: tuple[int, ...] = setting(
        "deleteWhen", HOURS, parse_hours("04"), "hours of the day, local time, in which such files are deleted if the disk has room; 04;16: twice a day"
    )
    used_percent_max: int = setting(
        "diskMaxUsedSpaceRatio", INTEGER, 75, "above this use of the disk (%) such files are deleted at any hour", low=10, high=95, clamp=True
    )
    force_percent: int = setting(
        "diskSpaceCleanForciblyRatio",
        INTEGER,
        85,
        "above this use of the disk (%) the oldest files are deleted whatever their age, until it is reached again",
        low=30,
        high=85,
        clamp=True,
    )
    warning_percent: int = setting(
        "diskSpaceWarningLevelRatio",
        INTEGER,
        90,
        "above this use of the disk (%) messages are refused until it is down at diskSpaceCleanForciblyRatio",
        low=35,
        high=90,
        clamp=True,
    )
    force_enabled: bool = setting("cleanFileForciblyEnable", BOOLEAN, True, "false: files are kept for their time even when the disk fills up")
    batch_max: int = setting("deleteFileBatchMax", INTEGER, 10, "commit log files deleted in one round", low=1, high=_INT_MAX)
    interval_ms: int = setting("cleanResourceInterval", INTEGER, 10_000, "time between two rounds of looking and deleting (ms)", low=1, high=_INT_MAX)
    log_pause_ms: int = setting("deleteCommitLogFilesInterval", INTEGER, 100, "pause between two commit log files that are deleted (ms)", low=0, high=_INT_MAX)
    queue_pause_ms: int = setting(
        "deleteConsumeQueueFilesInterval", INTEGER, 100, "pause after each queue of which files were deleted (ms)", low=0, high=_INT_MAX
    )

    def rules(self) -> RetentionRules:
        return RetentionRules(**attrs.asdict(self, recurse=False))


@attrs.frozen(kw_only=True)
class LightQueueSettings:
    """Messages in several queues (LMQ)."""

    lmq: bool = setting("enableLmq", BOOLEAN, False, "give a message a number in each of the light queues that its property INNER_MULTI_DISPATCH names")
    multi_dispatch: bool = setting(
        "enableMultiDispatch", BOOLEAN, False, "keep those light queues, so that they can be read; both settings are needed, as in a Java broker"
    )
    quota: bool = setting("enableLmqQuota", BOOLEAN, False, "refuse messages for new light queues when there are maxLmqConsumeQueueNum")
    count_max: int = setting("maxLmqConsumeQueueNum", INTEGER, 20_000, "light queues that there may be with enableLmqQuota", low=0, high=_INT_MAX)

    @property
    def enabled(self) -> bool:
        return self.lmq and self.multi_dispatch


@attrs.frozen(kw_only=True)
class StoreSettings:
    """Where and how messages are kept; the names of the fields are those of `StoreConfig`."""

    root: Path = setting("storePathRootDir", PATH, attrs.Factory(lambda: Path.home() / "store"), "directory of everything the broker keeps", default_text="~/store")
    commitlog: Path = setting(
        "storePathCommitLog",
        PATH,
        attrs.Factory(lambda self: self.root / "commitlog", takes_self=True),
        "directory of the commit log",
        default_text="commitlog under storePathRootDir",
    )
    segment_size_bytes: int = setting(
        "mappedFileSizeCommitLog", INTEGER, 1 << 30, "size of a commit log file; must match files that exist", low=4096, high=_INT_MAX
    )
    queue_file_size_bytes: int = setting(
        "mappedFileSizeConsumeQueue",
        INTEGER,
        300_000 * _QUEUE_ENTRY_BYTES,
        "size of a consume queue file, rounded up to whole entries of 20 bytes; must match files that exist",
        low=_QUEUE_ENTRY_BYTES,
        high=_INT_MAX,
        step=_QUEUE_ENTRY_BYTES,
    )
    batch_queue_file_size_bytes: int = setting(
        "mapperFileSizeBatchConsumeQueue",
        INTEGER,
        300_000 * BATCH_ENTRY_BYTES,
        "size of a batch consume queue file, rounded up to whole entries of 46 bytes; must match files that exist",
        low=BATCH_ENTRY_BYTES,
        high=_INT_MAX,
        step=BATCH_ENTRY_BYTES,
    )
    index_enabled: bool = setting("messageIndexEnable", BOOLEAN, True, "keep the key index, so that messages are found by key")
    index_slot_count: int = setting("maxHashSlotNum", INTEGER, 5_000_000, "hash slots of a key index file; must match files that exist", low=1, high=_INT_MAX)
    index_entry_count: int = setting("maxIndexNum", INTEGER, 20_000_000, "entries of a key index file; must match files that exist", low=2, high=_INT_MAX)
    flush_mode: FlushMode = setting(
        "flushDiskType", choice(FlushMode), FlushMode.ASYNC, "when a send is answered: after the page cache has it, or after the disk has it"
    )
    flush_interval_ms: int = setting("flushIntervalCommitLog", INTEGER, 500, "pause between two flushes with ASYNC_FLUSH (ms)", low=1, high=_INT_MAX)
    sync_flush_timeout_ms: int = setting(
        "syncFlushTimeout", INTEGER, 5_000, "a send with SYNC_FLUSH is answered FLUSH_DISK_TIMEOUT after so long (ms)", low=1, high=_INT_MAX
    )
    index_write_interval_ms: int = setting(
        "flushIntervalConsumeQueue", INTEGER, 1_000, "how often consume queue entries leave memory for their files (ms)", low=1, high=_INT_MAX
    )
    checkpoint_interval_ms: int = setting(
        "flushConsumeQueueThoroughInterval",
        INTEGER,
        10_000,
        "how often indexes are forced to the disk and the checkpoint moves (ms): what recovery reads again after a crash",
        low=1,
        high=_INT_MAX,
    )
    append_stall_ms: int = setting(
        "osPageCacheBusyTimeOutMills",
        INTEGER,
        1_000,
        "a write to the log that takes longer (ms) is a stall: sends that wait or come right after it are refused as busy",
        low=1,
        high=_INT_MAX,
    )
    delay_levels_ms: tuple[int, ...] = setting(
        "messageDelayLevel", DELAY_LEVELS, parse_delay_levels(DEFAULT_DELAY_LEVELS), "after what time messages of delay level 1, 2, 3 … are delivered"
    )
    message_size_bytes_max: int = setting("maxMessageSize", INTEGER, 4 * 1024 * 1024, "largest message body", low=1, high=_INT_MAX)
    check_crc_on_recover: bool = setting("checkCRCOnRecover", BOOLEAN, True, "check the CRC of message bodies while recovering")
    transfer_bytes_memory_max: int = setting(
        "maxTransferBytesOnMessageInMemory", INTEGER, 262_144, "bytes of one pull when the messages are in memory", low=1, high=_INT_MAX
    )
    transfer_count_memory_max: int = setting(
        "maxTransferCountOnMessageInMemory", INTEGER, 32, "messages of one pull when they are in memory", low=1, high=_INT_MAX
    )
    transfer_bytes_disk_max: int = setting(
        "maxTransferBytesOnMessageInDisk", INTEGER, 65_536, "bytes of one pull when the messages must be read from the disk", low=1, high=_INT_MAX
    )
    transfer_count_disk_max: int = setting(
        "maxTransferCountOnMessageInDisk", INTEGER, 8, "messages of one pull when they must be read from the disk", low=1, high=_INT_MAX
    )
    memory_percent_max: int = setting(
        "accessMessageInMemoryMaxRatio",
        INTEGER,
        40,
        "messages farther behind the end of the log than this share (%) of the machine's memory count as on disk",
        low=1,
        high=100,
    )
    filter_bytes_max: int = setting(
        "maxFilterMessageSize", INTEGER, 16_000, "consume queue bytes that one pull looks through at most", low=_QUEUE_ENTRY_BYTES, high=_INT_MAX
    )
    query_count_max: int = setting("maxMsgsNumBatch", INTEGER, 64, "messages of one query by key", low=1, high=_INT_MAX)
    query_unique_count_max: int = setting("defaultQueryMaxNum", INTEGER, 32, "messages of one query by unique key", low=1, high=_INT_MAX)
    light_queues: LightQueueSettings = group(LightQueueSettings)
    retention: RetentionSettings = group(RetentionSettings)

    def store_config(self, store_host: bytes) -> StoreConfig:
        """The store's own settings; `store_host` is the address that goes into every record."""
        values = attrs.asdict(self, recurse=False, filter=lambda attribute, _: "group" not in attribute.metadata)
        light = self.light_queues
        return StoreConfig(
            **values,
            retention=self.retention.rules(),
            multi_dispatch=light.enabled,
            light_queues_max=light.count_max if light.quota else None,
            open_files_max=max(2, min(QUEUE_FILES_MAX, open_files.limit() // 8)),
            store_host=store_host,
        )


QUEUE_FILES_MAX = 512
"""Files of consume queues that a store keeps open, fewer where the limit of open files is low."""


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """All settings of one broker."""

    cluster_name: str = setting("brokerClusterName", TEXT, "DefaultCluster", "the cluster that this broker joins")
    broker_name: str = setting(
        "brokerName", TEXT, attrs.Factory(socket.gethostname), "name of this broker, unique in the cluster", default_text="host name"
    )
    broker_id: int = setting("brokerId", INTEGER, 0, "0: master; a slave has a number from 1 on, unique under its broker name", low=-1, high=_INT_MAX)
    broker_role: BrokerRole = setting("brokerRole", choice(BrokerRole), BrokerRole.ASYNC_MASTER, "ASYNC_MASTER: slaves follow, nobody waits for them; SYNC_MASTER: a send waits for them; SLAVE: follows the master of its broker name")
    broker_ip: str = setting(
        "brokerIP1",
        TEXT,
        attrs.Factory(local_address),
        "address or host name that clients are told to connect to; checked at start",
        default_text="first public IPv4 address of this machine, else the last private one",
    )
    ha_ip: str = setting(
        "brokerIP2", TEXT, attrs.Factory(lambda self: self.broker_ip, takes_self=True), "address announced to slaves", default_text="brokerIP1"
    )
    listen_host: str = setting("bindAddress", TEXT, "0.0.0.0", "address to listen on; :: takes IPv6 and IPv4")
    listen_port: int = setting("listenPort", INTEGER, DEFAULT_PORT, "port to listen on; 0: any free one", low=0, high=65_535)
    fast_port: int = setting(
        "fastListenPort",
        INTEGER,
        -1,
        "second port, which serves everything but pulls: clients with the VIP channel send there, Java slaves copy the topics; -1: listenPort - 2; 0: none",
        low=-1,
        high=65_535,
        own=True,
    )
    ha_port: int = setting(
        "haListenPort",
        INTEGER,
        attrs.Factory(lambda self: min(self.listen_port + 1, 65_535), takes_self=True),
        "port where slaves fetch the log; 0: any free one, as with listenPort=0",
        low=0,
        high=65_535,
        default_text="listenPort + 1",
    )
    namesrv_addresses: tuple[str, ...] = setting(
        "namesrvAddr", ADDRESSES, (), "name servers to register with: host:port, separated by ;", default_text="environment NAMESRV_ADDR"
    )
    namesrv_dns: bool = setting(
        "fetchNameSrvAddrByDnsLookup", BOOLEAN, False, "register with every address that a host name in namesrvAddr has, and follow its changes"
    )
    namesrv_follow_ms: int = setting("updateNameServerAddrPeriod", INTEGER, 120_000, "how often such names are looked up again (ms)", low=1, high=_INT_MAX)
    namesrv_address_server: bool = setting(
        "fetchNamesrvAddrByAddressServer", BOOLEAN, False, "without namesrvAddr: ask rmqAddressServerDomain where the name servers are"
    )
    namesrv_fetch_ms: int = setting("fetchNamesrvAddrInterval", INTEGER, 10_000, "how often it is asked again (ms)", low=1, high=_INT_MAX)
    namesrv_domain: str = setting(
        "rmqAddressServerDomain",
        TEXT,
        "jmenv.tbsite.net",
        "host, host:port or whole web address that answers with host:port;host:port",
        default_text="jmenv.tbsite.net, that of Java's system property rocketmq.namesrv.domain",
    )
    namesrv_subgroup: str = setting(
        "rmqAddressServerSubGroup", TEXT, "nsaddr", "last part of that web address", default_text="nsaddr, that of rocketmq.namesrv.domain.subgroup"
    )
    register_period_ms: int = setting(
        "registerNameServerPeriod", INTEGER, 30_000, "how often the broker registers again (ms); brought into 10 to 60 s", low=10_000, high=60_000, clamp=True
    )
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", INTEGER, 24_000, "how long a registration may take (ms)", low=1, high=_INT_MAX)
    protected_keys: str = setting(
        "configBlackList", OPTIONAL_TEXT, "configBlackList;brokerConfigPath", "settings that no request may change, separated by ;"
    )
    force_register: bool = setting("forceRegister", BOOLEAN, True, "send all topics each time; false: ask first whether they changed")
    deflated_registration: bool = setting("compressedRegister", BOOLEAN, False, "send all topics deflated; longer than 4 MiB they always are")
    split_registration: bool = setting(
        "enableSplitRegistration", BOOLEAN, False, "send all topics in pieces; not for name servers with deleteTopicWithBrokerRegistration=true"
    )
    split_registration_count: int = setting("splitRegistrationSize", INTEGER, 800, "topics in such a piece", low=1, high=_INT_MAX)
    broker_permission: int = setting("brokerPermission", INTEGER, 6, "4: clients may read, 2: write, 6: both", low=0, high=7)
    region_id: str = setting("regionId", TEXT, "DefaultRegion", "MSG_REGION of messages and answers")
    trace_on: bool = setting("traceOn", BOOLEAN, True, "tell clients that they may send traces")
    auto_create_topics: bool = setting("autoCreateTopicEnable", BOOLEAN, True, "a send to an unknown topic creates it")
    auto_create_groups: bool = setting("autoCreateSubscriptionGroup", BOOLEAN, True, "an unknown consumer group is created when it first connects")
    default_topic_queue_count: int = setting("defaultTopicQueueNums", INTEGER, 8, "queues of a topic created by a send, at most", low=1, high=65_535)
    cluster_topic: bool = setting("clusterTopicEnable", BOOLEAN, True, "the topic named after the cluster may be read and written")
    broker_topic: bool = setting("brokerTopicEnable", BOOLEAN, True, "the topic named after the broker may be read and written")
    trace_topic: bool = setting("traceTopicEnable", BOOLEAN, False, "create the topic for message traces at start")
    trace_topic_name: str = setting("msgTraceTopicName", TEXT, "RMQ_SYS_TRACE_TOPIC", "name of the topic for message traces")
    long_polling: bool = setting("longPollingEnable", BOOLEAN, True, "hold a pull that finds nothing until a message comes")
    short_polling_ms: int = setting("shortPollingTimeMills", INTEGER, 1_000, "how long such a pull is held when longPollingEnable is false (ms)", low=0, high=_INT_MAX)
    notify_consumer_changes: bool = setting("notifyConsumerIdsChangedEnable", BOOLEAN, True, "tell the members of a group when one comes or goes")
    server_side_reset: bool = setting(
        "useServerSideResetOffset", BOOLEAN, True, "a reset of a group's offsets is stored here; false: only its members that are connected are told"
    )
    mixed_message_type: bool = setting("enableMixedMessageType", BOOLEAN, False, "topics may have message.type=MIXED")
    enforce_message_type: bool = setting(
        "enforceMessageType",
        BOOLEAN,
        False,
        "refuse messages that are not of their topic's message.type; false: only clients that come by gRPC are checked, as in RocketMQ 5",
        own=True,
    )
    reject_pull_consumers: bool = setting(
        "rejectPullConsumerEnable", BOOLEAN, False, "refuse pulls of clients that are no connected members of a push consumer's group"
    )
    lite_pulls: bool = setting("litePullMessageEnable", BOOLEAN, True, "answer the pulls of lite pull consumers")
    property_filter: bool = setting("enablePropertyFilter", BOOLEAN, False, "let groups filter by SQL92 over message properties")
    keep_filters_ms: int = setting(
        "filterDataCleanTimeSpan", INTEGER, 86_400_000, "a filter whose group is away is forgotten after so long (ms)", low=0, high=_LONG_MAX
    )
    accept_sends_from_ms: int = setting(
        "startAcceptSendRequestTimeStamp", INTEGER, 0, "refuse sends until this time (ms since 1970)", low=0, high=_LONG_MAX
    )
    disable_slow_consumers: bool = setting(
        "disableConsumeIfConsumerReadSlowly", BOOLEAN, False, "a group that is more than consumerFallbehindThreshold behind may not consume any more"
    )
    slow_consumer_bytes: int = setting(
        "consumerFallbehindThreshold",
        INTEGER,
        16 * 1024 * 1024 * 1024,
        "a group that is so far (bytes of the log) behind is named in a warning every three minutes",
        low=1,
        high=_LONG_MAX,
    )
    pull_expired_ms: int = setting(
        "subscriptionExpiredTimeout", INTEGER, 600_000, "a subscription that came with a pull is forgotten after so long (ms)", low=1, high=_INT_MAX
    )
    channel_expired_ms: int = setting("channelExpiredTimeout", INTEGER, 120_000, "a client without heartbeat for so long is gone (ms)", low=1, high=_INT_MAX)
    offset_flush_ms: int = setting("flushConsumerOffsetInterval", INTEGER, 5_000, "how often changed consumer offsets are saved (ms)", low=1, high=_INT_MAX)
    store: StoreSettings = group(StoreSettings)
    network: NetworkSettings = group(NetworkSettings)
    monitor: MonitorSettings = group(MonitorSettings)
    security: SecuritySettings = group(SecuritySettings)
    replication: ReplicationSettings = group(ReplicationSettings)
    pools: PoolSettings = group(PoolSettings)
    limits: LimitSettings = group(LimitSettings)

    def saved_settings_path(self) -> Path:
        """Where settings that are changed by a request are kept for the next start."""
        return self.store.root / "config" / "runtime.properties"

    def fast_listen_port(self) -> int:
        """The fast port as a number, 0 for none; `listen_port` must be known."""
        if self.fast_port >= 0:
            return self.fast_port
        return max(0, self.listen_port - FAST_PORT_BELOW)


def check_role(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse an id that does not fit the role; raise ConfigError that says where it was set and what to do.

    Java forces brokerId 0 on a master in silence; a file that says otherwise describes a slave, so it is refused here.
    """
    role = config.broker_role
    where = origins.get("brokerId", "") or origins.get("brokerRole", "")
    if role is BrokerRole.SLAVE:
        if config.broker_id < 1:
            raise ConfigError(where, f"brokerId={config.broker_id} with brokerRole=SLAVE: 0 is the master's", "give the slave a number from 1 on, another one than other slaves of this brokerName")
    elif config.broker_id != 0:
        raise ConfigError(
            where,
            f"brokerId={config.broker_id} with brokerRole={role.value}: only slaves have another id than 0",
            "write brokerId=0, or remove the line",
        )
