"""The pure modules of the service do what the methods of Java's proxy do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.checks import check_messages
from triomq.remoting.messaging.client_settings import merged_settings, retry_delay_ms
from triomq.remoting.messaging.delivered_message import delivered_message
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.route_answers import accepted_types, message_queues
from triomq.remoting.messaging.sent_message import sent_message
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.message_properties import decode_properties, encode_properties
from triomq.remoting.protocol.record_reader import decode_records

FILE = Path(__file__).parents[3] / "golden" / "messaging" / "java-5.5.0.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]


def rows(what: str) -> Any:
    return pytest.mark.parametrize("row", [row for row in ROWS if row["what"] == what])


def decoded(kind: Any, row: dict[str, Any], name: str) -> Any:
    return kind.FromString(bytes.fromhex(row[name]))


def test_all_rows_are_used() -> None:
    counts = Counter(row["what"] for row in ROWS)
    assert counts == {"send": 150, "deliver": 17, "queues": 166, "publishing": 1, "subscription": 7}


@rows("send")
def test_sends(row: dict[str, Any]) -> None:
    message = decoded(pb.Message, row, "message")
    if "code" in row:
        with pytest.raises(Refused) as refused:
            check_messages([message], row["now_ms"])
        assert refused.value.code == row["code"]
        return
    check_messages([message], row["now_ms"])
    sent = sent_message(message, "192.0.2.7:50000", row["now_ms"])
    java = row["properties"]
    if java["RECONSUME_TIME"] == "0":  # says nothing, and is left out
        del java["RECONSUME_TIME"]
    kept = {name: value for name, value in java.items() if value}
    assert decode_properties(encode_properties(sent.properties)) == kept
    assert pb.MessageType.Name(sent.kind) == row["type"]
    assert sent.sys_flag == row["sys_flag"]


@rows("deliver")
def test_deliveries(row: dict[str, Any]) -> None:
    (message,) = decode_records(bytes.fromhex(row["record"]))
    made = delivered_message(
        message, topic=message.topic, handle=message.properties.get("POP_CK", ""), invisible_ms=None
    )
    assert made == decoded(pb.Message, row, "message")


@rows("queues")
def test_queues(row: dict[str, Any]) -> None:
    route = TopicRoute(
        [QueueData("b", row["reads"], row["writes"], row["perm"])],
        [BrokerData("c", "b", {0: "192.0.2.1:10911"})],
    )
    made = message_queues(
        pb.Resource(name="t"),
        route,
        accepted_types(row["type"]),
        lambda name, number: pb.Endpoints(),
    )
    for queue in made:
        queue.broker.ClearField("endpoints")
    assert made == [pb.MessageQueue.FromString(bytes.fromhex(queue)) for queue in row["queues"]]


@rows("publishing")
def test_settings_of_producers(row: dict[str, Any]) -> None:
    settings = decoded(pb.Settings, row, "settings")
    merged = merged_settings(settings, None, MessagingSettings())
    merged.metric.CopyFrom(settings.metric)  # another method's work
    assert merged == decoded(pb.Settings, row, "merged")


@rows("subscription")
def test_settings_of_consumers(row: dict[str, Any]) -> None:
    group = SubscriptionGroupConfig.decode(json.dumps(row["group"]).encode())
    merged = merged_settings(decoded(pb.Settings, row, "settings"), group, MessagingSettings())
    merged.ClearField("metric")
    java = decoded(pb.Settings, row, "merged")
    for name in ("lite_subscription_quota", "max_lite_topic_size"):  # which are not there here
        java.subscription.ClearField(name)
    assert merged == java
    assert [retry_delay_ms(group, times) for times in range(-1, 40)] == row["delays_ms"]
