"""The keys that a Java broker's configuration file may hold, beside those that `BrokerConfig` honours.

``java_keys.tsv`` was read off the setters of Java's BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig,
NettyClientConfig, AuthConfig and the tiered store's MessageStoreConfig, releases 5.5.0 and 4.9.4: names, types and
defaults.  What each group of keys is, and why we do not honour it, is said here.
"""

from pathlib import Path

from triomq.remoting.java_keys import KeyTable, Reason

_MASTER_AND_SLAVES = "start a master with slaves (brokerRole, brokerId), and remove this key"
_TRUSTED_NETWORK = "remove the key and keep the port inside a trusted network, or stay with the Java broker for now"

REASONS = {
    # meaningless
    "batchqueue": Reason("a cache in front of batch consume queue files, which are searched without one"),
    "graceful": Reason("a stopping server always finishes what it accepted and sends the other requests away"),
    "internal": Reason("set by Java itself or by its launch scripts"),
    "javalog": Reason("more or fewer lines in Java's own log and statistics"),
    "legacy": Reason("without effect in current Java as well"),
    "locks": Reason("a choice between locks; appends are made by one loop, one batch after the other, and need none"),
    "members": Reason("how many brokers a group should have; those that are there are counted"),
    "mmap": Reason("fine points of memory-mapped files; files are written by plain calls here"),
    "netty": Reason("a detail of Netty or of socket buffers"),
    "never read": Reason("neither Java 4.9.4 nor 5.5.0 reads it, though many copied files have it"),
    "polling": Reason("pace of a background scan that is driven by events here"),
    "rocksdb": Reason("details of RocksDB, which is not used"),
    "threads": Reason("sizes a Java thread pool or its queue that has no counterpart here"),
    "writepool": Reason("a pool of write buffers; the messages of a batch are put together in memory and written by one call, so no buffer can be missing"),
    "warmup": Reason("touching and locking (mlock) the pages of a new file; it is written by plain calls, which fault no page in, so its first use is like any other"),
    "unlink": Reason("a deleted file is gone for new readers at once and stays whole for those who still read it; nothing has to be forced"),
    # not yet
    "auth": Reason("access control", _TRUSTED_NETWORK),
    "broadcast": Reason("broadcast offsets kept by the broker"),
    "cold": Reason("flow control of cold reads"),
    "compaction": Reason("compaction topics"),
    "consumers": Reason("limits on consumers"),
    "container": Reason("several brokers in one process", "start one mqbroker for each broker configuration file"),
    "delay": Reason("fine points of delivering delayed messages, fixed here"),
    "filter": Reason("SQL92 filters"),
    "fixed": Reason("fixed at Java's default"),
    "lite": Reason("lite topics"),
    "metrics": Reason("Java's metrics exporters; monitorPort serves /metrics to Prometheus"),
    "multipath": Reason("a commit log spread over several directories"),
    "pop": Reason("POP consumption"),
    "registration": Reason("other ways to register at a name server"),
    "replication": Reason("automatic failover, and fine points of replication", _MASTER_AND_SLAVES),
    "reply": Reason("request-reply"),
    "retention": Reason("fine points of deleting old files, fixed here"),
    "rocksdb on": Reason("storage in RocksDB", "set the key to its default; existing RocksDB data stays readable by Java only"),
    "tiered": Reason("tiered storage"),
    "timer": Reason("timer messages"),
    "transactions": Reason("transactional messages"),
}

BROKER_KEYS = KeyTable(Path(__file__).with_name("java_keys.tsv"), REASONS)
