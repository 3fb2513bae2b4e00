"""Pure rules of sending: choice of queues, errors worth another try, time of a try, wire form."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from triomq.client.core.broker_errors import BrokerError
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import (
    BROKER_ERRORS,
    Attempt,
    ConnectionFailed,
    ConnectionLost,
    MessageInvalid,
    ProtocolBroken,
    RequestTimeout,
    RouteNotFound,
    SettingsError,
    TopicInvalid,
    TrioMQError,
    broker_error,
)
from triomq.client.core.retry import (
    ATTEMPTS_LISTED_MAX,
    RETRY_CODES,
    BusyBackoff,
    concerns_route,
    found_no_master,
    is_busy,
    listed_attempts,
    may_be_stored,
    may_send_again,
    try_seconds,
)
from triomq.client.sending.destinations import QueueDestination, SendRequests
from triomq.client.sending.encoding import OutgoingMessage, check_sendable, prepare, prepare_batches
from triomq.client.sending.queue_choice import (
    RoundRobin,
    choose_by_key,
    find_queue,
    has_several_brokers,
)
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import PROTOCOL_VERSION, LanguageCode, RequestCode
from triomq.remoting.protocol.command import ONEWAY_FLAG, Outgoing, decode_frame
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.message_properties import decode_properties, parse_properties
from triomq.remoting.protocol.refused_sends import NOT_CONFIRMED, TOO_FEW
from triomq.remoting.protocol.request_template import RequestTemplate

NOW_MS = 1_700_000_000_000


def queues(*brokers: str, count: int = 4) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for broker in brokers for queue_id in range(count)]


def ids() -> UniqueIds:
    return UniqueIds(bytes([10, 0, 0, 1]), 4711, 1)


def prepared(
    message: Message, settings: ProducerSettings | None = None, **more: Any
) -> OutgoingMessage:
    return prepare(
        message.topic,
        message.body,
        settings or ProducerSettings(),
        ids().next(NOW_MS),
        NOW_MS,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        flag=message.flag,
        wait_stored=message.wait_stored,
        **more,
    )


@pytest.mark.parametrize("start", [0, 3, 1023])
def test_round_robin_distributes_evenly(start: int) -> None:
    turn = RoundRobin(start)
    chosen = Counter(turn.choose(queues("a")) for _ in range(400))
    assert set(chosen.values()) == {100}
    assert len(chosen) == 4


def test_a_retry_goes_to_another_broker() -> None:
    turn = RoundRobin(0)
    both = queues("a", "b")
    first = turn.choose(both)
    assert first == both[0]
    second = turn.choose(both, avoid_broker="a")
    assert second == both[4]
    assert turn.choose(both) == both[5]
    assert turn.choose(both, avoid_broker="elsewhere") == both[6]


def test_with_one_broker_a_retry_goes_to_the_next_queue() -> None:
    turn = RoundRobin(0)
    assert [turn.choose(queues("a"), avoid_broker="a").queue_id for _ in range(5)] == [
        0,
        1,
        2,
        3,
        0,
    ]


@pytest.mark.parametrize(
    ("key", "of_4", "of_8", "of_16"),
    [
        ("", 0, 0, 0),
        ("TagA", 3, 7, 7),
        ("order-1", 2, 6, 14),
        ("order-42", 1, 5, 13),
        ("hello world", 0, 4, 4),
        ("订单", 3, 3, 3),
        ("😀", 3, 3, 3),
    ],
)
def test_sharding_key_vectors_of_the_java_client(
    key: str, of_4: int, of_8: int, of_16: int
) -> None:
    assert [choose_by_key(queues("a", count=count), key).queue_id for count in (4, 8, 16)] == [
        of_4,
        of_8,
        of_16,
    ]


def test_a_named_queue() -> None:
    both = queues("a", "b")
    assert find_queue(both, 5) == MessageQueue("T", "b", 1)
    assert find_queue(both, MessageQueue("T", "z", 9)) == MessageQueue("T", "z", 9)
    with pytest.raises(MessageInvalid, match="queues 0 to 7"):
        find_queue(both, 8)
    assert has_several_brokers(both)
    assert not has_several_brokers(queues("a"))


def test_which_errors_are_tried_again() -> None:
    for code in BROKER_ERRORS:
        assert may_send_again(broker_error(code, "no")) == (code in RETRY_CODES)
    assert sorted(int(code) for code in RETRY_CODES) == [1, 2, 14, 16, 17, 204, 205, 1500]
    assert may_send_again(ConnectionFailed("a:1", "refused"))
    assert may_send_again(ConnectionLost("a:1", "reset"))
    assert may_send_again(RequestTimeout("a:1", "SEND_MESSAGE_V2", 1.0))
    assert not may_send_again(MessageInvalid("empty"))
    assert not may_send_again(RouteNotFound("T"))


def test_a_broker_that_has_become_a_slave_makes_the_route_suspect() -> None:
    rejected = BrokerError(2, "[REJECTREQUEST]system busy, start flow control for a while")
    overloaded = BrokerError(2, "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while")
    assert concerns_route(rejected)
    assert not concerns_route(overloaded)
    assert concerns_route(BrokerError(1, TOO_FEW))
    assert concerns_route(BrokerError(1, NOT_CONFIRMED))
    assert not concerns_route(BrokerError(1, "flushing the log to the disk failed"))


def test_which_failed_tries_may_be_stored() -> None:
    assert may_be_stored(ConnectionLost("a:1", "reset"))
    assert may_be_stored(RequestTimeout("a:1", "SEND_MESSAGE_V2", 1.0))
    assert may_be_stored(ProtocolBroken("a:1 answered with an unreadable header"))
    assert not may_be_stored(ConnectionFailed("a:1", "refused"))
    assert may_be_stored(broker_error(1, "flushing the log to the disk failed"))
    assert not may_be_stored(broker_error(2, "busy"))
    assert not may_be_stored(broker_error(1, f"{TOO_FEW} (1 in the sync state set)"))
    assert may_be_stored(broker_error(1, NOT_CONFIRMED))


def test_which_failed_tries_found_no_master() -> None:
    assert found_no_master(ConnectionFailed("a:1", "refused"))
    assert found_no_master(broker_error(1, TOO_FEW))
    assert found_no_master(broker_error(2, "[REJECTREQUEST]system busy"))
    assert found_no_master(broker_error(1500, "the broker stops"))
    assert not found_no_master(broker_error(1, NOT_CONFIRMED))
    assert not found_no_master(broker_error(2, "[TIMEOUT_CLEAN_QUEUE]broker busy"))
    assert not found_no_master(ConnectionLost("a:1", "reset"))


def test_a_hanging_broker_leaves_time_for_another() -> None:
    assert try_seconds(3.0, last_try=False, other_broker=True) == 1.5
    assert try_seconds(1.5, last_try=False, other_broker=True) == 0.75
    assert try_seconds(0.75, last_try=True, other_broker=True) == 0.75
    assert try_seconds(3.0, last_try=False, other_broker=False) == 3.0


def test_a_message_on_the_wire() -> None:
    message = Message(
        topic="T", body=b"hello", tag="paid", keys=("k1", "k2"), properties={"region": "出"}, flag=7
    )
    made = prepared(message, sharding_key="s", delay_level=3)
    assert parse_properties(made.properties) == {
        "region": "出",
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "WAIT": "true",
        "UNIQ_KEY": made.message_id,
        "__SHARDINGKEY": "s",
        "DELAY": "3",
    }
    assert (made.topic, made.body, made.flag, made.sys_flag, made.born_timestamp) == (
        "T",
        b"hello",
        7,
        0,
        NOW_MS,
    )
    assert len(made.message_id) == 32


def test_a_given_message_id_is_kept() -> None:
    made = prepare("T", b"x", ProducerSettings(), "ABC", NOW_MS)
    assert made.message_id == "ABC"
    assert parse_properties(made.properties)["UNIQ_KEY"] == "ABC"


def test_large_bodies_are_deflated_from_4096_bytes_on() -> None:
    small = prepared(Message(topic="T", body=b"a" * 4095))
    large = prepared(Message(topic="T", body=b"a" * 4096))
    assert small.sys_flag == 0
    assert large.sys_flag == 0x301
    assert len(large.body) < 100
    assert plain_body(large.body, large.sys_flag) == b"a" * 4096


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_a_body_that_compression_makes_longer_travels_as_it_is(name: str) -> None:
    """Otherwise the broker would refuse a body at the limit."""
    body = random.Random(7).randbytes(4 * 1024 * 1024)
    made = prepared(Message(topic="T", body=body), ProducerSettings(compression=name))
    assert (made.sys_flag, len(made.body)) == (0, len(body))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message(topic="T", body=b""), "empty body"),
        (Message(topic="T", body=b"x" * 101), "the limit is 100"),
        (Message(topic="T", body=b"x", properties={"KEYS": "a"}), "reserved"),
        (Message(topic="T", body=b"x", properties={"a\x01b": "c"}), "0x01"),
        (Message(topic="T", body=b"x", properties={"a": "x" * 40_000}), "32767"),
        (Message(topic="T", body=b"x", properties={"a": "\ud800"}), "valid text"),
    ],
)
def test_messages_that_brokers_refuse_are_not_sent(message: Message, complaint: str) -> None:
    settings = ProducerSettings(message_bytes_max=100)
    with pytest.raises(MessageInvalid, match=complaint):
        prepared(message, settings)
    with pytest.raises(MessageInvalid, match=complaint):
        prepare_batches([message], settings, ids(), NOW_MS)


def test_the_broker_knows_the_highest_delay_level() -> None:
    """It may have more than 18, and takes a higher one for its highest."""
    assert "DELAY\x0120" in prepared(Message(topic="T", body=b"x"), delay_level=20).properties
    with pytest.raises(MessageInvalid, match="delay_level 2147483648"):
        prepared(Message(topic="T", body=b"x"), delay_level=1 << 31)


@pytest.mark.parametrize("topic", ["", "a.b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "t\n"])
def test_topics_that_cannot_be_used(topic: str) -> None:
    with pytest.raises(TopicInvalid):
        check_sendable(topic)


def test_a_batch_is_cut_at_the_size_limit_and_keeps_its_order() -> None:
    messages = [
        Message(topic="T", body=bytes([number]) * 100, tag="t", flag=number) for number in range(10)
    ]
    made = list(prepare_batches(messages, ProducerSettings(batch_bytes_max=600), ids(), NOW_MS))
    assert len(made) > 1
    assert all(len(batch.carrier.body) <= 600 for batch in made)
    elements = [element for batch in made for element in decode_batch(batch.carrier.body)]
    assert [flag for flag, _, _ in elements] == list(range(10))
    assert [body for _, body, _ in elements] == [message.body for message in messages]
    sent_ids = [message_id for batch in made for message_id in batch.message_ids]
    assert [decode_properties(texts)["UNIQ_KEY"] for _, _, texts in elements] == sent_ids
    carriers = [parse_properties(batch.carrier.properties) for batch in made]
    assert all(carrier["WAIT"] == "true" for carrier in carriers)
    assert len({*sent_ids, *(carrier["UNIQ_KEY"] for carrier in carriers)}) == 10 + len(made)


def test_a_message_larger_than_the_batch_limit_goes_alone() -> None:
    messages = [
        Message(topic="T", body=b"x" * 500),
        Message(topic="T", body=b"y"),
        Message(topic="T", body=b"z"),
    ]
    made = list(prepare_batches(messages, ProducerSettings(batch_bytes_max=300), ids(), NOW_MS))
    assert [len(batch.message_ids) for batch in made] == [1, 2]


def test_a_batch_has_one_topic() -> None:
    with pytest.raises(MessageInvalid, match="one topic"):
        prepare_batches(
            [Message(topic="T", body=b"x"), Message(topic="U", body=b"x")],
            ProducerSettings(),
            ids(),
            NOW_MS,
        )


def made_request(
    requests: SendRequests,
    outgoing: OutgoingMessage,
    queue: MessageQueue,
    code: int,
    flag: int = 0,
    *,
    hooked: bool = False,
) -> Outgoing:
    if hooked:
        return requests.command(outgoing, queue, code, oneway=bool(flag))
    return QueueDestination(queue, queue.broker_name, None, requests).request(outgoing, code, flag)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_the_header_made_from_a_template_is_a_whole_header(code: RequestCode) -> None:
    message = Message(topic="T", body=b"x" * 5000, tag="t", flag=3)
    outgoing = prepared(message)
    requests = SendRequests("orders", ProducerSettings())
    for queue in queues("a", 'b%d"x'):
        header = SendMessageHeader(
            producer_group="orders",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=queue.queue_id,
            sys_flag=0x301,
            born_timestamp=NOW_MS,
            flag=3,
            properties=outgoing.properties,
            reconsume_times=0,
            unit_mode=False,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )
        for hooked in (False, True):
            request = made_request(requests, outgoing, queue, code, hooked=hooked)
            request.opaque = -7
            command = decode_frame(request.encode()[4:])
            assert command.header(SendMessageHeader) == header
            assert (command.code, command.opaque, command.body) == (code, -7, outgoing.body)
            assert command.language == LanguageCode.PYTHON
            assert command.version == PROTOCOL_VERSION
            assert not command.is_oneway
            oneway = made_request(requests, outgoing, queue, code, ONEWAY_FLAG, hooked=hooked)
            assert decode_frame(oneway.encode()[4:]).is_oneway


def test_a_message_too_large_for_a_frame_is_refused() -> None:
    requests = SendRequests("orders", ProducerSettings())
    outgoing, queue = prepared(Message(topic="T", body=b"x")), queues("a")[0]
    outgoing.properties = "\ud800"
    with pytest.raises(LocalProtocolError, match="cannot write the header of code 310"):
        made_request(requests, outgoing, queue, RequestCode.SEND_MESSAGE_V2).encode()
    outgoing.properties = "x" * (1 << 24)
    with pytest.raises(LocalProtocolError, match="cannot hold"):
        made_request(requests, outgoing, queue, RequestCode.SEND_MESSAGE_V2).encode()


def test_templates_of_different_producers_share_nothing_that_is_written() -> None:
    """Each producer may run in a thread of its own; what one writes between two steps of another
    must not get into its frames.
    """
    made = [SendRequests("g", ProducerSettings()).template(queues("a")[0], 310) for _ in range(2)]

    class Numbers(tuple[int, ...]):
        """Numbers during whose comparison the other thread has its turn: after it, what was written
        last is not what was compared.
        """

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            equal = tuple(self) == other
            made[1].make((8, 2000, 0), "y", b"").encode()
            return equal

    made[0].make((1, 1000, 0), "x", b"").encode()
    frame = made[0].make(Numbers((1, 1000, 0)), "x", b"").encode()
    assert (
        decode_frame(frame[4:]).ext
        == decode_frame(made[0].make((1, 1000, 0), "x", b"").encode()[4:]).ext
    )


def test_a_template_takes_numbers_and_then_one_text() -> None:
    header = SendMessageHeader("g", "T", "d", 4, 0, 0, 0, 0, "")
    for varying in (
        ["properties", "topic"],
        ["flag"],
        ["unit_mode", "properties"],
        ["nothing", "properties"],
    ):
        with pytest.raises(TypeError, match="numbers and then one text"):
            RequestTemplate(310, header, varying)


def test_busy_answers_are_followed_by_growing_waits_that_differ_a_little() -> None:
    policy = BusyBackoff(first=1, factor=1.6, jitter=0.2, longest=120)
    middle = [policy.seconds(times, 0.5) for times in range(1, 14)]
    assert middle[:4] == pytest.approx([1, 1.6, 2.56, 4.096])
    assert middle[10:] == pytest.approx([1.6**10, 120, 120])
    assert [policy.seconds(2, chance) for chance in (0, 1)] == pytest.approx([1.6 * 0.8, 1.6 * 1.2])
    assert policy.seconds(10**9, 0.5) == 120
    assert BusyBackoff(first=0).seconds(7, 1.0) == 0
    assert [BusyBackoff().seconds(times, 0.5) for times in (1, 2, 3, 9)] == pytest.approx(
        [0.01, 0.02, 0.04, 1.0]
    )


def test_only_flow_control_is_waited_for() -> None:
    assert {code for code in BROKER_ERRORS if is_busy(broker_error(code, "x"))} == {2, 215}
    assert not is_busy(ConnectionFailed("b", "gone"))
    assert not is_busy(RequestTimeout("b", "SEND", 1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"first": -1}, {"first": 2}, {"factor": 0.5}, {"jitter": 2}, {"longest": float("inf")}],
)
def test_an_invalid_back_off_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        BusyBackoff(**wrong)


def test_an_error_lists_few_tries_but_all_that_may_be_stored() -> None:
    def attempt(number: int, error: TrioMQError) -> Attempt:
        return Attempt(broker=f"b{number}", seconds=0.0, error=error)

    refused = [attempt(number, ConnectionFailed("a:1", "refused")) for number in range(40)]
    lost = attempt(99, ConnectionLost("a:1", "reset"))
    listed = listed_attempts([refused[0], lost, *refused[1:]])
    assert len(listed) == ATTEMPTS_LISTED_MAX
    assert listed[:2] == [refused[0], lost]
    assert listed[2:] == refused[-len(listed) + 2 :]
    assert listed_attempts([lost] * 40) == [lost] * 40
    assert listed_attempts(refused[:3]) == refused[:3]
