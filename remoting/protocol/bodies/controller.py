"""Bodies between brokers and controllers: 1001 to 1004 and 1006 to 1008.

Source: remoting/…/protocol/body/SyncStateSet.java, ElectMasterResponseBody.java,
BrokerReplicasInfo.java, EpochEntryCache.java.
"""

import attrs

from triomq.remoting.protocol.bodies.cluster import BrokerMembers
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(eq=False, repr=False)
class SyncStateSet(JsonBody):
    """The ids of the replicas that keep up with the master (1001, 1003, 1004, 1008)."""

    ids: frozenset[int] = named("syncStateSet", default=frozenset())
    epoch: int = named("syncStateSetEpoch", default=0)


@attrs.frozen(eq=False, repr=False)
class ElectedMaster(JsonBody):
    """The answer to 1002; the header names the master."""

    members: BrokerMembers | None = named("brokerMemberGroup", default=None)
    ids: frozenset[int] = named("syncStateSet", default=frozenset())


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Replica(JsonBody):
    broker_name: str
    broker_id: int
    broker_address: str | None = None
    alive: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ReplicaGroup(JsonBody):
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync: list[Replica] = named("inSyncReplicas", factory=list)
    not_in_sync: list[Replica] = named("notInSyncReplicas", factory=list)


@attrs.frozen(eq=False, repr=False)
class ReplicaTable(JsonBody):
    """Answer to 1006: broker name -> replicas. The request has a JSON array of broker names."""

    groups: dict[str, ReplicaGroup] = named("replicasInfoTable", factory=dict)


@attrs.frozen(eq=False, repr=False)
class Epoch(JsonBody):
    """The part of the log that one master wrote."""

    epoch: int
    start_offset: int
    end_offset: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EpochTable(JsonBody):
    """Answer to 1007."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epochs: list[Epoch] = named("epochList", factory=list)
    max_offset: int = 0
