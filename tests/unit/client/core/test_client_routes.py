"""Routes: publish list, subscribe set, broker addresses, and the choice of a name server."""

from __future__ import annotations

from triomq.client.core.routes import KnownRoutes, as_template, derive_queues
from triomq.remoting.client.name_servers import SILENT_SECONDS, NameServers
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute


def route(
    *brokers: tuple[str, int, int, int], slaves: tuple[str, ...] = (), order: str | None = None
) -> TopicRoute:
    """(name, read queues, write queues, perm) each; brokers in ``slaves`` have no master."""
    return TopicRoute(
        [QueueData(name, read, write, perm) for name, read, write, perm in brokers],
        [
            BrokerData(
                "c",
                name,
                {1: f"{name}-slave:1"}
                if name in slaves
                else {0: f"{name}:1", 1: f"{name}-slave:1"},
            )
            for name, *_ in brokers
        ],
        order,
    )


def names(queues: object) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]  # type: ignore[attr-defined]


def test_the_publish_list_is_ordered_by_broker_name_and_has_the_write_queues() -> None:
    queues = derive_queues("T", route(("b", 2, 3, 6), ("a", 4, 2, 6)))
    assert names(queues.publish) == ["a0", "a1", "b0", "b1", "b2"]
    assert names(queues.subscribe) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert queues.brokers == ("a", "b")


def test_permissions_and_missing_masters() -> None:
    queues = derive_queues(
        "T", route(("a", 1, 1, 4), ("b", 1, 1, 2), ("c", 1, 1, 6), slaves=("c",))
    )
    assert names(queues.publish) == ["b0"]
    assert names(queues.subscribe) == ["a0", "c0"]


def test_an_ordered_topic_has_fixed_queues() -> None:
    queues = derive_queues("T", route(("a", 4, 4, 6), order="b:2;a:1;broken"))
    assert names(queues.publish) == ["b0", "b1", "a0"]
    assert names(derive_queues("T", route(("a", 1, 1, 6), order="")).publish) == ["a0"]


def test_the_template_gives_a_new_topic_at_most_the_wanted_queues() -> None:
    capped = as_template(route(("a", 8, 8, 7), ("b", 2, 2, 7)), 4)
    assert names(derive_queues("New", capped, template=True).publish) == [
        "a0",
        "a1",
        "a2",
        "a3",
        "b0",
        "b1",
    ]


def test_known_routes_merge_addresses_and_drop_them() -> None:
    table = KnownRoutes()
    assert table.update("T", route(("a", 1, 1, 6)))
    assert not table.update("T", route(("a", 1, 1, 6)))
    assert table.update("U", route(("b", 1, 1, 6), slaves=("b",)))
    assert table.master("a") == "a:1"
    assert table.master("b") is None
    assert table.master("nobody") is None
    assert table.any_address("b") == "b-slave:1"
    assert table.any_address("a", 1) == "a-slave:1"
    assert table.any_address("a", 7) == "a:1"
    assert table.any_address("nobody") is None
    assert sorted(table.addresses(masters_only=True)) == ["a:1"]
    assert sorted(table.addresses(masters_only=False)) == ["a-slave:1", "a:1", "b-slave:1"]
    assert table.update("T", TopicRoute())
    assert table.publish("T") == ()
    assert table.addresses(masters_only=True) == []


def test_the_newest_route_wins_where_two_differ() -> None:
    table = KnownRoutes()
    table.update("T", route(("a", 1, 1, 6)))
    moved = TopicRoute([QueueData("a", 1, 1)], [BrokerData("c", "a", {0: "elsewhere:1"})])
    table.update("U", moved)
    assert table.master("a") == "elsewhere:1"
    assert table.update("T", back := route(("a", 1, 1, 6)))  # the same as before: it is back
    assert table.master("a") == "a:1"
    assert not table.update("T", back)
    assert not table.update("U", moved) or table.master("a") == "elsewhere:1"


def test_a_real_route_replaces_the_template() -> None:
    table = KnownRoutes()
    shape = route(("a", 1, 1, 6))
    table.update("T", shape, template=True)
    known = table.topic("T")
    assert known is not None
    assert known.template
    assert table.update("T", shape)
    known = table.topic("T")
    assert known is not None
    assert not known.template


def test_name_servers_stick_to_the_one_that_answers() -> None:
    servers = NameServers(["a:1", "b:1", "c:1"], 1)
    assert servers.order(0.0) == ["b:1", "c:1", "a:1"]
    servers.answered("a:1")
    assert servers.order(0.0) == ["a:1", "b:1", "c:1"]
    assert servers.order(0.0)[0] == "a:1"


def test_a_silent_name_server_is_asked_last_until_it_answers_or_its_time_is_over() -> None:
    servers = NameServers(["a:1", "b:1", "c:1"], 0)
    servers.was_silent("a:1", 100.0)
    assert servers.order(100.0) == ["b:1", "c:1", "a:1"]
    assert servers.order(100.0 + SILENT_SECONDS) == ["a:1", "b:1", "c:1"]
    servers.answered("a:1")
    assert servers.order(100.0) == ["a:1", "b:1", "c:1"]
