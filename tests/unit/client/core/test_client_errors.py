"""Errors and settings: messages name cause and fix, errors form one tree, values can be pickled."""

from __future__ import annotations

import importlib.metadata
import inspect
import pickle
import re
import time
from pathlib import Path

import attrs
import pytest

import triomq
import triomq.aio
import triomq.sync
from triomq.client.core import broker_errors, config, errors
from triomq.client.core.config import (
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    namesrv_addresses,
)
from triomq.client.core.errors import (
    Attempt,
    BatchIncomplete,
    BrokerError,
    CallTimeout,
    ConnectionFailed,
    NoNameServer,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SendTimeout,
    SettingsError,
    TopicInvalid,
    TopicNotFound,
    TrioMQError,
    broker_error,
    from_remoting,
)
from triomq.client.core.names import check_group
from triomq.client.receiving.offsets import ConsumeFrom, StartPoint
from triomq.client.receiving.subscribing import make_subscriptions
from triomq.remoting.core import errors as remoting_errors
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.codes import ResponseCode

GOLDEN_DATA = Path(__file__).resolve().parents[3] / "golden"
ATTEMPTS = [
    Attempt(broker="broker-a", seconds=0.5, error=ConnectionFailed("10.0.0.1:10911", "refused"))
]
EXAMPLES = [
    NoNameServer({"a:9876": "refused"}),
    NoNameServer({}),
    RouteNotFound("Orders"),
    RouteNotFound("Orders", "broker broker-z is in no route", offered=True),
    errors.NoBrokerRegistered("Orders"),
    ConnectionFailed("a:1", "refused"),
    errors.ConnectionLost("a:1", "reset"),
    RequestTimeout("a:1", "SEND_MESSAGE_V2", 3.0),
    broker_error(17, "topic[Orders] not exist", "broker-a", "SEND_MESSAGE_V2"),
    broker_error(31337, None),
    SendFailed("Orders", ATTEMPTS),
    SendTimeout("Orders", ATTEMPTS, maybe_stored=True),
    BatchIncomplete([], 3),
    CallTimeout(2.0),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: TrioMQError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert len(str(error)) > 20


def test_a_broker_s_refusal_shows_code_name_remark_and_fix() -> None:
    error = broker_error(17, "topic[Orders] not exist", "broker-a", "SEND_MESSAGE_V2")
    assert isinstance(error, TopicNotFound)
    for part in (
        "broker-a",
        "SEND_MESSAGE_V2",
        "17 TOPIC_NOT_EXIST",
        "topic[Orders] not exist",
        "mqadmin topic create",
    ):
        assert part in str(error)
    assert type(broker_error(31337, "?")) is BrokerError


REFUSALS = [
    (16, "RECALL_MESSAGE", "recall failed, operation is forbidden", "recallMessageEnable=true"),
    (16, "SEND_MESSAGE_V2", "the topic[T] sending message is forbidden", "topic's perm"),
    (16, "PULL_MESSAGE", "subscription group no permission, g", "mqadmin group update"),
    (13, "SEND_MESSAGE_V2", "timer message illegal, the delay time …", "timerMaxDelaySec"),
    (13, "SEND_MESSAGE_V2", "the message is illegal, maybe msg body or …", "4 MiB"),
    (13, "SEND_MESSAGE_V2", "Required message key is missing", "as the broker says"),
    (13, "ACK_MESSAGE", "queueId[9] is illegal, topic:[T]", "as the broker says"),
    (13, "SEND_MESSAGE_V2", None, "4 MiB"),
]


@pytest.mark.parametrize(("code", "request_name", "remark", "hint"), REFUSALS)
def test_a_hint_is_about_what_failed(
    code: int, request_name: str, remark: str | None, hint: str
) -> None:
    text = str(broker_error(code, remark, "broker-a", request_name))
    assert hint in text
    others = {other for _, _, _, other in REFUSALS} - {hint}
    assert [other for other in others if other in text] == []


def test_equal_causes_are_named_once() -> None:
    refused = [
        Attempt(broker="broker-a", seconds=0.01 * n, error=ConnectionFailed("a:1", "refused"))
        for n in range(1, 5)
    ]
    other = Attempt(broker="broker-b", seconds=1, error=RequestTimeout("b:1", "SEND", 1.0))
    text = str(SendFailed("Orders", [*refused[:2], other, *refused[2:]]))
    assert "5 tries: [1, 2, 4, 5] broker-a after up to 0.04 s: cannot connect to a:1" in text
    assert "[3] broker-b after 1.00 s: b:1 did not answer" in text
    assert text.count("refused") == 1


def test_only_a_broker_announces_an_address() -> None:
    assert "brokerIP1" in str(ConnectionFailed("a:1", "refused"))
    own = ConnectionFailed("a:9876", "refused", "check that mqnamesrv runs there")
    for error in (own, pickle.loads(pickle.dumps(own))):
        assert str(error) == "cannot connect to a:9876: refused; check that mqnamesrv runs there"
        assert (error.address, error.reason) == ("a:9876", "refused")


def test_a_busy_answer_names_both_causes() -> None:
    """A slave that may not be read refuses pulls with the code of an overloaded broker."""
    text = str(broker_error(2, "[REJECTREQUEST]system busy", "broker-a", "PULL_MESSAGE"))
    assert "send more slowly" in text
    assert "slaveReadEnable=true" in text


def test_every_code_of_the_table_has_its_own_class_and_fix() -> None:
    shared = {
        kind
        for kind in errors.BROKER_ERRORS.values()
        if list(errors.BROKER_ERRORS.values()).count(kind) > 1
    }
    assert shared == {errors.ControllerRefused}
    for code, kind in errors.BROKER_ERRORS.items():
        assert issubclass(kind, BrokerError)
        assert kind.fix != BrokerError.fix, kind
        if kind is not errors.ControllerRefused:
            assert f"({int(code)})" in (kind.__doc__ or ""), kind
            assert ResponseCode(code).name in (kind.__doc__ or ""), kind
    assert {
        kind
        for _, kind in inspect.getmembers(broker_errors, inspect.isclass)
        if issubclass(kind, BrokerError)
    } == {
        BrokerError,
        broker_errors.TimersUnavailable,  # its code has a class of its own for other requests
        *errors.BROKER_ERRORS.values(),
    }
    for name, value in vars(broker_errors).items():  # errors.py has all names of the tree
        if inspect.isclass(value) and issubclass(value, TrioMQError):
            assert getattr(errors, name) is value


NO_REFUSALS = {
    "SUCCESS": "no error",
    "FLUSH_DISK_TIMEOUT": "a stored message: SendStatus",
    "SLAVE_NOT_AVAILABLE": "a stored message: SendStatus",
    "FLUSH_SLAVE_TIMEOUT": "a stored message: SendStatus",
    "PULL_NOT_FOUND": "a pull without messages",
    "PULL_RETRY_IMMEDIATELY": "a pull whose messages were filtered out",
    "TRANSACTION_SHOULD_COMMIT": "no server of 4.x or 5.x sends it",
    "TRANSACTION_SHOULD_ROLLBACK": "no server of 4.x or 5.x sends it",
    "TRANSACTION_STATE_UNKNOW": "no server of 4.x or 5.x sends it",
    "TRANSACTION_STATE_GROUP_WRONG": "no server of 4.x or 5.x sends it",
    "RPC_UNKNOWN": "made inside a Java process",
    "RPC_ADDR_IS_NULL": "made inside a Java process",
    "RPC_SEND_TO_CHANNEL_FAILED": "made inside a Java process",
    "RPC_TIME_OUT": "made inside a Java process",
}
GOLDEN = {
    1: ("BrokerFailed", True, False),
    2: ("BrokerBusy", True, False),
    3: ("RequestNotSupported", False, False),
    4: ("TransactionFailed", False, False),
    13: ("MessageRefused", False, False),
    14: ("BrokerUnavailable", True, True),
    15: ("VersionNotSupported", False, False),
    16: ("PermissionDenied", True, False),
    17: ("TopicNotFound", True, True),
    18: ("TopicExists", False, False),
    21: ("OffsetOutOfRange", False, False),
    22: ("OffsetNotFound", False, False),
    23: ("SubscriptionInvalid", False, False),
    24: ("SubscriptionUnknown", True, False),
    25: ("SubscriptionOutdated", True, False),
    26: ("GroupNotFound", False, False),
    27: ("FilterUnknown", True, False),
    28: ("FilterOutdated", True, False),
    29: ("ParameterInvalid", False, True),
    204: ("BuyerUnknown", True, False),
    205: ("WrongUnit", True, True),
    206: ("GroupOffline", False, False),
    207: ("ConsumerSilent", True, False),
    208: ("MessageGone", False, False),
    209: ("PollingFull", True, False),
    210: ("PollingTimeout", True, False),
    211: ("BrokerNotFound", False, True),
    212: ("DispatchBehind", True, False),
    213: ("GroupBroadcasts", False, False),
    215: ("FlowControl", True, False),
    501: ("NotLeader", True, True),
    604: ("IllegalOperation", False, False),
    1500: ("BrokerStopping", True, True),
    **dict.fromkeys(range(2000, 2017), ("ControllerRefused", True, False)),
    2017: ("QueueQuotaExceeded", False, False),
    2018: ("SubscriptionQuotaExceeded", False, False),
    3001: ("UserNotFound", False, False),
    3002: ("PolicyNotFound", False, False),
}
"""code → class, retriable, refresh_route"""


@pytest.mark.parametrize("version", ["5.5.0", "4.9.4"])
def test_every_response_code_of_java_has_its_class_or_its_reason(version: str) -> None:
    """The codes are those that the official jars print (tests/golden/headers)."""
    lines = [
        line.split("\t")
        for line in (GOLDEN_DATA / "headers" / f"codes-{version}.tsv").read_text().splitlines()
    ]
    codes = {int(code): name for kind, name, code in lines if kind == "ResponseCode"}
    assert len(codes) > 30
    for code, name in codes.items():
        if name in NO_REFUSALS:
            assert code not in GOLDEN
            assert type(broker_error(code, None)) is BrokerError
        # 209 and 210 had another meaning before 5.3.
        elif version == "5.5.0" or code not in {209, 210}:
            error = broker_error(code, None)
            assert (type(error).__name__, error.retriable, error.refresh_route) == GOLDEN[code], (
                name
            )
            assert name in str(error) or version != "5.5.0"
    if version == "5.5.0":
        assert set(codes) == set(GOLDEN) | {
            code for code, name in codes.items() if name in NO_REFUSALS
        }


@pytest.mark.parametrize(
    ("code", "remark", "fix"),
    [
        (16, "User:ghost is not found.", "that is the caller"),
        (16, "username cannot be null.", "sign the request"),
        (16, "check signature failed.", "correct it"),
        (16, "User:bob is disabled.", "user update -s enable"),
        (16, "User:al has no permission to access Topic:T, no matched policies.", "mqadmin can"),
        (1, "org.apache.rocketmq.acl.common.AclException: No acl config for ghost", "the caller"),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", "sign"),
    ],
)
def test_a_refused_caller_is_named_with_the_way_out(code: int, remark: str, fix: str) -> None:
    """The remarks are those of RocketMQ 5.5.0 and 4.9.4 (tests/golden/access)."""
    text = str(broker_error(code, remark, "b:1", "AUTH_CREATE_USER"))
    assert remark in text
    assert fix in text.partition(" — ")[2]


def test_all_errors_have_one_root_and_are_in_the_docstring_s_tree() -> None:
    tree = errors.__doc__ or ""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, Exception) and kind.__module__ == errors.__name__:
            assert issubclass(kind, TrioMQError)
            if not issubclass(kind, BrokerError) or kind is BrokerError:
                assert re.search(rf"\b{name}\b", tree), name


