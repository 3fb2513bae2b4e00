"""Bodies of controller mode: 1001 to 1004, 1006 to 1008.

Source: remoting/…/protocol/body/SyncStateSet.java, ElectMasterResponseBody.java,
BrokerReplicasInfo.java, EpochEntryCache.java.
"""

import attrs

from triomq.remoting.protocol.bodies.cluster import BrokerMembers
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(eq=False, repr=False)
class SyncStateSet(JsonBody):
    """Ids of the replicas that have all acknowledged messages, and the number of the set."""

    ids: frozenset[int] = named("syncStateSet", factory=frozenset)
    epoch: int = named("syncStateSetEpoch", default=0)


@attrs.frozen(eq=False, repr=False)
class ElectMasterBody(JsonBody):
    """Answer to 1002; no members with 2011. Java writes the ids without quotes, and reads both."""

    broker_member_group: BrokerMembers | None = None
    sync_state_set: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ReplicaState(JsonBody):
    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GroupReplicas(JsonBody):
    """The replicas of one group; without a master its id and address are left out."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaState] = attrs.field(factory=list)
    not_in_sync_replicas: list[ReplicaState] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class SyncStateData(JsonBody):
    """Answer to 1006: replicas by broker name; unknown names are left out."""

    replicas_info_table: dict[str, GroupReplicas] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EpochEntry(JsonBody):
    """The log between two offsets was written by the master of one epoch."""

    epoch: int
    start_offset: int
    end_offset: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EpochEntries(JsonBody):
    """Answer of a broker to 1007; a master has id 0, and the last end is the largest long."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochEntry] = attrs.field(factory=list)
    max_offset: int = 0
