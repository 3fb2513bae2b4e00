"""A broker's registration, and what the route table keeps of it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set

import attrs

from triomq.remoting.protocol.bodies.route import BrokerData
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicTable

DEFAULT_TIMEOUT_MS = 120_000
"""silence after which a broker is removed, unless its registration says otherwise"""


@attrs.frozen(kw_only=True)
class BrokerRegistration:
    """The contents of REGISTER_BROKER (103).

    ``acting_master`` None marks a broker older than 5.x; ``filter_servers`` None keeps the known
    filter servers, an empty list removes them.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    table: TopicTable
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    acting_master: bool | None = None
    zone_name: str | None = None
    filter_servers: Sequence[str] | None = None


class Outcome(enum.Enum):
    """What became of a registration."""

    NEW = "new"
    RENEWED = "renewed"
    IGNORED = "ignored"
    """another process holds the id with a newer state; answered as success"""
    TOO_EARLY = "too early"
    """a single topic from a broker that is not registered yet"""
    OVERTAKEN = "overtaken"
    """between two steps the process left or registered again; answered as success"""


@attrs.frozen
class Registered:
    """The answer to a registration. Only slaves get the addresses of their master."""

    outcome: Outcome
    master_address: str | None = None
    master_ha_address: str | None = None
    topics_left_out: int = 0
    """topics beyond the limit topicsMax"""


def described(cluster: str, broker_name: str, broker_id: int, address: str) -> str:
    """Return a broker process as logs name it."""
    return f"cluster {cluster}, broker {broker_name} (id {broker_id}, {address})"


@attrs.frozen
class Departed:
    """A broker process that left the table."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    def __str__(self) -> str:
        return described(self.cluster, self.broker_name, self.broker_id, self.address)


@attrs.define(eq=False)
class GroupEntry:
    """The processes of one broker name."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = attrs.field(factory=dict)
    acting_master: bool = False
    zone_name: str | None = None

    def data(self) -> BrokerData:
        return BrokerData(
            self.cluster,
            self.broker_name,
            dict(sorted(self.addresses.items())),
            self.acting_master,
            self.zone_name,
        )


@attrs.define(eq=False)
class ProcessEntry:
    """One broker process: its last heartbeat and registration."""

    seen_ms: int
    timeout_ms: int
    version: DataVersion
    ha_address: str
    owner: object
    broker_name: str
    filter_servers: Sequence[str]
    digest: bytes = b""
    """of the body of its last registration; empty if the next registration must be read in full"""


def is_complete(broker_name: str, topics: Set[str]) -> bool:
    """Return whether a registration has all topics of its broker, not only the changed ones.

    No field contains this. Every broker has a system topic of its own name, and registers that
    topic only together with all others.
    Source: broker/BrokerController.java#registerIncrementBrokerData,
    broker/topic/TopicConfigManager.java.
    """
    return broker_name in topics
