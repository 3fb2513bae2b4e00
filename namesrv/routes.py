"""RouteTable: the brokers of each topic, the processes of each broker, and which are alive.

Pure: no clock, no sockets, no log. Times are milliseconds of the caller's clock; the connection of
a broker is an opaque ``owner``. Every method is atomic, except for ``register_in_steps``. Routes
are read far more often than they change, so their encoded forms are kept: those of a topic until
its queues change, all of them until a broker changes.
Source: namesrv/…/routeinfo/RouteInfoManager.java.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import attrs

from triomq.namesrv import routed_queues
from triomq.namesrv.broker_registration import (
    BrokerRegistration,
    Departed,
    GroupEntry,
    Outcome,
    ProcessEntry,
    Registered,
    is_complete,
)
from triomq.namesrv.leaving_brokers import LeavingBrokers
from triomq.namesrv.min_broker_id import MinBrokerIdChange, min_id_change
from triomq.namesrv.route_views import with_acting_master
from triomq.namesrv.routed_queues import RoutedQueues, queue_data
from triomq.namesrv.table_limits import namesrv_limits
from triomq.remoting.protocol.bodies.cluster import BrokerMembers, ClusterTable
from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    QueueData,
    TopicRoute,
)
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicNames
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.names import SYNC_MEMBERS_PREFIX
from triomq.remoting.server.turns import ROWS_AT_ONCE

_UNFINISHED = DataVersion(-1, -1, -1)
"""the version of a process while its topics are being stored: no broker has it, so a registration
that overtakes this one compares all topics
"""
Address = tuple[str, str]
"""(cluster, ``ip:port``): the identity of a broker process"""


@attrs.frozen(kw_only=True)
class RouteRules:
    """The settings of a name server that its table follows."""

    delete_missing_topics: bool = False
    acting_master: bool = False


@attrs.define(eq=False)
class RouteTable:
    """The brokers and topics registered at one name server. Only its methods change it."""

    rules: RouteRules = attrs.field(factory=RouteRules)
    limits: Limits = attrs.field(factory=namesrv_limits)
    _topics: RoutedQueues = attrs.field(factory=RoutedQueues, init=False)
    _groups: dict[str, GroupEntry] = attrs.field(factory=dict, init=False)
    _clusters: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """cluster -> broker names in order"""
    _alive: dict[Address, ProcessEntry] = attrs.field(factory=dict, init=False)
    _encoded_clusters: bytes | None = attrs.field(default=None, init=False)
    _min_id_changes: list[MinBrokerIdChange] = attrs.field(factory=list, init=False)
    leaving: LeavingBrokers = attrs.field(init=False)
    _filtering: bool = attrs.field(default=False, init=False)
    """whether a broker has ever had filter servers, which RocketMQ 5 has no more"""

    def __attrs_post_init__(self) -> None:
        self.leaving = LeavingBrokers(self._topics)

    # Brokers register and leave

    def register(self, registration: BrokerRegistration, owner: object, now_ms: int) -> Registered:
        """Store the registration of a broker and its topics; ``owner`` is its connection.

        Raises: LimitReached, before anything is changed.
        """
        steps = self.register_in_steps(registration, owner, now_ms)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                registered: Registered = end.value
                return registered

    def register_in_steps(
        self, registration: BrokerRegistration, owner: object, now_ms: int
    ) -> Generator[None, None, Registered]:
        """Do the same as ``register``, and yield after every ``STEP_TOPICS`` topics.

        Raises: LimitReached, before anything is changed.
        """
        cluster, address = process = (registration.cluster, registration.address)
        name, broker_id = registration.broker_name, registration.broker_id
        if process not in self._alive:
            self.limits.require(
                "brokers_max", len(self._alive) + 1, f"broker {name[:100]} is not registered"
            )
        servers = len(registration.filter_servers or ())
        self.limits.require(
            "filter_servers_max",
            servers,
            f"broker {name[:100]} is not registered, it has {servers} filter servers",
        )
        if name in self.leaving:
            self.leaving.finish()
        group = self._groups.get(name)
        held = (
            {}
            if group is None
            else {
                i: held for i, held in group.addresses.items() if i == broker_id or held != address
            }
        )
        if broker_id not in held and len(registration.table.topic_config_table) == 1:
            return Registered(Outcome.TOO_EARLY)
        former = self.name_at(cluster, address)
        if former is not None and former != name:  # a process has one name
            self.unregister(cluster, former, address)
        self._clusters.setdefault(cluster, {}).setdefault(name)
        if group is None:
            group = self._groups[name] = GroupEntry(cluster, name)
            self._changed()
        described = (held, bool(registration.acting_master), registration.zone_name)
        if described != (group.addresses, group.acting_master, group.zone_name):
            group.addresses, group.acting_master, group.zone_name = described
            self._forget_digests(group)
            self._changed()
        if self._held_by_newer(registration, group):
            self._alive.pop(process, None)
            return Registered(Outcome.IGNORED)

        first = broker_id not in group.addresses
        smallest = min(group.addresses, default=None)
        if group.addresses.get(broker_id) != address:
            group.addresses[broker_id] = address
            self._forget_digests(group)
            self._changed()
        before = self._alive.get(process)
        changed = first or before is None or before.version != registration.table.data_version
        known = [] if before is None else before.filter_servers
        filter_servers = (
            known if registration.filter_servers is None else registration.filter_servers
        )
        if filter_servers != known:
            self._filtering = True
            self._changed()
        alive = self._alive[process] = ProcessEntry(
            now_ms,
            registration.timeout_ms,
            _UNFINISHED,
            registration.ha_address,
            owner,
            name,
            filter_servers,
        )
        if group.acting_master and first:
            self._min_id_changes += min_id_change(
                group.addresses, smallest, ha_address=registration.ha_address
            )
        left_out = 0
        for count in self._store_topics(registration, group, changed):
            left_out = count
            yield
            if self._alive.get(process) is not alive:
                return Registered(Outcome.OVERTAKEN)
        alive.version = registration.table.data_version
        outcome = Outcome.NEW if first else Outcome.RENEWED
        registered = self._registered(cluster, group, broker_id, outcome)
        return attrs.evolve(registered, topics_left_out=left_out)

    def _registered(
        self, cluster: str, group: GroupEntry, broker_id: int, outcome: Outcome
    ) -> Registered:
        master = group.addresses.get(MASTER_ID)
        alive = None if master is None else self._alive.get((cluster, master))
        if broker_id == MASTER_ID or alive is None:
            return Registered(outcome)
        return Registered(outcome, master, alive.ha_address)

    def renew(
        self, registration: BrokerRegistration, digest: bytes, owner: object, now_ms: int
    ) -> Registered | None:
        """Register a broker whose last registration had the same body, without reading its topics.

        ``digest``: of the body. ``registration`` has no topics.

        Returns: None if the registration must be read in full: another process, other facts, or
        topics were deleted here since.
        """
        alive = self._alive.get((registration.cluster, registration.address))
        group = self._groups.get(registration.broker_name)
        if (
            alive is None
            or group is None
            or alive.digest != digest
            or alive.broker_name != registration.broker_name
        ):
            return None
        facts = (
            group.addresses.get(registration.broker_id),
            group.acting_master,
            group.zone_name,
            alive.ha_address,
        )
        if facts != (
            registration.address,
            bool(registration.acting_master),
            registration.zone_name,
            registration.ha_address,
        ):
            return None
        alive.seen_ms, alive.owner, alive.timeout_ms = now_ms, owner, registration.timeout_ms
        return self._registered(
            registration.cluster, group, registration.broker_id, Outcome.RENEWED
        )

    def remember(self, cluster: str, address: str, digest: bytes) -> None:
        """Remember the digest of a registration for ``renew``."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.digest = digest

    def _held_by_newer(self, registration: BrokerRegistration, group: GroupEntry) -> bool:
        """Return whether another living process has this id and a higher state version."""
        holder = group.addresses.get(registration.broker_id)
        if holder is None or holder == registration.address:
            return False
        alive = self._alive.get((registration.cluster, holder))
        return (
            alive is not None
            and alive.version.state_version > registration.table.data_version.state_version
        )

    def _store_topics(
        self, registration: BrokerRegistration, group: GroupEntry, changed: bool
    ) -> Iterator[int]:
        """Store and remove topics; yield the number left out by the limit, per step and at the end.

        Only the master's topics count, or those of the smallest id of a group of brokers since 5.x.
        """
        broker_id, name = registration.broker_id, registration.broker_name
        table = registration.table
        prime_slave = (
            broker_id != MASTER_ID
            and registration.acting_master is not None
            and broker_id == min(group.addresses)
        )
        if broker_id != MASTER_ID and not prime_slave:
            return
        mappings = table.topic_queue_mapping_info_map or {}
        known = (
            {topic.topic_name for topic in table.topic_config_table.values()}
            if self.rules.delete_missing_topics and not mappings
            else frozenset()
        )
        if known and is_complete(name, known):
            for step in self._topics.steps(self._topics.of_broker(name)):
                self._topics.remove([topic for topic in step if topic not in known], [name])
                yield 0
        readonly = prime_slave and group.acting_master
        most, left_out = self.limits.most("topics_max"), 0
        by_topic = self._topics.by_topic
        for number, config in enumerate(table.topic_config_table.values(), 1):
            if number % routed_queues.STEP_TOPICS == 0:
                yield left_out
            if config.topic_name not in by_topic and len(by_topic) >= most:
                self.limits.note("topics_max")
                left_out += 1
                continue
            # Parts of one registration may have one version, so an equal version proves nothing.
            self._topics.set_queues(
                config.topic_name,
                queue_data(name, config, readonly=readonly),
                keep_permission=not changed,
            )
        if changed:
            for topic, mapping in mappings.items():
                holder = mapping.get("bname") if isinstance(mapping, dict) else None
                self._topics.set_mapping(
                    topic, holder if isinstance(holder, str) else name, mapping
                )
        yield left_out

    def unregister(
        self, cluster: str, broker_name: str, address: str, broker_id: int | None = None
    ) -> Departed | None:
        """Remove a process; with the last of a name its queues, and topics left without any.

        ``broker_id``: that of the process which leaves. Where another one has its address by now,
        nothing is removed: a new process may register before the last word of the old one arrives.
        """
        group = self._groups.get(broker_name)
        if group is not None and broker_id is not None:
            held = [i for i, held in group.addresses.items() if held == address]
            if held and broker_id not in held:
                return None
        return next(iter(self.unregister_all([(cluster, broker_name, address)])), None)

    def unregister_all(self, leaving: Iterable[tuple[str, str, str]]) -> list[Departed]:
        """Remove many processes (cluster, broker name, address) in one pass over the topics."""
        departed = []
        ended: set[str] = set()
        masterless: list[str] = []
        for cluster, broker_name, address in leaving:
            if self.name_at(cluster, address) == broker_name:
                del self._alive[cluster, address]
            group = self._groups.get(broker_name)
            if group is None:
                self._leave_cluster(cluster, broker_name)
                continue
            left = [broker_id for broker_id, held in group.addresses.items() if held == address]
            smallest = min(group.addresses, default=None)
            for broker_id in left:
                del group.addresses[broker_id]
            self._forget_digests(group)
            if not group.addresses:
                del self._groups[broker_name]
                ended.add(broker_name)
            elif group.acting_master:
                self._min_id_changes += min_id_change(group.addresses, smallest, left=address)
                if MASTER_ID not in group.addresses:
                    masterless.append(broker_name)
            self._leave_cluster(cluster, broker_name)
            self._leave_cluster(group.cluster, broker_name)  # a request may name a wrong cluster
            self._changed()
            if left:
                departed.append(Departed(cluster, broker_name, left[0], address))
        self.leaving.add(ended, masterless)
        return departed

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        """Remove the name from a cluster in which none of its processes lives."""
        group = self._groups.get(broker_name)
        names = self._clusters.get(cluster, {})
        if broker_name in names and (
            group is None
            or not any((cluster, address) in self._alive for address in group.addresses.values())
        ):
            del names[broker_name]
            if not names:
                del self._clusters[cluster]

    def take_min_id_changes(self) -> list[MinBrokerIdChange]:
        """Return the changes since the last call, of groups that allow an acting master."""
        changes, self._min_id_changes = self._min_id_changes, []
        return changes

    def holder(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of the living broker process with this id, in any cluster."""
        group = self._groups.get(broker_name)
        address = None if group is None else group.addresses.get(broker_id)
        if address is None or self._find(broker_name, address) is None:
            return None
        return address

    def name_at(self, cluster: str, address: str) -> str | None:
        """Return the name that the process at this address last registered; None if unknown."""
        alive = self._alive.get((cluster, address))
        return None if alive is None else alive.broker_name

    def seen_ms(self, cluster: str, address: str) -> int:
        """Return when the process at an address was last heard; -1 if it is unknown."""
        alive = self._alive.get((cluster, address))
        return -1 if alive is None else alive.seen_ms

    def owner(self, broker_name: str, address: str) -> object | None:
        """Return the connection that a broker process last registered on; None if it is unknown."""
        alive = self._find(broker_name, address)
        return None if alive is None else alive.owner

    def _find(self, broker_name: str, address: str) -> ProcessEntry | None:
        for cluster, names in self._clusters.items():
            if broker_name in names and (alive := self._alive.get((cluster, address))) is not None:
                return alive
        return None

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """Note that a broker is alive; ignore an unknown broker."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.seen_ms = now_ms

    def expire(self, now_ms: int) -> tuple[list[Departed], list[object]]:
        """Remove silent brokers; return them and their owners, the connections to be closed."""
        silent = {
            key: alive
            for key, alive in self._alive.items()
            if alive.seen_ms + alive.timeout_ms < now_ms
        }
        return self._unregister_known(silent), [alive.owner for alive in silent.values()]

    def lost(self, owner: object) -> list[Departed]:
        """Remove the brokers that last registered on a connection that ended."""
        return self._unregister_known(
            {key: alive for key, alive in self._alive.items() if alive.owner is owner}
        )

    def _unregister_known(self, gone: Mapping[Address, ProcessEntry]) -> list[Departed]:
        return self.unregister_all(
            [(cluster, alive.broker_name, address) for (cluster, address), alive in gone.items()]
        )

    # Questions

    def route(self, topic: str, order_conf: str | None = None) -> TopicRoute | None:
        """Return queues and brokers of a topic; None without queues or without a known broker."""
        queues = self._topics.by_topic.get(topic)
        if queues and self.leaving.gone:
            queues = {name: data for name, data in queues.items() if name in self._groups}
        if not queues:
            return None
        brokers = [self._groups[name].data() for name in queues if name in self._groups]
        if not brokers:
            return None
        servers = {
            address: list(alive.filter_servers)
            for data in (brokers if self._filtering else ())
            for address in data.broker_addrs.values()
            if (alive := self._alive.get((data.cluster, address))) and alive.filter_servers
        }
        if self.rules.acting_master and not topic.startswith(SYNC_MEMBERS_PREFIX):
            brokers = [with_acting_master(data, queues[data.broker_name]) for data in brokers]
        return TopicRoute(
            list(queues.values()), brokers, order_conf, servers, self._topics.mappings.get(topic)
        )

    def encoded_route(
        self, topic: str, *, standard: bool, order_conf: str | None = None
    ) -> bytes | TopicRoute | None:
        """Return the body of a route, in standard JSON or with bare ids; kept until a change.

        A route of many brokers, which takes long to encode, is returned as it is: ``keep_route``
        keeps its body.
        """
        forms = self._topics.encoded.get(topic)
        encoded = forms.get((standard, order_conf)) if forms is not None else None
        if encoded is None:
            route = self.route(topic, order_conf)
            if route is None or len(route.broker_datas) > ROWS_AT_ONCE:
                return route
            encoded = route.encode_standard() if standard else route.encode_legacy()
            self._topics.encoded.setdefault(topic, {})[standard, order_conf] = encoded
        return encoded

    @property
    def changes(self) -> int:
        """A number that grows with each change of what routes show."""
        return self._topics.changes

    def keep_route(
        self, topic: str, form: tuple[bool, str | None], encoded: bytes, changes: int
    ) -> None:
        """Keep the body of a route, unless something has changed since ``changes``."""
        if changes == self._topics.changes:
            self._topics.encoded.setdefault(topic, {})[form] = encoded

    def keep_clusters(self, encoded: bytes, changes: int) -> None:
        """Keep the body of GET_BROKER_CLUSTER_INFO, unless something has changed."""
        if changes == self._topics.changes:
            self._encoded_clusters = encoded

    def cluster_table(self) -> ClusterTable:
        """Return all brokers and clusters."""
        return ClusterTable(
            {name: group.data() for name, group in self._groups.items()},
            {cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def encoded_cluster_table(self) -> bytes | ClusterTable:
        """Return the body of GET_BROKER_CLUSTER_INFO, ids without quotes; kept until a change.

        One of many brokers is returned as it is: ``keep_clusters`` keeps its body.
        """
        if self._encoded_clusters is None:
            if len(self._groups) > ROWS_AT_ONCE:
                return self.cluster_table()
            self._encoded_clusters = self.cluster_table().encode(bare_keys=True)
        return self._encoded_clusters

    def members(self, cluster: str, broker_name: str) -> BrokerMembers:
        """Return the processes of a broker name; an unknown name has none."""
        group = self._groups.get(broker_name)
        return BrokerMembers(
            cluster, broker_name, {} if group is None else dict(sorted(group.addresses.items()))
        )

    def version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker last registered; None if it is unknown."""
        alive = self._alive.get((cluster, address))
        return None if alive is None else alive.version

    def topic_steps(self) -> Iterator[list[str]]:
        """Yield all topics, as many at a time as one step takes."""
        return self._topics.steps()

    def topic_names(self) -> list[str]:
        """Return all topics."""
        return list(self._topics.by_topic)

    def cluster_topics(self, cluster: str, topics: Iterable[str] | None = None) -> list[str]:
        """Return the topics of a cluster, or those of some, once for each broker name that has
        them, as in Java.
        """
        topics = self.topic_names() if topics is None else topics
        names, by_topic = self._clusters.get(cluster, {}), self._topics.by_topic
        return [topic for topic in topics for name in by_topic.get(topic, ()) if name in names]

    def system_names(self) -> TopicNames:
        """Return cluster and broker names, which are topics too, and the address of a broker.

        That broker has the other system topics.
        """
        names = [
            text for cluster, brokers in self._clusters.items() for text in (cluster, *brokers)
        ]
        group = next(iter(self._groups.values()), None)
        return TopicNames(names, None if group is None else group.addresses[min(group.addresses)])

    def flagged_topics(
        self, present: int, absent: int = 0, topics: Iterable[str] | None = None
    ) -> list[str]:
        """Return the topics, or those of some, whose system flag has the bits ``present`` and not
        ``absent``.
        """
        topics = self.topic_names() if topics is None else topics
        return self._topics.flagged(topics, present, absent)

    # Changes by operators

    def set_rules(self, rules: RouteRules) -> None:
        """Follow other rules from now on."""
        self.rules = rules
        for alive in self._alive.values():
            alive.digest = b""
        self._changed()

    def set_topic(self, topic: str, queues: Sequence[QueueData]) -> bool:
        """Store the queues of one topic, up to the first entry of an unknown broker name.

        Returns: whether all names were known. A new topic is stored only if they are.
        """
        known = [data for data in queues if data.broker_name in self._groups]
        if not queues or (topic not in self._topics.by_topic and len(known) < len(queues)):
            return False
        for data in queues:
            if data.broker_name not in self._groups:
                return False
            self._topics.set_queues(topic, data)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from all brokers, or from one cluster; brokers may register it again."""
        for alive in self._alive.values():
            alive.digest = b""
        if cluster:
            self._topics.remove([topic], list(self._clusters.get(cluster, ())))
        else:
            self._topics.delete(topic)

    def wipe_write_permission(self, broker_name: str) -> Iterator[int]:
        """Take the write permission of a broker's topics until they change, in steps; yield the
        number of topics of each.
        """
        for step in self._topics.steps():
            yield self._topics.wipe(step, broker_name)

    def add_write_permission(self, broker_name: str) -> Iterator[int]:
        """Make all topics of a broker exactly readable and writable, in steps; yield the number of
        topics of each.
        """
        for step in self._topics.steps():
            yield self._topics.change_permissions(
                step, broker_name, lambda _: PERM_READ | PERM_WRITE
            )

    # Helpers

    def _forget_digests(self, group: GroupEntry) -> None:
        """Read the next registration of each process in full: other topics may count now."""
        for address in group.addresses.values():
            alive = self._alive.get((group.cluster, address))
            if alive is not None:
                alive.digest = b""

    def _changed(self) -> None:
        """Drop all encoded forms, since any route may show the broker that changed."""
        self._topics.forget_all()
        self._encoded_clusters = None
