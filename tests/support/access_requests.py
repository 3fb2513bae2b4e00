"""Requests about topic TA and group GA, as RocketMQ 5.5.0 got them when its answers to each set of
credentials were recorded (``tests/golden/access``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from header_catalogue import HEADERS

from triomq.remoting.protocol.bodies.assignment import MessageRequestMode, QueryAssignmentRequest
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.heartbeat import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.locks import LockRequest
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.fields import codec_of

GOLDEN = Path(__file__).parents[1] / "golden" / "access"
RETRY = "%RETRY%GA"
_TOPICS = {
    "retry topic": RETRY,
    "retry topic, ext group=GB": RETRY,
    "DLQ topic": "%DLQ%GA",
    "trace topic": "RMQ_SYS_TRACE_TOPIC",
    "topic RMQ_SYS_TRACE_TOPIC": "RMQ_SYS_TRACE_TOPIC",
    "new topic (TBW102)": "NewTopic1",
    "topic TBW102": "TBW102",
    "system topic SCHEDULE_TOPIC_XXXX": "SCHEDULE_TOPIC_XXXX",
    "retry v1 topic %RETRY%GA_TA": "%RETRY%GA_TA",
}
_NAMES: dict[str, Any] = {
    "topic": "TA",
    "group": "GA",
    "consumer_group": "GA",
    "producer_group": "PA",
    "target_group": "GA",
    "source_group": "GB",
    "compare_group": "GA",
    "filter_groups": "GB,GC",
    "username": "frank",
    "subject": "User:frank",
    "filter": "frank",
    "verdict": 0,
    "count_max": 1,
}
_FIELDS: dict[tuple[int, str], dict[str, Any]] = {
    (Code.END_TRANSACTION, "no topic"): {"topic": None},
    (Code.VIEW_MESSAGE_BY_ID, "no topic"): {"topic": None},
    (Code.UNREGISTER_CLIENT, "producer"): {"consumer_group": None},
    (Code.UNREGISTER_CLIENT, "consumer"): {"producer_group": None},
    (Code.GET_CONSUME_STATS, "no topic"): {"topic": "", "topic_list": None},
    (Code.GET_CONSUME_STATS, ""): {"topic_list": None},
    (Code.DELETE_TOPIC_IN_BROKER, ""): {"topic": "TD"},
    (Code.DELETE_SUBSCRIPTIONGROUP, ""): {"group": "GD"},
}


def recorded(experiment: str, version: str = "5.5.0") -> Iterator[dict[str, Any]]:
    """Yield the recorded lines of one experiment."""
    with (GOLDEN / f"java-{version}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["exp"] == experiment:
                yield row


def access_request(code: int, variant: str) -> Command:
    """Return one request of the matrix, without credentials."""
    body = _body(code, variant)
    if code not in HEADERS or (cls := HEADERS[Code(code)].request) is None:
        return Command(code, body=body)
    given = {**_NAMES, **_FIELDS.get((code, variant), {})}
    if variant in _TOPICS:
        given["topic"] = _TOPICS[variant]
    values = {
        field.attribute: given[field.attribute]
        if field.attribute in given
        else {str: "x", bool: False, int: 1}[field.kind]
        for field in codec_of(cls).fields
    }
    return request(code, cls(**values), body)


def _body(code: int, variant: str) -> bytes:
    mine = SubscriptionData(topic="TA"), SubscriptionData(topic=RETRY)
    queues = [MessageQueue("TA", "broker-a", 0), MessageQueue(RETRY, "broker-a", 0)]
    if code == Code.HEART_BEAT:
        if variant == "producers only":
            return HeartbeatData(client_id="c1", producers=[ProducerData("PA")]).encode()
        consumers = [ConsumerData(group="GA", subscriptions=list(mine))]
        return HeartbeatData(client_id="c1", consumers=consumers).encode()
    bodies: dict[int, Any] = {
        Code.LOCK_BATCH_MQ: LockRequest(consumer_group="GA", client_id="c1", queues=queues),
        Code.UNLOCK_BATCH_MQ: LockRequest(consumer_group="GA", client_id="c1", queues=queues[:1]),
        Code.CHECK_CLIENT_CONFIG: CheckClientBody(client_id="c1", group="GA", subscription=mine[0]),
        Code.QUERY_ASSIGNMENT: QueryAssignmentRequest(
            topic="TA", consumer_group="GA", client_id="c1"
        ),
        Code.SET_MESSAGE_REQUEST_MODE: MessageRequestMode(topic="TA", consumer_group="GA"),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList([TopicConfig(topic_name="TA")]),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig(group_name="GA"),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList(
            [SubscriptionGroupConfig(group_name="GA")]
        ),
        Code.BATCH_ACK_MESSAGE: BatchAckBody(
            acks=[
                BatchAck(
                    consumer_group="GA",
                    topic="TA",
                    start_offset=0,
                    queue_id=0,
                    revive_queue_id=0,
                    pop_time=0,
                    invisible_ms=60_000,
                )
            ]
        ),
    }
    return bodies[code].encode() if code in bodies else b""