def test_errors_inherit_from_builtin_errors() -> None:
    assert issubclass(SettingsError, ValueError)
    assert issubclass(ConnectionFailed, OSError)
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(SendTimeout, TimeoutError)


def test_errors_of_the_transport_become_errors_of_the_sdk() -> None:
    assert isinstance(
        from_remoting(remoting_errors.ConnectFailed("a:1", "refused")), ConnectionFailed
    )
    lost = from_remoting(remoting_errors.ConnectionLost("a:1", "reset"))
    assert isinstance(lost, errors.ConnectionLost)
    slow = from_remoting(remoting_errors.RequestTimeout("a:1", 310, 3.0))
    assert isinstance(slow, RequestTimeout)
    assert "SEND_MESSAGE_V2" in str(slow)
    assert isinstance(
        from_remoting(remoting_errors.FrameError("garbage", "stop it")), errors.ProtocolBroken
    )


def test_name_server_addresses() -> None:
    assert namesrv_addresses(" a:9876 ; b:9876;a:9876;") == ("a:9876", "b:9876")
    assert namesrv_addresses(["a:1", "[::1]:2"]) == ("a:1", "[::1]:2")
    assert namesrv_addresses(None, {"NAMESRV_ADDR": "c:3"}) == ("c:3",)
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        namesrv_addresses(None, {})
    with pytest.raises(SettingsError, match="has no port"):
        namesrv_addresses("justahost")


