"""Notices that another broker has the smallest id of its group: only if slaves may act, and only
after a change.
"""

from __future__ import annotations

from typing import Any

from triomq.namesrv.broker_registration import BrokerRegistration
from triomq.namesrv.min_broker_id import MinBrokerIdChange
from triomq.namesrv.routes import RouteTable
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.headers.registration import MinBrokerIdChangeHeader

OWNER = object()


def broker(broker_id: int = 0, *, acting_master: bool = True) -> BrokerRegistration:
    table = TopicTable({name: TopicConfig(topic_name=name) for name in ("T", "U")})
    return BrokerRegistration(
        cluster="C",
        broker_name="a",
        broker_id=broker_id,
        address=f"a{broker_id}:1",
        ha_address=f"a{broker_id}:2",
        table=table,
        acting_master=acting_master,
    )


def register(routes: RouteTable, registration: BrokerRegistration, owner: Any = OWNER) -> None:
    routes.register(registration, owner, 0)


def group(*ids: int, acting: bool = True) -> RouteTable:
    routes = RouteTable()
    for broker_id in ids:
        register(routes, broker(broker_id=broker_id, acting_master=acting))
    routes.take_min_id_changes()
    return routes


def test_the_rest_of_a_group_is_notified_when_its_master_leaves() -> None:
    routes = group(0, 1, 2)
    routes.unregister("C", "a", "a0:1")
    (change,) = routes.take_min_id_changes()
    assert change == MinBrokerIdChange(
        broker_id=1, address="a1:1", left="a0:1", addressees=("a1:1", "a2:1")
    )
    assert routes.take_min_id_changes() == []


def test_the_slaves_are_notified_when_the_master_is_back() -> None:
    routes = group(1, 2)
    register(routes, broker())
    (change,) = routes.take_min_id_changes()
    assert change == MinBrokerIdChange(
        broker_id=0, address="a0:1", ha_address="a0:2", addressees=("a1:1", "a2:1")
    )
    register(routes, broker())
    assert routes.take_min_id_changes() == []


def test_a_lost_connection_counts_as_leaving() -> None:
    routes = RouteTable()
    register(routes, broker(), owner := object())
    register(routes, broker(broker_id=1))
    routes.take_min_id_changes()
    routes.lost(owner)
    assert [(change.broker_id, change.addressees) for change in routes.take_min_id_changes()] == [
        (1, ("a1:1",))
    ]
    routes.lost(OWNER)
    assert routes.take_min_id_changes() == []  # the group is empty


def test_no_notice_for_larger_ids_or_in_groups_without_the_option() -> None:
    routes = group(0, 1)
    register(routes, broker(broker_id=2))
    routes.unregister("C", "a", "a2:1")
    assert routes.take_min_id_changes() == []
    routes = group(0, 1, acting=False)
    routes.unregister("C", "a", "a0:1")
    register(routes, broker(acting_master=False))
    assert routes.take_min_id_changes() == []


def test_the_notice_has_java_s_fields() -> None:
    command = MinBrokerIdChange(broker_id=1, address="a1:1", left="a0:1", addressees=()).notice()
    assert command.code == 905
    assert command.header(MinBrokerIdChangeHeader) == MinBrokerIdChangeHeader(
        min_broker_id=1, min_broker_addr="a1:1", offline_broker_addr="a0:1"
    )
