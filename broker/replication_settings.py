"""ReplicationSettings: master, slave, and how many copies a send waits for, under Java's names (docs/replication.md has the whole picture)."""

from __future__ import annotations

import attrs

from triomq.broker.replication.admission import NETWORKS, HaAdmission, Network
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.replicas import ReplicaRules
from triomq.remoting.address import format_address, parse_address
from triomq.remoting.settings import BOOLEAN, INTEGER, Kind, setting

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
SYNC_MASTER_REPLICAS = 2


def _read_address(text: str) -> str:
    return format_address(*parse_address(text)) if text else ""


OPTIONAL_ADDRESS: Kind[str] = Kind("host:port, may be empty", _read_address, str)


@attrs.frozen(kw_only=True)
class ReplicationSettings:
    """The HA stream and the waits of a SYNC_MASTER."""

    in_sync_replicas: int = setting(
        "inSyncReplicas",
        INTEGER,
        0,
        "copies of a message, the master's own among them, before a SYNC_MASTER answers SEND_OK; 1: it waits for no slave, which is what Java 5 does by default",
        low=0,
        high=_INT_MAX,
        default_text="0: two, as Java 4",
    )
    min_in_sync_replicas: int = setting(
        "minInSyncReplicas", INTEGER, 1, "a SYNC_MASTER refuses messages while fewer copies than this, its own among them, are in sync", low=1, high=_INT_MAX
    )
    auto_in_sync_replicas: bool = setting(
        "enableAutoInSyncReplicas", BOOLEAN, False, "wait for as many of inSyncReplicas as are in sync, but at least for minInSyncReplicas"
    )
    all_in_sync_acknowledge: bool = setting("allAckInSyncStateSet", BOOLEAN, False, "wait for every slave that is in sync, whatever inSyncReplicas says")
    slave_timeout_ms: int = setting("slaveTimeout", INTEGER, 3_000, "a send is answered FLUSH_SLAVE_TIMEOUT after so long without the slaves (ms)", low=1, high=_INT_MAX)
    available_gap_bytes: int = setting(
        "haSlaveFallbehindMax", INTEGER, 256 * 1024 * 1024, "nobody waits for a slave that is so far behind: SLAVE_NOT_AVAILABLE", low=1, high=_LONG_MAX
    )
    in_sync_gap_bytes: int = setting("haMaxGapNotInSync", INTEGER, 256 * 1024 * 1024, "a slave that is so far behind is not in sync", low=1, high=_LONG_MAX)
    catch_up_ms: int = setting(
        "haMaxTimeSlaveNotCatchup", INTEGER, 15_000, "a slave that has not been at the end of the log for so long is not in sync (ms)", low=1, high=_INT_MAX
    )
    master_address: str = setting("haMasterAddress", OPTIONAL_ADDRESS, "", "the master's HA port, for slaves; empty: name servers say it")
    slave_networks: tuple[Network, ...] = setting(
        "haSlaveAddresses", NETWORKS, (), "only these may open a connection to the HA port, whose protocol has no login; empty: any", default_text="empty", own=True
    )
    connections_max: int = setting("haConnectionsMax", INTEGER, 256, "connections to the HA port at once; one more is turned away", low=1, high=_INT_MAX, own=True)
    address_connections_max: int = setting("haConnectionsPerAddressMax", INTEGER, 32, "of them from one address", low=1, high=_INT_MAX, own=True)
    last_segment_only: bool = setting(
        "syncFromLastFile", BOOLEAN, False, "a new slave copies only the last file of the log, as it always does from a Java master; false: all that a master of ours has"
    )
    heartbeat_ms: int = setting("haSendHeartbeatInterval", INTEGER, 5_000, "sign of life between master and slave (ms)", low=1, high=_INT_MAX)
    silence_ms: int = setting("haHousekeepingInterval", INTEGER, 20_000, "a connection between master and slave is closed after so long without one (ms)", low=1, high=_INT_MAX)
    batch_bytes: int = setting("haTransferBatchSize", INTEGER, 32 * 1024, "log bytes in one frame to a slave", low=1, high=3 * 1024 * 1024)
    limit_rate: bool = setting("haFlowControlEnable", BOOLEAN, False, "send no slave more than maxHaTransferByteInSecond")
    bytes_per_second: int = setting("maxHaTransferByteInSecond", INTEGER, 100 * 1024 * 1024, "bytes a second to each slave with haFlowControlEnable", low=1, high=_LONG_MAX)
    slave_reads: bool = setting("slaveReadEnable", BOOLEAN, False, "a slave serves pulls, and a master sends consumers there that are far behind")
    acting_master: bool = setting(
        "enableSlaveActingMaster",
        BOOLEAN,
        False,
        "while the master is down the slave with the smallest id acts for it, but takes no messages; on all brokers of the group, with supportActingMaster of the name servers",
    )
    remote_escape: bool = setting(
        "enableRemoteEscape", BOOLEAN, False, "a slave that acts as master sends delayed messages that are due to another master; false: they wait for their own"
    )
    skip_pre_online: bool = setting(
        "skipPreOnline", BOOLEAN, False, "with enableSlaveActingMaster: a master that starts does not ask first what a slave has done in its place"
    )
    alive_ms: int = setting("brokerHeartbeatInterval", INTEGER, 1_000, "with enableSlaveActingMaster: sign of life to the name servers (ms)", low=1, high=_INT_MAX)
    alive_timeout_ms: int = setting("sendHeartbeatTimeoutMillis", INTEGER, 1_000, "how long sending one may take (ms)", low=1, high=_INT_MAX)
    not_active_ms: int = setting(
        "brokerNotActiveTimeoutMillis",
        INTEGER,
        10_000,
        "with enableSlaveActingMaster: name servers forget this broker after so long without one (ms)",
        low=1,
        high=_INT_MAX,
    )
    members_ms: int = setting(
        "syncBrokerMemberGroupPeriod", INTEGER, 1_000, "with enableSlaveActingMaster: how often a slave asks the name servers who is there (ms)", low=1, high=_INT_MAX
    )

    def admission(self) -> HaAdmission:
        return HaAdmission(self.connections_max, self.address_connections_max, self.slave_networks)

    def link_rules(self, segment_size: int) -> LinkRules:
        return LinkRules(
            segment_size=segment_size, batch_bytes=self.batch_bytes, heartbeat_seconds=self.heartbeat_ms / 1000, silence_seconds=self.silence_ms / 1000
        )

    def replica_rules(self) -> ReplicaRules:
        """For a SYNC_MASTER."""
        return ReplicaRules(
            in_sync_replicas=self.in_sync_replicas or SYNC_MASTER_REPLICAS,
            min_in_sync_replicas=self.min_in_sync_replicas,
            auto=self.auto_in_sync_replicas,
            all_in_sync=self.all_in_sync_acknowledge,
            available_gap_bytes=self.available_gap_bytes,
            in_sync_gap_bytes=self.in_sync_gap_bytes,
            catch_up_seconds=self.catch_up_ms / 1000,
        )
