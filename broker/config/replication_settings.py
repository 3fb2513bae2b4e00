"""ReplicationSettings: master, slave, and the number of copies that a send waits for.

docs/replication.md explains them together.
"""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

import attrs

from triomq.broker.replication.connection_limits import HaConnectionLimits
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.replicas import ReplicaRules
from triomq.remoting.core.address import format_address, parse_address
from triomq.remoting.core.networks import NETWORKS, AddressRange
from triomq.remoting.core.settings import ADDRESSES, LONG_MAX, Kind, flag, group, number, setting


@attrs.frozen(kw_only=True)
class ControllerModeSettings:
    """The controllers, and how often this broker speaks with them.

    enabled: a controller gives this broker its id and its role, and another master when that one
        dies; brokerId and brokerRole are not read
    addresses: all controllers: host:port, separated by ;
    poll_ms: with enableControllerMode: how often the controllers are asked for master and set (ms)
    heartbeat_timeout_ms: silence after which the controllers elect another master (ms); after four
        fifths of it a master that hears neither controllers nor slaves takes no messages
    priority: of equal candidates the one with the smallest number becomes master
    """

    enabled: bool = flag("enableControllerMode", False)
    addresses: tuple[str, ...] = setting("controllerAddr", ADDRESSES, ())
    poll_ms: int = number("syncBrokerMetadataPeriod", 1_000)
    heartbeat_timeout_ms: int = number("controllerHeartBeatTimeoutMills", 10_000, low=1_000)
    priority: int = number("brokerElectionPriority", 2**31 - 1, low=0, high=2**31 - 1)

    @property
    def lease_seconds(self) -> float:
        """Return how long a master goes on after the last answer of controllers and members."""
        return 0.8 * self.heartbeat_timeout_ms / 1000


def _read_address(text: str) -> str:
    return format_address(*parse_address(text)) if text else ""


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


NAMES: Kind[tuple[str, ...]] = Kind(
    "names, separated by commas; may be empty", _read_names, ",".join
)
OPTIONAL_ADDRESS: Kind[str] = Kind("host:port, may be empty", _read_address, str)


@attrs.frozen(kw_only=True)
class ReplicationSettings:
    """The HA stream and the waits of a SYNC_MASTER.

    slave_timeout_ms: wait for slaves after which a send is answered FLUSH_SLAVE_TIMEOUT (ms)
    master_address: the master's HA port, for slaves; empty: name servers tell it
    slave_networks: addresses that may connect to the HA port; empty: any
    authentication: slaves log in at the HA port with innerClientAuthenticationCredentials, and
        their master shows that it knows them; on all brokers of the group. A slave of RocketMQ
        cannot log in
    tls: TLS between master and slaves, with the files of tls.server.* and tls.client.*, whatever
        tls.server.mode says; on all brokers of the group. Brokers of RocketMQ have no such TLS
    certificate_names: with haTls: slaves show a certificate of tls.server.trustCertPath with one of
        these common names; empty: a master asks for none
    connections_max: most connections to the HA port at once
    address_connections_max: most connections to the HA port from one address
    last_segment_only: a new slave copies only the last file of the log, as it always does from a
        Java master; false: the whole log of a TrioMQ master
    heartbeat_ms: interval of signs of life between master and slave (ms)
    silence_ms: a connection between master and slave without one for this time is closed (ms)
    batch_bytes: log bytes in one frame to a slave
    limit_rate: send no slave more than maxHaTransferByteInSecond
    bytes_per_second: bytes a second to each slave with haFlowControlEnable
    slave_reads: a slave serves pulls, and a master sends consumers there that are far behind
    acting_master: while the master is down the slave with the smallest id acts for it, but takes no
        messages; on all brokers of the group, with supportActingMaster of the name servers
    remote_escape: a slave that acts as master sends delayed messages that are due to another
        master; false: they wait for their own master
    skip_pre_online: with enableSlaveActingMaster: a master that starts does not take over first
        what a slave has done in its place
    alive_ms: interval of signs of life to the name servers, with enableSlaveActingMaster, and to
        the controllers, with enableControllerMode (ms)
    alive_timeout_ms: time limit for sending a sign of life (ms)
    not_active_ms: with enableSlaveActingMaster: silence after which name servers forget this broker
        (ms)
    members_ms: with enableSlaveActingMaster: how often a slave asks for the members of its group
        (ms)
    """

    replicas: ReplicaRules = group(ReplicaRules)
    controller: ControllerModeSettings = group(ControllerModeSettings)
    slave_timeout_ms: int = number("slaveTimeout", 3_000)
    master_address: str = setting("haMasterAddress", OPTIONAL_ADDRESS, "")
    slave_networks: tuple[AddressRange, ...] = setting(
        "haSlaveAddresses", NETWORKS, (), default_text="empty", own=True
    )
    authentication: bool = flag("haAuthentication", False, own=True)
    tls: bool = flag("haTls", False, own=True)
    certificate_names: tuple[str, ...] = setting(
        "haCertificateNames", NAMES, (), default_text="empty", own=True
    )
    connections_max: int = number("haConnectionsMax", 256, own=True)
    address_connections_max: int = number("haConnectionsPerAddressMax", 32, own=True)
    last_segment_only: bool = flag("syncFromLastFile", False)
    heartbeat_ms: int = number("haSendHeartbeatInterval", 5_000)
    silence_ms: int = number("haHousekeepingInterval", 20_000)
    batch_bytes: int = number("haTransferBatchSize", 32 * 1024, high=3 * 1024 * 1024)
    limit_rate: bool = flag("haFlowControlEnable", False)
    bytes_per_second: int = number("maxHaTransferByteInSecond", 100 * 1024 * 1024, high=LONG_MAX)
    slave_reads: bool = flag("slaveReadEnable", False)
    acting_master: bool = flag("enableSlaveActingMaster", False)
    remote_escape: bool = flag("enableRemoteEscape", False)
    skip_pre_online: bool = flag("skipPreOnline", False)
    alive_ms: int = number("brokerHeartbeatInterval", 1_000)
    alive_timeout_ms: int = number("sendHeartbeatTimeoutMillis", 1_000)
    not_active_ms: int = number("brokerNotActiveTimeoutMillis", 10_000)
    members_ms: int = number("syncBrokerMemberGroupPeriod", 1_000)

    @property
    def asks_slaves(self) -> str:
        """The settings that stop strangers at the HA port; empty: none does."""
        asking = {
            "haAuthentication": self.authentication,
            "haCertificateNames": self.certificate_names,
            "haSlaveAddresses": self.slave_networks,
        }
        return ", ".join(name for name, wanted in asking.items() if wanted)

    def connection_limits(self) -> HaConnectionLimits:
        return HaConnectionLimits(
            self.connections_max, self.address_connections_max, self.slave_networks
        )

    def link_rules(self, segment_size: int) -> LinkRules:
        return LinkRules(
            segment_size=segment_size,
            batch_bytes=self.batch_bytes,
            heartbeat_seconds=self.heartbeat_ms / 1000,
            silence_seconds=self.silence_ms / 1000,
        )
