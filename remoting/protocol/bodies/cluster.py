"""The state of the cluster, from name servers and brokers: 28, 103, 106, 219, 354, 901, 907, 2003.

Source: remoting/…/protocol/body/ClusterInfo.java, KVTable.java, HARuntimeInfo.java,
GetBrokerMemberGroupResponseBody.java.
"""

from typing import Any

import attrs

from triomq.remoting.protocol.bodies.route import BrokerData
from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named


@attrs.frozen(eq=False, repr=False)
class ClusterTable(JsonBody):
    """Answer to 106: all brokers by name, all broker names by cluster. Java writes bare ids."""

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
    """A table of texts: runtime figures (28), key-value namespaces (103, 219)."""

    table: dict[str, str] = attrs.field(factory=dict)


MISSING_BROKERS_NAMESPACE = "TRIOMQ_MISSING_BROKERS"
"""Ours: key-value namespace of a name server that nobody writes, broker name → MissingProcesses.
Deleting a key makes the name server forget that name. Java's has no such namespace.
"""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MissingProcess(JsonBody):
    """A broker process that should be in the routes and is not."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    leave: str
    """unregistered, connection lost, silent, or displaced: of two that have one name and id"""
    seconds: int
    """since it left, or was displaced"""


@attrs.frozen(eq=False, repr=False)
class MissingProcesses(JsonBody):
    """A value of the namespace ``TRIOMQ_MISSING_BROKERS``."""

    processes: list[MissingProcess] = attrs.field(factory=list)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaConnectionState(JsonBody):
    address: str = attrs.field(metadata=json_name("addr"))
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_bytes_per_second: int = named("transferredByteInSecond", default=0)
    transfer_from: int = named("transferFromWhere", default=0)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaClientState(JsonBody):
    master_address: str | None = named("masterAddr", default=None)
    transferred_bytes_per_second: int = named("transferredByteInSecond", default=0)
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HaStatus(JsonBody):
    """The answer to 907."""

    master: bool = False
    master_log_max_offset: int = named("masterCommitLogMaxOffset", default=0)
    in_sync_slave_count: int = named("inSyncSlaveNums", default=0)
    connections: list[HaConnectionState] = named("haConnectionInfo", factory=list)
    client: HaClientState = named("haClientRuntimeInfo", factory=HaClientState)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ColdReads(JsonBody):
    """Answer to 2003: bytes that groups read from disk, and their limits."""

    runtime: dict[str, Any] = named("runtimeTable", factory=dict)
    configuration: dict[str, Any] = named("configTable", factory=dict)
    group_threshold: int = named("cgColdReadThreshold", default=0)
    global_threshold: int = named("globalColdReadThreshold", default=0)
    global_bytes: int = named("globalAcc", default=0)
