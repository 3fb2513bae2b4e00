"""RouteTable: which broker name has which topic, which processes stand behind a broker name, and who is alive.

Pure: no clock, no sockets, no log.  Times are milliseconds given by the caller; the connection of a broker is an opaque
`owner`.  Every method is atomic.  Routes are asked for far more often than they change, so their encoded forms are kept:
that of a topic until its queues change, all of them until a broker changes.  Source: namesrv/…/routeinfo/RouteInfoManager.java.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import attrs

from triomq.namesrv.limits import namesrv_limits
from triomq.namesrv.smallest_ids import SmallestId, smallest_of
from triomq.remoting.limits import Limits
from triomq.remoting.protocol.bodies.cluster import BrokerMembers, ClusterTable
from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    BrokerData,
    QueueData,
    TopicRoute,
)
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicNames, TopicTable
from triomq.remoting.protocol.names import SYNC_MEMBERS_PREFIX

DEFAULT_TIMEOUT_MS = 120_000
"""Topics whose routes never show an acting master."""
UNIT_FLAG = 1
UNIT_SUBSCRIPTION_FLAG = 2

Address = tuple[str, str]
"""(cluster, ``ip:port``): what identifies a broker process."""


@attrs.frozen(kw_only=True)
class RouteRules:
    """Switches of a name server that change what its table does."""

    delete_missing_topics: bool = False
    acting_master: bool = False


@attrs.frozen(kw_only=True)
class Registration:
    """What a broker says about itself in REGISTER_BROKER.

    ``acting_master`` None marks a broker older than 5.x; ``filter_servers`` None leaves what is known, empty removes it.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    table: TopicTable
    timeout_ms: int | None = None
    acting_master: bool | None = None
    zone_name: str | None = None
    filter_servers: Sequence[str] | None = None


class Outcome(enum.Enum):
    """What became of a registration."""

    NEW = "new"
    RENEWED = "renewed"
    IGNORED = "ignored"  # another process holds the id with a newer state; answered as success
    TOO_EARLY = "too early"  # a single topic from a broker that is not registered yet


@attrs.frozen
class Registered:
    """The answer to a registration; the master's addresses are for slaves only."""

    outcome: Outcome
    master_address: str | None = None
    master_ha_address: str | None = None


@attrs.frozen
class Departed:
    """One broker process that left the table."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@attrs.define(eq=False)
class _Group:
    """The processes of one broker name."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = attrs.field(factory=dict)
    acting_master: bool = False
    zone_name: str | None = None

    def data(self) -> BrokerData:
        return BrokerData(self.cluster, self.broker_name, dict(sorted(self.addresses.items())), self.acting_master, self.zone_name)


@attrs.define(eq=False)
class _Alive:
    """The last sign of life of one broker process."""

    seen_ms: int
    timeout_ms: int
    version: DataVersion
    ha_address: str
    owner: object
    broker_name: str
    digest: bytes = b""
    """of the body of its last registration; empty when the topics of the next one must be looked at"""


