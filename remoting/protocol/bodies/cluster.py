"""What name servers and brokers say about the cluster: 106, 901, key-value tables, HA state, 354, 2003.

Source: remoting/…/protocol/body/ClusterInfo.java, KVTable.java, HARuntimeInfo.java, GetBrokerMemberGroupResponseBody.java.
"""

from typing import Any

import attrs

from triomq.remoting.protocol.bodies.route import BrokerData
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(eq=False, repr=False)
class ClusterTable(JsonBody):
    """All brokers by name and all broker names by cluster (106). Java writes it with bare ids."""

    broker_addr_table: dict[str, BrokerData] = attrs.field(factory=dict)
    cluster_addr_table: dict[str, list[str]] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class BrokerMembers(JsonBody):
    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class BrokerMembersBody(JsonBody):
    """The answer to 901; no members if the broker name is unknown."""

    broker_member_group: BrokerMembers | None = None


@attrs.frozen(eq=False, repr=False)
class KvTable(JsonBody):
    """Any table of texts: runtime figures (28), key-value namespaces (219, 103)."""

    table: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaConnectionState(JsonBody):
    address: str = attrs.field(metadata=named("addr"))
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_bytes_per_second: int = attrs.field(default=0, metadata=named("transferredByteInSecond"))
    transfer_from: int = attrs.field(default=0, metadata=named("transferFromWhere"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaClientState(JsonBody):
    master_address: str | None = attrs.field(default=None, metadata=named("masterAddr"))
    transferred_bytes_per_second: int = attrs.field(default=0, metadata=named("transferredByteInSecond"))
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaStatus(JsonBody):
    """The answer to 907."""

    master: bool = False
    master_log_max_offset: int = attrs.field(default=0, metadata=named("masterCommitLogMaxOffset"))
    in_sync_slave_count: int = attrs.field(default=0, metadata=named("inSyncSlaveNums"))
    connections: list[HaConnectionState] = attrs.field(factory=list, metadata=named("haConnectionInfo"))
    client: HaClientState = attrs.field(factory=HaClientState, metadata=named("haClientRuntimeInfo"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ColdReads(JsonBody):
    """2003: bytes that groups read from disk, and their limits."""

    runtime: dict[str, Any] = attrs.field(factory=dict, metadata=named("runtimeTable"))
    configuration: dict[str, Any] = attrs.field(factory=dict, metadata=named("configTable"))
    group_threshold: int = attrs.field(default=0, metadata=named("cgColdReadThreshold"))
    global_threshold: int = attrs.field(default=0, metadata=named("globalColdReadThreshold"))
    global_bytes: int = attrs.field(default=0, metadata=named("globalAcc"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IndexProgress(JsonBody):
    """354. States: 0 complete, 1 incomplete, 2 being written, 3 failed."""

    status: int = attrs.field(default=0, metadata=named("checkStatus"))
    result: str | None = attrs.field(default=None, metadata=named("checkResult"))