def test_settings_are_checked_and_can_be_pickled() -> None:
    with pytest.raises(SettingsError, match="send_timeout must be greater than 0"):
        ProducerSettings(send_timeout=0)
    with pytest.raises(SettingsError, match="shutdown_timeout"):
        ClientSettings(shutdown_timeout=-1)
    assert ProducerSettings(send_timeout=None).send_timeout is None
    settings = ConsumerSettings(pull_batch=64)
    assert pickle.loads(pickle.dumps(settings)) == settings
    for kind in (ClientSettings, ProducerSettings, ConsumerSettings):
        assert attrs.fields(kind)
    assert "Every default" in (config.__doc__ or "")


def test_defaults_are_java_s() -> None:
    consumer, producer = ConsumerSettings(), ProducerSettings()
    assert (consumer.pull_batch, consumer.suspend, consumer.pull_timeout) == (32, 15.0, 30.0)
    assert (consumer.cached_messages_max, consumer.cached_bytes_max, consumer.cached_span_max) == (
        1000,
        100 << 20,
        2000,
    )
    assert (
        consumer.rebalance_interval,
        consumer.offset_interval,
        consumer.max_reconsume_times,
    ) == (20.0, 5.0, None)
    assert (producer.send_timeout, producer.retries, producer.compress_over_bytes) == (3.0, 2, 4096)
    assert (producer.message_bytes_max, producer.default_topic_queues) == (4 << 20, 4)