@attrs.define(eq=False)
class RouteTable:
    """All that one name server knows. Changed by its methods only."""

    rules: RouteRules = attrs.field(factory=RouteRules)
    limits: Limits = attrs.field(factory=namesrv_limits)
    _queues: dict[str, dict[str, QueueData]] = attrs.field(factory=dict, init=False)  # topic -> broker name -> queues
    _groups: dict[str, _Group] = attrs.field(factory=dict, init=False)
    _clusters: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)  # cluster -> broker names in order
    _alive: dict[Address, _Alive] = attrs.field(factory=dict, init=False)
    _filter_servers: dict[Address, list[str]] = attrs.field(factory=dict, init=False)
    _mappings: dict[str, dict[str, Any]] = attrs.field(factory=dict, init=False)  # static topics: topic -> broker name -> mapping
    _encoded: dict[str, dict[tuple[bool, str | None], bytes]] = attrs.field(factory=dict, init=False)
    """topic -> (standard JSON?, order configuration) -> the body of the answer"""
    _encoded_clusters: bytes | None = attrs.field(default=None, init=False)
    _smallest_ids: list[SmallestId] = attrs.field(factory=list, init=False)

    # Brokers come and go

    def register(self, registration: Registration, owner: object, now_ms: int) -> Registered:
        """Take over what a broker says about itself and its topics; `owner` is the connection that it said it on.

        Raises: LimitReached, before anything is changed.
        """
        if (registration.cluster, registration.address) not in self._alive:
            self.limits.require("brokers_max", len(self._alive) + 1, f"broker {registration.broker_name[:100]} is not registered")
        servers = len(registration.filter_servers or ())
        self.limits.require("filter_servers_max", servers, f"broker {registration.broker_name[:100]} is not registered, it has {servers} filter servers")
        name, broker_id, address = registration.broker_name, registration.broker_id, registration.address
        group = self._groups.get(name)
        held = {} if group is None else {i: held for i, held in group.addresses.items() if i == broker_id or held != address}
        if broker_id not in held and len(registration.table.topic_config_table) == 1:
            return Registered(Outcome.TOO_EARLY)
        self._clusters.setdefault(registration.cluster, {}).setdefault(name)
        if group is None:
            group = self._groups[name] = _Group(registration.cluster, name)
            self._changed()
        described = (held, bool(registration.acting_master), registration.zone_name)
        if described != (group.addresses, group.acting_master, group.zone_name):
            group.addresses, group.acting_master, group.zone_name = described
            self._look_again(group)
            self._changed()
        if self._held_by_newer(registration, group):
            self._alive.pop((registration.cluster, address), None)
            return Registered(Outcome.IGNORED)

        first = broker_id not in group.addresses
        smallest = min(group.addresses, default=None)
        if group.addresses.get(broker_id) != address:
            group.addresses[broker_id] = address
            self._look_again(group)
            self._changed()
        self._take_topics(registration, group, first)
        self._alive[(registration.cluster, address)] = _Alive(
            now_ms,
            DEFAULT_TIMEOUT_MS if registration.timeout_ms is None else registration.timeout_ms,
            registration.table.data_version,
            registration.ha_address,
            owner,
            name,
        )
        self._take_filter_servers(registration)
        if group.acting_master and first:
            self._note_smallest(smallest_of(group.addresses, smallest, ha_address=registration.ha_address))
        return self._registered(registration.cluster, group, broker_id, Outcome.NEW if first else Outcome.RENEWED)

    def _registered(self, cluster: str, group: _Group, broker_id: int, outcome: Outcome) -> Registered:
        master = group.addresses.get(MASTER_ID)
        alive = None if master is None else self._alive.get((cluster, master))
        if broker_id == MASTER_ID or alive is None:
            return Registered(outcome)
        return Registered(outcome, master, alive.ha_address)

    def renew(self, registration: Registration, digest: bytes, owner: object, now_ms: int) -> Registered | None:
        """The registration of a broker whose last one was the same, byte for byte (`digest`), without its topics: they need not be looked at.

        None when it must be looked at after all: another process, other facts, or topics were deleted here meanwhile.
        """
        alive = self._alive.get((registration.cluster, registration.address))
        group = self._groups.get(registration.broker_name)
        if alive is None or group is None or alive.digest != digest or alive.broker_name != registration.broker_name:
            return None
        facts = (group.addresses.get(registration.broker_id), group.acting_master, group.zone_name, alive.ha_address)
        if facts != (registration.address, bool(registration.acting_master), registration.zone_name, registration.ha_address):
            return None
        alive.seen_ms, alive.owner = now_ms, owner
        alive.timeout_ms = DEFAULT_TIMEOUT_MS if registration.timeout_ms is None else registration.timeout_ms
        return self._registered(registration.cluster, group, registration.broker_id, Outcome.RENEWED)

    def remember(self, cluster: str, address: str, digest: bytes) -> None:
        """What a broker has just registered, for `renew`."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.digest = digest

    def _held_by_newer(self, registration: Registration, group: _Group) -> bool:
        """True if another living process has this id and a higher state version."""
        holder = group.addresses.get(registration.broker_id)
        if holder is None or holder == registration.address:
            return False
        alive = self._alive.get((registration.cluster, holder))
        return alive is not None and alive.version.state_version > registration.table.data_version.state_version

    def _take_topics(self, registration: Registration, group: _Group, first: bool) -> None:
        """Topics count only from the master, or from the smallest id of a group of new brokers."""
        broker_id, name, table = registration.broker_id, registration.broker_name, registration.table
        prime_slave = broker_id != MASTER_ID and registration.acting_master is not None and broker_id == min(group.addresses)
        if broker_id != MASTER_ID and not prime_slave:
            return
        mappings = table.topic_queue_mapping_info_map or {}
        known = {topic.topic_name for topic in table.topic_config_table.values()}
        if self.rules.delete_missing_topics and not mappings and is_complete(name, known):
            self._forget_queues([topic for topic, queues in self._queues.items() if name in queues and topic not in known], [name])
        alive = self._alive.get((registration.cluster, registration.address))
        changed = first or alive is None or alive.version != table.data_version
        readonly = prime_slave and group.acting_master
        room = self.limits.most("topics_max") - len(self._queues)
        for config in table.topic_config_table.values():
            if config.topic_name not in self._queues:
                if room <= 0:
                    self.limits.note("topics_max")
                    continue
                room -= 1
            if changed or name not in self._queues.get(config.topic_name, {}):
                self._set_queues(config.topic_name, _queue_data(name, config, readonly))
        if changed:
            for topic, mapping in mappings.items():
                holder = mapping.get("bname") if isinstance(mapping, dict) else None
                self._mappings.setdefault(topic, {})[holder if isinstance(holder, str) else name] = mapping
                self._encoded.pop(topic, None)

    def _take_filter_servers(self, registration: Registration) -> None:
        key = (registration.cluster, registration.address)
        servers = registration.filter_servers
        if servers is None or list(servers) == self._filter_servers.get(key, []):
            return
        self._changed()
        if servers:
            self._filter_servers[key] = list(servers)
        else:
            self._filter_servers.pop(key, None)

    def unregister(self, cluster: str, broker_name: str, address: str) -> Departed | None:
        """Forget one broker process; the last one of a name takes its queues, and its topics without queues, with it."""
        return next(iter(self.unregister_all([(cluster, broker_name, address)])), None)

    def unregister_all(self, leaving: Iterable[tuple[str, str, str]]) -> list[Departed]:
        """Forget many processes, each (cluster, broker name, address), at once: the topics are gone through one time, however many leave."""
        departed = []
        nameless: set[str] = set()
        headless: list[str] = []
        for cluster, broker_name, address in leaving:
            self._alive.pop((cluster, address), None)
            self._filter_servers.pop((cluster, address), None)
            group = self._groups.get(broker_name)
            if group is None:
                continue
            left = [broker_id for broker_id, held in group.addresses.items() if held == address]
            smallest = min(group.addresses, default=None)
            for broker_id in left:
                del group.addresses[broker_id]
            self._look_again(group)
            if not group.addresses:
                del self._groups[broker_name]
                names = self._clusters.get(cluster, {})
                names.pop(broker_name, None)
                if not names:
                    self._clusters.pop(cluster, None)
                nameless.add(broker_name)
            elif group.acting_master:
                self._note_smallest(smallest_of(group.addresses, smallest, left=address))
                if MASTER_ID not in group.addresses:
                    headless.append(broker_name)
            self._changed()
            if left:
                departed.append(Departed(cluster, broker_name, left[0], address))
        if nameless:
            self._forget_queues(list(self._queues), nameless)
        for broker_name in headless:
            self._change_permissions(broker_name, lambda perm: perm & ~PERM_WRITE)
        return departed

    def _note_smallest(self, change: SmallestId | None) -> None:
        if change is not None:
            self._smallest_ids.append(change)

    def take_smallest_ids(self) -> list[SmallestId]:
        """Groups that let slaves act in which another broker has the smallest id since the last call."""
        changes, self._smallest_ids = self._smallest_ids, []
        return changes

    def holder(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of the living broker process that has this id, in whatever cluster."""
        group = self._groups.get(broker_name)
        address = None if group is None else group.addresses.get(broker_id)
        return address if address is not None and self._find(broker_name, address) is not None else None

    def owner(self, broker_name: str, address: str) -> object | None:
        """Return the connection that a broker process last registered on; None for an unknown one."""
        alive = self._find(broker_name, address)
        return None if alive is None else alive.owner

    def _find(self, broker_name: str, address: str) -> _Alive | None:
        for cluster, names in self._clusters.items():
            if broker_name in names and (alive := self._alive.get((cluster, address))) is not None:
                return alive
        return None

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """A sign of life without news; nothing happens for an unknown broker."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.seen_ms = now_ms

    def expire(self, now_ms: int) -> tuple[list[Departed], list[object]]:
        """Forget the brokers that were silent for too long; return them and the owners (connections) to be closed."""
        silent = {key: alive for key, alive in self._alive.items() if alive.seen_ms + alive.timeout_ms < now_ms}
        return self._unregister_known(silent), [alive.owner for alive in silent.values()]

    def lost(self, owner: object) -> list[Departed]:
        """A connection ended: forget the brokers that last spoke on it."""
        return self._unregister_known({key: alive for key, alive in self._alive.items() if alive.owner is owner})

    def _unregister_known(self, gone: Mapping[Address, _Alive]) -> list[Departed]:
        return self.unregister_all([(cluster, alive.broker_name, address) for (cluster, address), alive in gone.items()])

    # Questions

    def route(self, topic: str, order_conf: str | None = None) -> TopicRoute | None:
        """Queues and brokers of a topic; None if there are no queues or none of their brokers is known."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._groups[name].data() for name in queues if name in self._groups]
        if not brokers:
            return None
        servers = {
            address: self._filter_servers[(data.cluster, address)]
            for data in (brokers if self._filter_servers else ())
            for address in data.broker_addrs.values()
            if (data.cluster, address) in self._filter_servers
        }
        if self.rules.acting_master and not topic.startswith(SYNC_MEMBERS_PREFIX):
            brokers = [_with_acting_master(data, queues[data.broker_name]) for data in brokers]
        return TopicRoute(list(queues.values()), brokers, order_conf, servers, self._mappings.get(topic))

    def encoded_route(self, topic: str, *, standard: bool, order_conf: str | None = None) -> bytes | None:
        """The body that answers a route lookup, in standard JSON or with bare ids; kept until something changes."""
        forms = self._encoded.get(topic)
        encoded = forms.get((standard, order_conf)) if forms is not None else None
        if encoded is None:
            route = self.route(topic, order_conf)
            if route is None:
                return None
            encoded = route.encode_standard() if standard else route.encode_legacy()
            self._encoded.setdefault(topic, {})[standard, order_conf] = encoded
        return encoded

    def cluster_table(self) -> ClusterTable:
        """All brokers and clusters."""
        return ClusterTable(
            {name: group.data() for name, group in self._groups.items()},
            {cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def encoded_cluster_table(self) -> bytes:
        """The body that answers GET_BROKER_CLUSTER_INFO: ids without quotes; kept until something changes."""
        if self._encoded_clusters is None:
            self._encoded_clusters = self.cluster_table().encode(bare_keys=True)
        return self._encoded_clusters

    def members(self, cluster: str, broker_name: str) -> BrokerMembers:
        """The processes of one broker name; none if it is unknown."""
        group = self._groups.get(broker_name)
        return BrokerMembers(cluster, broker_name, {} if group is None else dict(sorted(group.addresses.items())))

    def version(self, cluster: str, address: str) -> DataVersion | None:
        """The version of the topics that this broker last registered; None if it is unknown."""
        alive = self._alive.get((cluster, address))
        return None if alive is None else alive.version

    def topic_names(self) -> list[str]:
        """All topics."""
        return list(self._queues)

    def cluster_topics(self, cluster: str) -> list[str]:
        """The topics of a cluster; none if it is unknown. A topic stands once for each broker name that has it, as in Java."""
        return [topic for name in self._clusters.get(cluster, ()) for topic, queues in self._queues.items() if name in queues]

    def system_names(self) -> TopicNames:
        """Names of clusters and brokers (they are topics too), and the address of some broker to ask for the rest."""
        names = [text for cluster, brokers in self._clusters.items() for text in (cluster, *brokers)]
        addresses = [group.addresses[min(group.addresses)] for group in self._groups.values() if group.addresses]
        return TopicNames(names, addresses[0] if addresses else None)

    def flagged_topics(self, present: int, absent: int = 0) -> list[str]:
        """Topics whose system flag has the bits `present` and not the bits `absent`; their first broker decides."""
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._queues.items() if queues}
        return [topic for topic, flag in flags.items() if flag & present == present and not flag & absent]

    # Changes by operators

    def set_rules(self, rules: RouteRules) -> None:
        """Go on under other rules."""
        self.rules = rules
        for alive in self._alive.values():
            alive.digest = b""
        self._changed()

    def set_topic(self, topic: str, queues: Sequence[QueueData]) -> bool:
        """Write the queues of one topic; entries up to the first of an unknown broker name count only for a known topic."""
        known = [data for data in queues if data.broker_name in self._groups]
        if not queues or (topic not in self._queues and len(known) < len(queues)):
            return False
        for data in queues:
            if data.broker_name not in self._groups:
                return False
            self._set_queues(topic, data)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic: everywhere, or on the brokers of one cluster. A broker that has it registers it again."""
        for alive in self._alive.values():
            alive.digest = b""
        if cluster:
            self._forget_queues([topic], list(self._clusters.get(cluster, ())))
        else:
            self._queues.pop(topic, None)
            self._encoded.pop(topic, None)

    def wipe_write_permission(self, broker_name: str) -> int:
        """No more writes to this broker, until it registers changed topics; return the number of its topics."""
        return self._change_permissions(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Set every topic of this broker to read and write, exactly; return the number of its topics."""
        return self._change_permissions(broker_name, lambda _: PERM_READ | PERM_WRITE)

    # Helpers

    def _set_queues(self, topic: str, data: QueueData) -> None:
        queues = self._queues.setdefault(topic, {})
        if queues.get(data.broker_name) != data:
            queues[data.broker_name] = data
            self._encoded.pop(topic, None)

    def _forget_queues(self, topics: Iterable[str], broker_names: Iterable[str]) -> None:
        names = frozenset(broker_names)
        for topic in topics:
            queues = self._queues.get(topic, {})
            for name in queues.keys() & names:
                del queues[name]
                self._encoded.pop(topic, None)
            if topic in self._queues and not queues:
                del self._queues[topic]

    def _change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        mine = [(topic, queues[broker_name]) for topic, queues in self._queues.items() if broker_name in queues]
        for topic, data in mine:
            self._set_queues(topic, attrs.evolve(data, perm=change(data.perm)))
        return len(mine)

    def _look_again(self, group: _Group) -> None:
        """Whose topics count has changed: look at those of each process when it registers next."""
        for address in group.addresses.values():
            alive = self._alive.get((group.cluster, address))
            if alive is not None:
                alive.digest = b""

    def _changed(self) -> None:
        """A broker came, went or changed: any route may show it."""
        self._encoded.clear()
        self._encoded_clusters = None


def in_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """The route for a client that wants only its zone: masters of other zones and their queues are left out."""
    brokers = [data for data in route.broker_datas if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()]
    names = {data.broker_name for data in brokers}
    addresses = {address for data in brokers for address in data.broker_addrs.values()}
    return attrs.evolve(
        route,
        broker_datas=brokers,
        queue_datas=[data for data in route.queue_datas if data.broker_name in names],
        filter_server_table={address: servers for address, servers in route.filter_server_table.items() if address in addresses},
    )


def is_complete(broker_name: str, topics: Set[str]) -> bool:
    """Return whether a registration has all topics of its broker, not only those that have changed since the last one.

    Nothing in the request says so.  Every broker has a system topic of its own name, and registers it only together with all others.
    Source: broker/BrokerController.java#registerIncrementBrokerData, broker/topic/TopicConfigManager.java.
    """
    return broker_name in topics


def _queue_data(broker_name: str, config: TopicConfig, readonly: bool) -> QueueData:
    perm = config.perm & ~PERM_WRITE if readonly else config.perm
    # Cut instead of refused: the broker's other topics must stay in the routes.
    counts = (min(config.read_queue_count, QUEUES_MAX), min(config.write_queue_count, QUEUES_MAX))
    return QueueData(broker_name, *counts, perm, config.topic_sys_flag)


def _with_acting_master(data: BrokerData, queues: QueueData) -> BrokerData:
    """Show the smallest id as master when there is none, the group allows it, and its queues take no writes."""
    addresses: Mapping[int, str] = data.broker_addrs
    if not data.enable_acting_master or not addresses or MASTER_ID in addresses or queues.perm & PERM_WRITE:
        return data
    smallest = min(addresses)
    others = {broker_id: address for broker_id, address in addresses.items() if broker_id != smallest}
    return attrs.evolve(data, broker_addrs={MASTER_ID: addresses[smallest], **others})
