"""Codes and texts of refusals."""

from __future__ import annotations

import pytest

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import (
    Refused,
    code_name,
    refused_by_broker,
    status,
    top_status,
    unknown_topic,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.refused_sends import NOT_CONFIRMED, TOO_FEW


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (ResponseCode.POLLING_FULL, Code.TOO_MANY_REQUESTS),
        (ResponseCode.FLOW_CONTROL, Code.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, Code.NOT_IMPLEMENTED),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (ResponseCode.RPC_TIME_OUT, Code.PROXY_TIMEOUT),
        (ResponseCode.NO_PERMISSION, Code.FORBIDDEN),
        (ResponseCode.MESSAGE_ILLEGAL, Code.BAD_REQUEST),
        (ResponseCode.INVALID_PARAMETER, Code.BAD_REQUEST),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, Code.ILLEGAL_FILTER_EXPRESSION),
        (ResponseCode.NO_MESSAGE, Code.INVALID_RECEIPT_HANDLE),
        (ResponseCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (ResponseCode.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR),
        (ResponseCode.SERVICE_NOT_AVAILABLE, Code.INTERNAL_SERVER_ERROR),
        (987654, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_codes_of_brokers(code: int, expected: int) -> None:
    refused = refused_by_broker(code, "why and what to do")
    assert refused.code == expected
    assert refused.message == f"CODE: {int(code)}  DESC: why and what to do"


@pytest.mark.parametrize(
    ("code", "remark", "expected"),
    [
        # The remarks of our brokers and of Java's.
        (ResponseCode.NO_PERMISSION, "No accessKey is configured; sign", Code.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "No acl config for accessKey=a", Code.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "check signature failed.", Code.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "User:a is disabled.", Code.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "User:a has no permission to access", Code.UNAUTHORIZED),
        (ResponseCode.NO_PERMISSION, "the topic[t] sending is forbidden", Code.FORBIDDEN),
        (ResponseCode.SYSTEM_ERROR, "User:a is disabled.", Code.INTERNAL_SERVER_ERROR),
        (ResponseCode.SYSTEM_ERROR, f"{TOO_FEW} (1 of 2)", Code.TOO_MANY_REQUESTS),
        (ResponseCode.SYSTEM_ERROR, NOT_CONFIRMED, Code.INTERNAL_SERVER_ERROR),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "current message type not match with topic accept message types: topic",
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger",
            Code.ILLEGAL_DELIVERY_TIME,
        ),
    ],
)
def test_remarks_that_say_more_than_the_code(code: int, remark: str, expected: int) -> None:
    assert refused_by_broker(code, remark).code == expected


@pytest.mark.parametrize("remark", [None, ""])
def test_a_broker_without_a_reason(remark: str | None) -> None:
    refused = refused_by_broker(ResponseCode.SYSTEM_BUSY, remark)
    assert refused.message == "CODE: 2  DESC: the broker gave no reason; see its log"


def test_an_unknown_topic_has_the_words_that_users_look_for() -> None:
    refused = unknown_topic("orders")
    assert refused.code == Code.TOPIC_NOT_FOUND
    words = "CODE: 17  DESC: No topic route info in name server for the topic: orders"
    assert refused.message.startswith(words)


def test_a_refusal_as_status_and_as_text() -> None:
    refused = Refused(Code.ILLEGAL_TOPIC, "a reason")
    answer = refused.status()
    assert (answer.code, answer.message) == (40002, "a reason")
    assert str(refused) == "ILLEGAL_TOPIC: a reason"
    assert code_name(12345) == "12345"


def test_a_status_is_ok_by_default() -> None:
    assert (status().code, status().message) == (20000, "OK")


@pytest.mark.parametrize(
    ("codes", "expected", "text"),
    [
        ([], Code.OK, "OK"),
        ([Code.OK, Code.OK], Code.OK, "OK"),
        ([Code.HA_NOT_AVAILABLE], Code.HA_NOT_AVAILABLE, "HA_NOT_AVAILABLE"),
        ([Code.OK, Code.INVALID_RECEIPT_HANDLE], Code.MULTIPLE_RESULTS, "see each entry"),
    ],
)
def test_the_status_of_a_call_with_entries(codes: list[int], expected: int, text: str) -> None:
    answer = top_status(iter(codes))
    assert answer.code == expected
    assert text in answer.message
