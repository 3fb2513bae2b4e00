"""What the servers say against a spec, with servers that the test makes up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from triomq.client.pipeline import online_check
from triomq.client.pipeline.core.spec import DecodeSpec, RunSpec, SourceSpec, Spec, TableSpec
from triomq.client.pipeline.online_check import check_online
from triomq.client.spark.errors import SourceError, Unreachable
from triomq.client.spark.name_servers import TopicAddresses
from triomq.client.spark.offsets import Bounds, Queue

SIZES = {"here:10911": 4 << 20, "there:10911": 1 << 20}


class Servers:
    """Name servers that know ``orders`` and ``dead`` at one broker, ``small`` at another one."""

    def __init__(self, addresses: tuple[str, ...], _: Any) -> None:
        if addresses == ("silent:9876",):
            raise Unreachable("no name server answers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def routes(self, topics: list[str], _: Any) -> dict[str, TopicAddresses | None]:
        def route(topic: str) -> TopicAddresses | None:
            if topic == "nowhere":
                return None
            address = "there:10911" if topic == "small" else "here:10911"
            return TopicAddresses(topic, {"b": address}, {"b": 0 if topic == "full" else 4})

        return {topic: route(topic) for topic in topics}


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> dict[Queue, Bounds]:
    """What the source can read."""
    found = {Queue("orders", "b", 0): Bounds(0, 5)}
    cluster = SimpleNamespace(
        addresses={"b": "here:10911"}, known_topics={"orders"}, close=lambda: None
    )
    monkeypatch.setattr(online_check, "DriverClient", lambda _: cluster)
    monkeypatch.setattr(online_check, "readable_bounds", lambda *_: found)
    monkeypatch.setattr(online_check, "RouteReader", Servers)
    monkeypatch.setattr(
        online_check, "limits", lambda addresses, _: {each: SIZES[each] for each in addresses}
    )
    return found


def said(topic: str, name_server: str = "ns:9876") -> list[tuple[str, str]]:
    spec = Spec(
        name="p",
        source=SourceSpec(name_server="ns:9876", topics=("orders",)),
        decode=DecodeSpec(format="bytes"),
        sink=TableSpec(kind="topic", topic=topic, name_server=name_server),
        run=RunSpec(checkpoint="/c"),
    )
    return [(each.key, f"{each.cause}; {each.fix}") for each in check_online(spec)]


def test_topics_permissions_and_sizes(bounds: dict[Queue, Bounds]) -> None:
    assert said("dead") == []
    for topic, server, key, text in (
        ("nowhere", "ns:9876", "sink.topic", "topic nowhere does not exist; create it with"),
        ("full", "ns:9876", "sink.topic", "topic full takes no messages"),
        ("small", "ns:9876", "sink.topic", "takes messages of 1048576 bytes, and the source has"),
        ("orders", "other:9876", "sink.topic", "the pipeline reads this topic"),
        ("dead", "silent:9876", "sink.name_server", "no name server answers"),
    ):
        ((found, cause),) = said(topic, server)
        assert found == key
        assert text in cause
    bounds.clear()
    ((key, cause),) = said("dead")
    assert (key, cause.partition(";")[0]) == ("source.topics", "no queue of orders can be read")


def test_a_source_that_cannot_be_read(
    bounds: dict[Queue, Bounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SourceError("the name servers do not know topic orders")

    monkeypatch.setattr(online_check, "readable_bounds", refuse)
    ((key, cause),) = said("dead")
    assert (key, cause.partition(";")[0]) == ("source", "the name servers do not know topic orders")
