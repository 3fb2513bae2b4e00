"""Names with and without a namespace; the forms are those of Java's NamespaceUtil."""

from __future__ import annotations

import pytest

from triomq import ClientSettings, SettingsError
from triomq.client.core.namespace import Namespace
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command

SPACE = Namespace("tenant")


@pytest.mark.parametrize(
    ("own", "full"),
    [
        ("Orders", "tenant%Orders"),
        ("%RETRY%billing", "%RETRY%tenant%billing"),
        ("%DLQ%billing", "%DLQ%tenant%billing"),
        ("other%Orders", "tenant%other%Orders"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_anything", "rmq_sys_anything"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names(own: str, full: str) -> None:
    assert SPACE.full(own) == full
    assert SPACE.full(full) == full
    assert SPACE.own(full) == own


def test_names_of_others_stay_as_they_are() -> None:
    assert SPACE.own("other%Orders") == "other%Orders"
    assert SPACE.own("Orders") == "Orders"


def test_a_request_that_is_sent_again_is_not_changed_twice() -> None:
    ext = {"a": "shop", "b": "Orders", "c": "TBW102", "i": "KEYS\x01k"}
    send = Command(RequestCode.SEND_MESSAGE_V2, ext=ext)
    beat = HeartbeatData(
        client_id="one",
        producers=[ProducerData("shop")],
        consumers=[ConsumerData(group="billing", subscriptions=[SubscriptionData(topic="Orders")])],
    )
    heartbeat = Command(RequestCode.HEART_BEAT, body=beat.encode())
    for _ in range(2):
        SPACE.before_request("b", send)
        SPACE.before_request("b", heartbeat)
        assert ext == {
            "a": "tenant%shop",
            "b": "tenant%Orders",
            "c": "TBW102",
            "i": "KEYS\x01k\x02INSTANCE_ID\x01tenant\x02",
        }
        data = HeartbeatData.decode(bytes(heartbeat.body))
        assert data.producers[0].group == "tenant%shop"
        assert data.consumers[0].group == "tenant%billing"
        assert data.consumers[0].subscriptions[0].topic == "tenant%Orders"


@pytest.mark.parametrize("wrong", ["", "a%b", "a b", "ä", "x" * 65])
def test_namespaces_that_cannot_be(wrong: str) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        ClientSettings(namespace=wrong)
