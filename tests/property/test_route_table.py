"""Any order of registrations, losses and operator commands leaves a RouteTable consistent."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triomq.namesrv.broker_registration import DEFAULT_TIMEOUT_MS, BrokerRegistration, Outcome
from triomq.namesrv.routes import RouteRules, RouteTable
from triomq.remoting.protocol.bodies.route import QueueData
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable

NAMES = st.sampled_from(["a", "b"])
TOPICS = ["T1", "T2", "T3"]
ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
OWNERS = st.integers(0, 3)


class RouteTableMachine(RuleBasedStateMachine):
    """A RouteTable and a clock; the invariants are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.routes = RouteTable()
        self.owners = [object() for _ in range(4)]
        self.now_ms = 0

    @rule(
        name=NAMES,
        broker_id=st.integers(0, 2),
        address=ADDRESSES,
        topics=st.sets(st.sampled_from(TOPICS)),
        version=st.integers(0, 3),
        state=st.integers(0, 2),
        perm=st.sampled_from([4, 6, 7]),
        acting=st.sampled_from([None, False, True]),
        owner=OWNERS,
        timeout_ms=st.sampled_from([DEFAULT_TIMEOUT_MS, 100]),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        topics: set[str],
        version: int,
        state: int,
        perm: int,
        acting: bool | None,
        owner: int,
        timeout_ms: int,
    ) -> None:
        table = TopicTable(
            {topic: TopicConfig(topic_name=topic, perm=perm) for topic in sorted(topics)},
            DataVersion(state, 0, version),
        )
        said = BrokerRegistration(
            cluster="C",
            broker_name=name,
            broker_id=broker_id,
            address=address,
            ha_address="",
            table=table,
            acting_master=acting,
            timeout_ms=timeout_ms,
        )
        outcome = self.routes.register(said, self.owners[owner], self.now_ms).outcome
        held = self.routes.members("C", name).broker_addrs.get(broker_id)
        if outcome in (Outcome.NEW, Outcome.RENEWED):
            assert held == address
            assert self.routes.version("C", address) == table.data_version
            if broker_id == 0:
                assert set(topics) <= set(self.routes.topic_names())

    @rule(owner=OWNERS)
    def lose(self, owner: int) -> None:
        for gone in self.routes.lost(self.owners[owner]):
            assert self.routes.version("C", gone.address) is None

    @rule(pause_ms=st.sampled_from([10, 101, 120_001]))
    def expire(self, pause_ms: int) -> None:
        self.now_ms += pause_ms
        self.routes.expire(self.now_ms)
        assert self.routes.expire(self.now_ms) == ([], [])

    @rule(name=NAMES, address=ADDRESSES)
    def unregister(self, name: str, address: str) -> None:
        self.routes.unregister("C", name, address)

    @rule(name=NAMES, wipe=st.booleans())
    def change_permission(self, name: str, wipe: bool) -> None:
        sum((self.routes.wipe_write_permission if wipe else self.routes.add_write_permission)(name))

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from([None, "C", "other"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.routes.delete_topic(topic, cluster)

    @rule(topic=st.sampled_from(TOPICS), names=st.lists(NAMES, max_size=2))
    def set_topic(self, topic: str, names: list[str]) -> None:
        self.routes.set_topic(topic, [QueueData(name, 1, 1) for name in names])

    @rule(delete=st.booleans(), acting=st.booleans())
    def change_rules(self, delete: bool, acting: bool) -> None:
        self.routes.set_rules(RouteRules(delete_missing_topics=delete, acting_master=acting))

    @invariant()
    def names_have_processes_and_clusters_have_names(self) -> None:
        table = self.routes.cluster_table()
        assert all(data.broker_addrs for data in table.broker_addr_table.values())
        listed = [name for names in table.cluster_addr_table.values() for name in names]
        assert sorted(listed) == sorted(table.broker_addr_table)
        assert all(table.cluster_addr_table.values())

    @invariant()
    def an_address_has_one_id_in_a_name(self) -> None:
        for data in self.routes.cluster_table().broker_addr_table.values():
            assert len(set(data.broker_addrs.values())) == len(data.broker_addrs)

    @invariant()
    def every_topic_has_a_route_to_living_names(self) -> None:
        known = self.routes.cluster_table().broker_addr_table
        for topic in self.routes.topic_names():
            route = self.routes.route(topic)
            assert route is not None
            assert (
                {data.broker_name for data in route.queue_datas}
                == {data.broker_name for data in route.broker_datas}
                <= set(known)
            )

    @invariant()
    def kept_encodings_are_fresh(self) -> None:
        for topic in TOPICS:
            route = self.routes.route(topic)
            assert self.routes.encoded_route(topic, standard=True) == (
                None if route is None else route.encode_standard()
            )
            assert self.routes.encoded_route(topic, standard=False) == (
                None if route is None else route.encode_legacy()
            )
        assert self.routes.encoded_cluster_table() == self.routes.cluster_table().encode(
            bare_keys=True
        )


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