def test_groups_and_start_points() -> None:
    assert check_group("billing-1") == "billing-1"
    for bad in ("", "a.b", "DEFAULT_PRODUCER", "x" * 121):
        with pytest.raises(SettingsError):
            check_group(bad)
    assert StartPoint.of("first").where is ConsumeFrom.FIRST
    with pytest.raises(SettingsError, match="consume_from"):
        StartPoint.of("middle")


def test_subscriptions_in_their_three_forms() -> None:
    assert make_subscriptions("T")["T"].sub_string == "*"
    known = SubscriptionData(topic="T", sub_string="old", sub_version=10**15)
    assert make_subscriptions({"T": "new"}, [known])["T"].sub_version == 10**15 + 1
    assert sorted(make_subscriptions(["T", "U"])) == ["T", "U"]
    before_ms = time.time_ns() // 1_000_000
    made = make_subscriptions({"T": "paid || refunded"})["T"]
    assert made.tags == {"paid", "refunded"}
    assert before_ms <= made.sub_version <= time.time_ns() // 1_000_000
    assert make_subscriptions({"T": ""})["T"].tags == frozenset()
    with pytest.raises(SettingsError, match="names no tag"):
        make_subscriptions({"T": " || "})
    with pytest.raises(TopicInvalid):
        make_subscriptions("a.b")


def test_errors_can_be_caught_by_their_names() -> None:
    raised = {
        name
        for name, kind in vars(triomq.client.core.errors).items()
        if inspect.isclass(kind) and issubclass(kind, triomq.TrioMQError)
    }
    assert raised <= set(triomq.__all__), "an error that a user cannot catch by its name"
    assert importlib.metadata.version("triomq") == triomq.__version__
