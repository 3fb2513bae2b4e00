"""What brokers and controllers tell each other: 1001 to 1004, 1006, 1007, 1008.

Source: remoting/…/protocol/body/SyncStateSet.java, ElectMasterResponseBody.java, BrokerReplicasInfo.java, EpochEntryCache.java.
"""

import attrs

from triomq.remoting.protocol.bodies.cluster import BrokerMembers
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(eq=False, repr=False)
class SyncStateSet(JsonBody):
    """The ids of the replicas that keep up with the master (1001, 1003, 1004, 1008)."""

    ids: frozenset[int] = attrs.field(default=frozenset(), metadata=named("syncStateSet"))
    epoch: int = attrs.field(default=0, metadata=named("syncStateSetEpoch"))


@attrs.frozen(eq=False, repr=False)
class ElectedMaster(JsonBody):
    """The answer to 1002; who is master stands in the header."""

    members: BrokerMembers | None = attrs.field(default=None, metadata=named("brokerMemberGroup"))
    ids: frozenset[int] = attrs.field(default=frozenset(), metadata=named("syncStateSet"))


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
    in_sync: list[Replica] = attrs.field(factory=list, metadata=named("inSyncReplicas"))
    not_in_sync: list[Replica] = attrs.field(factory=list, metadata=named("notInSyncReplicas"))


@attrs.frozen(eq=False, repr=False)
class ReplicaTable(JsonBody):
    """1006: broker name -> its replicas. The request's body is a JSON array of broker names."""

    groups: dict[str, ReplicaGroup] = attrs.field(factory=dict, metadata=named("replicasInfoTable"))


@attrs.frozen(eq=False, repr=False)
class Epoch(JsonBody):
    """The part of the log that one master wrote."""

    epoch: int
    start_offset: int
    end_offset: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EpochTable(JsonBody):
    """1007."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epochs: list[Epoch] = attrs.field(factory=list, metadata=named("epochList"))
    max_offset: int = 0
