"""What clients may not send."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging import checks
from triomq.remoting.messaging.checks import (
    BODY_BYTES_MAX,
    DELAY_MS_MAX,
    check_filter,
    check_invisible_time,
    check_message,
    check_messages,
    group_name,
    topic_name,
)
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.message_properties import RESERVED_PROPERTIES

NOW_MS = 1_764_201_600_123
Code = pb.Code


def plain_message(topic: str = "orders") -> pb.Message:
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=b"a body",
        user_properties={"region": "eu"},
        system_properties=pb.SystemProperties(
            message_id="0102", tag="a tag", keys=["a key", ""], message_type=pb.MessageType.NORMAL
        ),
    )


# Names


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("", "orders", "orders"),
        ("tenant", "orders", "tenant%orders"),
        ("tenant", "tenant%orders", "tenant%orders"),
        ("tenant", "%RETRY%g", "%RETRY%tenant%g"),
        ("tenant", "%DLQ%g", "%DLQ%tenant%g"),
        ("tenant", "%DLQ%tenant%g", "%DLQ%tenant%g"),
        ("", "a%b|c_d-e9", "a%b|c_d-e9"),
        ("", "t" * 127, "t" * 127),
    ],
)
def test_legal_topics(namespace: str, name: str, expected: str) -> None:
    assert topic_name(pb.Resource(resource_namespace=namespace, name=name)) == expected


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("", ""),
        ("", "  "),
        ("tenant", ""),
        ("", "a.b"),
        ("", "a\x01b"),
        ("", "t" * 128),
        ("n" * 100, "t" * 100),
        ("a.b", "orders"),
        ("", "TBW102"),
        ("", "rmq_sys_wheel_timer"),
        ("tenant", "SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_illegal_topics(namespace: str, name: str) -> None:
    resource = pb.Resource(resource_namespace=namespace, name=name)
    for _ in range(2):  # a name that was refused is not kept as a good one
        with pytest.raises(Refused) as refused:
            topic_name(resource)
        assert refused.value.code == Code.ILLEGAL_TOPIC
        assert refused.value.message


def test_a_system_topic_where_it_is_allowed() -> None:
    resource = pb.Resource(resource_namespace="tenant", name="TBW102")
    assert topic_name(resource, system_allowed=True) == "TBW102"
    with pytest.raises(Refused, match="system topic TBW102"):
        topic_name(resource)


def test_groups() -> None:
    assert group_name(pb.Resource(name="g" * 120)) == "g" * 120
    assert group_name(pb.Resource(resource_namespace="tenant", name="g")) == "tenant%g"
    for namespace, name in (
        *(("", name) for name in ("", " ", "g" * 121, "a b", "CID_RMQ_SYS_TRANS")),
        *(("tenant", name) for name in ("", "g" * 120, "TOOLS_CONSUMER")),
        ("a.b", "g"),
    ):
        with pytest.raises(Refused) as refused:
            group_name(pb.Resource(resource_namespace=namespace, name=name))
        assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP


# Messages


def test_an_ordinary_message_passes() -> None:
    message = plain_message()
    assert check_messages([message], NOW_MS) == "orders"
    assert check_messages([message, plain_message()], NOW_MS) == "orders"


def test_no_message_and_messages_of_two_topics() -> None:
    for messages in ([], [plain_message("a"), plain_message("b")]):
        with pytest.raises(Refused) as refused:
            check_messages(messages, NOW_MS)
        assert refused.value.code == Code.MESSAGE_CORRUPTED


def test_every_message_is_checked() -> None:
    second = plain_message()
    second.body = b""
    with pytest.raises(Refused) as refused:
        check_messages([plain_message(), second], NOW_MS)
    assert refused.value.code == Code.MESSAGE_BODY_EMPTY


def _change(**fields: object) -> Callable[[pb.Message], None]:
    """Return a change of system properties; lists replace those of the message."""

    def change(message: pb.Message) -> None:
        system = message.system_properties
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(system, name)[:]
                getattr(system, name).extend(value)
            else:
                setattr(system, name, value)

    return change


def _user(**properties: str) -> Callable[[pb.Message], None]:
    return lambda message: message.user_properties.update(properties)


def _many(count: int) -> Callable[[pb.Message], None]:
    return _user(**{f"p{number}": "v" for number in range(count)})


def _body(size: int) -> Callable[[pb.Message], None]:
    return lambda message: setattr(message, "body", bytes(size))


def _delivery(ahead_ms: int) -> Callable[[pb.Message], None]:
    return lambda message: message.system_properties.delivery_timestamp.FromMilliseconds(
        NOW_MS + ahead_ms
    )


def _recovery(seconds: int, kind: int = pb.MessageType.TRANSACTION) -> Callable[[pb.Message], None]:
    def change(message: pb.Message) -> None:
        message.system_properties.message_type = kind
        message.system_properties.orphaned_transaction_recovery_duration.seconds = seconds

    return change


def _beyond_all_years(message: pb.Message) -> None:
    message.system_properties.delivery_timestamp.seconds = 2**62


# tag, keys and the user property of a plain message
PLAIN_BYTES = len("region") + len("eu") + len("a tag") + len("a key")
ROOM = checks.PROPERTIES_BYTES_MAX - PLAIN_BYTES


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda message: message.topic.Clear(), Code.ILLEGAL_TOPIC),
        (_body(0), Code.MESSAGE_BODY_EMPTY),
        (_body(checks.BODY_BYTES_MAX + 1), Code.MESSAGE_BODY_TOO_LARGE),
        (_many(checks.USER_PROPERTIES_MAX), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (_user(TAGS="a"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (_user(**{"a\x01b": "c"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (_user(a="b\x02c"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (_user(a="\x7f"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (_user(a="\x9f"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (_change(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (_change(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (_change(tag="a\nb"), Code.ILLEGAL_MESSAGE_TAG),
        (_change(keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (_change(keys=["a\x00"]), Code.ILLEGAL_MESSAGE_KEY),
        (_user(a="x" * ROOM), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        # "é" has two bytes
        (_user(a="x" * (ROOM - 2) + "é"), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (_change(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (_change(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (_change(message_id="a\x02b"), Code.ILLEGAL_MESSAGE_ID),
        (_recovery(3601), Code.BAD_REQUEST),
        (_delivery(checks.DELAY_MS_MAX + 1), Code.ILLEGAL_DELIVERY_TIME),
        (_beyond_all_years, Code.ILLEGAL_DELIVERY_TIME),
        (_change(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (_change(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (_change(message_group="é" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (_change(message_group="a\tb"), Code.ILLEGAL_MESSAGE_GROUP),
        (_change(born_host="a\x02PGROUP\x01x"), Code.BAD_REQUEST),
        (_change(trace_context="a\x02TRAN_MSG\x01true"), Code.BAD_REQUEST),
        (_change(message_type=pb.MessageType.LITE), Code.UNSUPPORTED),
        (_change(lite_topic="l"), Code.UNSUPPORTED),
        (_change(message_type=pb.MessageType.PRIORITY), Code.UNSUPPORTED),
        (_change(priority=0), Code.UNSUPPORTED),
    ],
)
def test_refused_messages(change: Callable[[pb.Message], None], code: int) -> None:
    message = plain_message()
    change(message)
    with pytest.raises(Refused) as refused:
        check_message(message, NOW_MS)
    assert refused.value.code == code
    assert refused.value.message


@pytest.mark.parametrize(
    "change",
    [
        _body(checks.BODY_BYTES_MAX),
        _many(checks.USER_PROPERTIES_MAX - 1),
        _user(a="x" * (ROOM - 1)),
        _user(a="x" * (ROOM - 3) + "é"),
        _change(tag=""),
        _change(keys=["", "b"]),
        _recovery(3600),
        _recovery(9999, pb.MessageType.NORMAL),  # which nothing reads
        _delivery(checks.DELAY_MS_MAX),
        _delivery(-NOW_MS),
        _change(message_group="g" * 63),
        _change(message_group="é" * 31),
        _change(trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        # visible to consumers, so producers may set them, as in Java
        _user(__SHARDINGKEY="a", CHECK_IMMUNITY_TIME_IN_SECONDS="9"),
    ],
)
def test_messages_at_the_limits_pass(change: Callable[[pb.Message], None]) -> None:
    message = plain_message()
    change(message)
    check_message(message, NOW_MS)


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_no_reserved_property_passes(name: str) -> None:
    message = plain_message()
    message.user_properties[name] = "a"
    with pytest.raises(Refused, match=f"used by system: {name}"):
        check_message(message, NOW_MS)


def test_the_first_problem_is_reported() -> None:
    """Each repair shows the next problem, in the order of a Java proxy."""
    message = pb.Message()
    system = message.system_properties
    message.user_properties.update({"TAGS": "a", "b": "\x01"})
    system.tag, system.message_group = "|", " "
    system.keys.append(" ")
    system.message_type = pb.MessageType.TRANSACTION
    system.orphaned_transaction_recovery_duration.seconds = 9999
    _delivery(checks.DELAY_MS_MAX + 1)(message)
    repairs: list[tuple[int, Callable[[], object]]] = [
        (Code.ILLEGAL_TOPIC, lambda: setattr(message.topic, "name", "t")),
        (Code.MESSAGE_BODY_EMPTY, lambda: setattr(message, "body", b"b")),
        (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, lambda: message.user_properties.pop("TAGS")),
        (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, lambda: message.user_properties.pop("b")),
        (Code.ILLEGAL_MESSAGE_TAG, lambda: system.ClearField("tag")),
        (Code.ILLEGAL_MESSAGE_KEY, lambda: system.ClearField("keys")),
        (Code.ILLEGAL_MESSAGE_ID, lambda: setattr(system, "message_id", "i")),
        (Code.BAD_REQUEST, lambda: system.ClearField("orphaned_transaction_recovery_duration")),
        (Code.ILLEGAL_DELIVERY_TIME, lambda: system.ClearField("delivery_timestamp")),
        (Code.ILLEGAL_MESSAGE_GROUP, lambda: system.ClearField("message_group")),
    ]
    for code, repair in repairs:
        with pytest.raises(Refused) as refused:
            check_message(message, NOW_MS)
        assert refused.value.code == code, refused.value
        repair()
    check_message(message, NOW_MS)


def test_limits_of_body_and_delivery_time() -> None:
    message = plain_message()
    message.body = bytes(BODY_BYTES_MAX + 1)
    with pytest.raises(Refused, match=f"max {BODY_BYTES_MAX} bytes"):
        check_message(message, NOW_MS)
    message = plain_message()
    _delivery(DELAY_MS_MAX + 1)(message)
    with pytest.raises(Refused, match=f"{DELAY_MS_MAX + 1} ms ahead, max is {DELAY_MS_MAX} ms"):
        check_message(message, NOW_MS)


# Filters and times


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pb.FilterType.TAG, "", ("TAG", "*")),
        (pb.FilterType.TAG, "*", ("TAG", "*")),
        (pb.FilterType.TAG, " * ", ("TAG", "*")),
        (pb.FilterType.TAG, "a || b", ("TAG", "a || b")),
        (pb.FilterType.FILTER_TYPE_UNSPECIFIED, "a", ("TAG", "a")),
        (pb.FilterType.SQL, "price > 10", ("SQL92", "price > 10")),
    ],
)
def test_filters(kind: pb.FilterType, text: str, expected: tuple[str, str]) -> None:
    assert check_filter(pb.FilterExpression(type=kind, expression=text)) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pb.FilterType.TAG, " "),
        (pb.FilterType.TAG, "||"),
        (pb.FilterType.SQL, ""),
        (pb.FilterType.SQL, " "),
    ],
)
def test_filters_that_say_nothing(kind: pb.FilterType, text: str) -> None:
    with pytest.raises(Refused) as refused:
        check_filter(pb.FilterExpression(type=kind, expression=text))
    assert refused.value.code == Code.ILLEGAL_FILTER_EXPRESSION


def test_invisible_times() -> None:
    low, high = 10_000, 12 * 3600 * 1000
    settings = MessagingSettings()
    assert (settings.invisible_ms_min, settings.invisible_ms_max) == (low, high)
    for good in (low, high):
        check_invisible_time(good, minimum_ms=low, maximum_ms=high)
    check_invisible_time(0, minimum_ms=0, maximum_ms=high)
    for bad, minimum in ((low - 1, low), (high + 1, 0), (-1, 0)):
        with pytest.raises(Refused) as refused:
            check_invisible_time(bad, minimum_ms=minimum, maximum_ms=high)
        assert refused.value.code == Code.ILLEGAL_INVISIBLE_TIME
