"""The keys of a Java broker's configuration file beside those that ``BrokerConfig`` honours.

``java_keys.tsv`` lists names, types and defaults, taken from the setters of Java's BrokerConfig,
BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig, AuthConfig and the tiered
store's MessageStoreConfig, releases 5.5.0 and 4.9.4; of the proxy's ProxyConfig it has the keys
that the gRPC endpoint honours. This file has the meaning of each group of keys, and the reason why
TrioMQ does not honour it.
"""

from pathlib import Path

from triomq.remoting.core.java_keys import KeyTable, Reason

_MASTER_AND_SLAVES = "start a master with slaves (brokerRole, brokerId), and remove this key"
_TRUSTED_NETWORK = (
    "remove the key and keep the port inside a trusted network, or stay with the Java broker"
    " for now"
)

REASONS = {
    # meaningless
    "access file": Reason(
        "the class that keeps users and rules; here they are in config/access.json"
    ),
    "every signature": Reason(
        "a cache of what was verified or decided; every signature and rule is looked at each time"
    ),
    "batchqueue": Reason(
        "a cache in front of batch consume queue files, which are searched without one"
    ),
    "bit maps": Reason(
        "bits beside a queue entry that say which filters want its message; TrioMQ evaluates"
        " filters at the pull, so that sends need not wait for them (docs/adr/012)"
    ),
    "graceful": Reason(
        "a stopping server always finishes the requests that it accepted and turns others away"
    ),
    "internal": Reason("set by Java itself or by its launch scripts"),
    "javalog": Reason("more or fewer lines in Java's own log and statistics"),
    "legacy": Reason("without effect in current Java as well"),
    "locks": Reason(
        "a choice between locks; one loop appends one batch after the other, and needs none"
    ),
    "members": Reason(
        "how many brokers a group should have; TrioMQ counts those that are connected"
    ),
    "mmap": Reason("details of memory-mapped files; TrioMQ writes files by plain calls"),
    "netty": Reason("a detail of Netty or of socket buffers"),
    "never read": Reason("neither Java 4.9.4 nor 5.5.0 reads it, though many copied files have it"),
    "op records": Reason(
        "how long Java collects the ends of transactions in memory; TrioMQ writes them at once"
    ),
    "polling": Reason("interval of a background scan; TrioMQ reacts to events instead"),
    "rocksdb": Reason("details of RocksDB, which is not used"),
    "threads": Reason(
        "size of a Java thread pool, or of its queue, without a counterpart in TrioMQ"
    ),
    "transaction metrics": Reason(
        "Java's file of counters of transactions; /metrics has such counters"
    ),
    "writepool": Reason(
        "a pool of write buffers; TrioMQ joins the messages of a batch in memory and writes them by"
        " one call, so no buffer can be missing (docs/adr/013)"
    ),
    "warmup": Reason(
        "touching and locking (mlock) the pages of a new file; plain write calls fault no page in,"
        " so the first use of a file is like any other"
    ),
    "unlink": Reason(
        "a deleted file is gone for new readers at once and stays whole for present readers;"
        " nothing has to be forced"
    ),
    # not yet
    "auth": Reason("access control", _TRUSTED_NETWORK),
    "broadcast": Reason("broadcast offsets kept by the broker"),
    "cold": Reason("flow control of cold reads"),
    "consumers": Reason("limits on consumers"),
    "container": Reason(
        "several brokers in one process", "start one mqbroker for each broker configuration file"
    ),
    "dledger": Reason(
        "a commit log that is a Raft log; controller mode has taken its place",
        "write enableControllerMode=true, controllerAddr with all controllers in place of"
        " dLegerPeers, and brokerName in place of dLegerGroup; a controller gives each broker its"
        " id, so nothing takes the place of dLegerSelfId; then remove the four keys",
    ),
    "delay": Reason("details of delivering delayed messages, fixed in TrioMQ"),
    "filter": Reason("details of SQL92 filters, fixed at Java's default"),
    "fixed": Reason("fixed at Java's default"),
    "lite": Reason("lite topics"),
    "metrics": Reason("Java's metrics exporters; monitorPort serves /metrics to Prometheus"),
    "multipath": Reason("a commit log spread over several directories"),
    "pop": Reason("POP consumption"),
    "registration": Reason("other ways to register at a name server"),
    "replication": Reason("details of replication", _MASTER_AND_SLAVES),
    "retention": Reason("details of deleting old files, fixed in TrioMQ"),
    "rocksdb on": Reason(
        "storage in RocksDB",
        "set the key to its default; existing RocksDB data stays readable by Java only",
    ),
    "tiered": Reason("tiered storage"),
    "timer": Reason("details of timed messages, fixed in TrioMQ"),
}

BROKER_KEYS = KeyTable("mqbroker", Path(__file__).with_name("java_keys.tsv"), REASONS)
