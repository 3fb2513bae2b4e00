"""Headers of the name server: registration of brokers, key-value table, topics of a cluster.

Requests: 100 to 104, 205, 216 to 224, 322, 327, 901, 904, 905.

Source: remoting/…/header/namesrv/*.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class RegisterBrokerHeader:
    """A broker registers (103). Addresses are ``ip:port``; ``body_crc`` 0 means unchecked."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    ha_server_addr: str = wire("haServerAddr")
    broker_id: int = wire("brokerId", bits=64)
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMillis", default=None, bits=64)
    enable_acting_master: bool | None = wire("enableActingMaster", default=None)
    compressed: bool = wire("compressed", default=False)
    body_crc: int = wire("bodyCrc32", default=0)
    zone_name: str | None = wire("__ZONE_NAME", default=None)


@header
class RegisterBrokerResponseHeader:
    """Only slaves get it."""

    ha_server_addr: str | None = wire("haServerAddr", default=None)
    master_addr: str | None = wire("masterAddr", default=None)


@header
class BrokerHeader:
    """Header of 104 and 322."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire("brokerId", bits=64)


@header
class QueryDataVersionResponseHeader:
    changed: bool = wire("changed")


@header
class BrokerHeartbeatHeader:
    """Sign of life (904); the last four are for controllers only."""

    cluster_name: str = wire("clusterName")
    broker_addr: str = wire("brokerAddr")
    broker_name: str = wire("brokerName")
    broker_id: int | None = wire("brokerId", default=None, bits=64)
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMills", default=None, bits=64)
    epoch: int | None = wire("epoch", default=None)
    max_offset: int | None = wire("maxOffset", default=None, bits=64)
    confirm_offset: int | None = wire("confirmOffset", default=None, bits=64)
    election_priority: int | None = wire("electionPriority", default=None)


@header
class BrokerMembersHeader:
    """Header of 901."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")


@header
class MinBrokerIdChangeHeader:
    """Header of 905, to the other brokers of a group."""

    min_broker_id: int | None = wire("minBrokerId", default=None, bits=64)
    min_broker_addr: str | None = wire("minBrokerAddr", default=None)
    offline_broker_addr: str | None = wire("offlineBrokerAddr", default=None)
    ha_broker_addr: str | None = wire("haBrokerAddr", default=None)
    broker_name: str | None = wire("brokerName", default=None)


@header
class PutKvConfigHeader:
    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str = wire("value")


@header
class KvConfigHeader:
    """Header of 101 and 102."""

    namespace: str = wire("namespace")
    key: str = wire("key")


@header
class GetKvConfigResponseHeader:
    value: str | None = wire("value", default=None)


@header
class KvNamespaceHeader:
    """Header of 219."""

    namespace: str = wire("namespace")


@header
class BrokerNameHeader:
    """Header of 205 and 327."""

    broker_name: str = wire("brokerName")


@header
class WipeWritePermResponseHeader:
    topic_count: int = wire("wipeTopicCount")


@header
class AddWritePermResponseHeader:
    topic_count: int = wire("addTopicCount")


@header
class ClusterHeader:
    """Header of 224."""

    cluster: str = wire("cluster")
