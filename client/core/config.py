"""Settings of the SDK: frozen values, durations in seconds, sizes in bytes.

Every default is the one in effect in the official Java client, where a peer could tell the
difference; ``metadata["java"]`` names its setting there. Build a class with the settings that
differ, or change one with ``attrs.evolve``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import attrs

from triomq.client.core.errors import SettingsError
from triomq.client.core.message_hooks import CheckForbidden, ConsumeHook, SendHook
from triomq.client.core.retry import RETRY_CODES, BusyBackoff
from triomq.client.core.servers import namesrv_addresses as namesrv_addresses
from triomq.client.core.setting_types import typed
from triomq.remoting.client.rpc_hooks import RpcHook
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.compression import Compression
from triomq.remoting.protocol.names import DEFAULT_TOPIC, TRACE_TOPIC, topic_complaint
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

T = TypeVar("T")
_Check = Callable[[object, "attrs.Attribute[Any]", Any], object]


def _setting(default: T, java: str = "", check: _Check | None = None) -> T:
    """Return a field; ``java``: the name of the setting in the official client."""
    made: T = attrs.field(default=default, validator=check, metadata=_java(java))
    return made


def _java(name: str) -> dict[str, str]:
    return {"java": name} if name else {}


def _positive(default: T, java: str = "") -> T:
    def check(instance: object, attribute: attrs.Attribute[object], value: float | None) -> None:
        if value is not None and not value > 0:
            raise SettingsError(f"{attribute.name} must be greater than 0, not {value!r}")

    return _setting(default, java, check)


def _not_negative(default: T, java: str = "") -> T:
    def check(instance: object, attribute: attrs.Attribute[object], value: float | None) -> None:
        if value is not None and value < 0:
            raise SettingsError(f"{attribute.name} must be 0 or greater, not {value!r}")

    return _setting(default, java, check)


# Converters with names: type checkers then accept any list where a tuple is kept.


def _codes(given: Iterable[int]) -> frozenset[int]:
    return frozenset(given)


def _seconds(given: Iterable[float]) -> tuple[float, ...]:
    return tuple(given)


def _send_hooks(given: Iterable[SendHook]) -> tuple[SendHook, ...]:
    return tuple(given)


def _checks(given: Iterable[CheckForbidden]) -> tuple[CheckForbidden, ...]:
    return tuple(given)


def _consume_hooks(given: Iterable[ConsumeHook]) -> tuple[ConsumeHook, ...]:
    return tuple(given)


def _rpc_hooks(given: Iterable[RpcHook]) -> tuple[RpcHook, ...]:
    return tuple(given)


def _namespace(instance: object, attribute: attrs.Attribute[object], value: str | None) -> None:
    if value is not None and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", value) is None:
        raise SettingsError(
            f"namespace {value!r} cannot be used: 1 to 64 letters, digits, '_' and '-'"
        )


@runtime_checkable
class TracerProvider(Protocol):
    """OpenTelemetry's tracer provider, as far as this package needs it."""

    def get_tracer(self, name: str, /) -> Any:
        """Return what makes the spans of one library."""


def _topic(instance: object, attribute: attrs.Attribute[object], value: str) -> None:
    if (complaint := topic_complaint(value)) is not None:
        raise SettingsError(f"{attribute.name} cannot be used: {complaint}")


@attrs.frozen(kw_only=True, field_transformer=typed)
class ClientSettings:
    """Settings that producers and consumers share: connections, routes, heartbeats, start, stop.

    Name servers and routes:

    - ``name_server_refresh``: seconds between two requests to an address server, if the name
      servers are given as a web address
    - ``route_timeout``: seconds for one route look-up, all name servers together; while none of
      them can be reached it is repeated with growing waits, at the start as well
    - ``route_interval``: seconds between two refreshes of the routes
    - ``request_timeout``: seconds for heartbeats, member lists, unregistering and other small
      requests
    - ``heartbeat_interval``: seconds between two heartbeats to each broker

    Stop:

    - ``shutdown_timeout``: seconds that running handlers get at the end (Java: 0; they are
      interrupted, and their messages come again)
    - ``farewell_timeout``: seconds for each request of an orderly stop: storing offsets, unlocking
      queues, unregistering. A slower broker notices the closed connection, which only delays a
      rebalance.

    The client's identity:

    - ``client_ip``: the address in the client id; None finds the one that reaches the first name
      server
    - ``namespace``: the tenant. Topics and groups are called ``<namespace>%<name>`` on brokers;
      those of other tenants are invisible. The application uses the short names, administrators
      the full ones. None: no tenant
    - ``unit_name``: RocketMQ's unit of deployment, a part of the client id
    - ``instance_name``: replaces process and object number in the client id, which then stays the
      same over restarts. It must be unique among the members of a group on a machine. A
      broadcasting consumer finds its offset file by it (without a name: DEFAULT, as in Java).

    Connections:

    - ``tls``: how connections are encrypted; None: the environment variable TRIOMQ_TLS, otherwise
      they are not
    - ``credentials``: sign every request; None: the environment variable TRIOMQ_CREDENTIALS,
      otherwise requests are not signed
    - ``serialize``: the form of request headers; None: the environment variable
      ROCKETMQ_SERIALIZE_TYPE, otherwise JSON
    - ``socks_proxies``: SOCKS5 proxies as a JSON object, ``{"0.0.0.0/0": {"addr": "host:1080",
      "username": "", "password": ""}}``; the first address range that contains a server counts.
      Empty: the environment variable TRIOMQ_SOCKS_PROXIES
    - ``rpc_hooks``: called with every request before it is sent and signed, and every response

    Message traces:

    - ``trace``: whether to note what happens to each message (sent, handled, with which result) in
      the trace topic, where ``mqadmin message trace`` and Java's tools find it
    - ``trace_topic``: the topic for it; brokers with traceTopicEnable=true have the default one

    - ``tracer_provider``: OpenTelemetry's, for spans of sends, handling and settling, and trace
      contexts that travel with messages; ``opentelemetry.trace.get_tracer_provider()`` is the
      application's own. None: no spans, and OpenTelemetry (the extra ``otel``) is not loaded

    Waiting:

    - ``busy_poll``: whether to spin for up to 150 µs before the loop sleeps, if an answer is due
      and no task can run: a single request then takes half the time. A client in which spinning
      does not pay soon stops it.
    """

    name_server_refresh: float = _positive(120.0, "rocketmq.namesrv.domain")
    request_timeout: float = _positive(3.0, "mqClientApiTimeout")
    route_timeout: float = _positive(3.0)
    route_interval: float = _positive(30.0, "pollNameServerInterval")
    heartbeat_interval: float = _positive(30.0, "heartbeatBrokerInterval")
    shutdown_timeout: float = _not_negative(10.0, "awaitTerminationMillisWhenShutdown")
    farewell_timeout: float = _not_negative(0.5)
    client_ip: str | None = _setting(None, "clientIP")
    namespace: str | None = _setting(None, "namespace", _namespace)
    unit_name: str = _setting("", "unitName")
    instance_name: str | None = _setting(None, "instanceName")
    tls: Tls | None = attrs.field(default=None, metadata=_java("useTLS"))
    credentials: Credentials | None = None
    serialize: SerializeType | None = attrs.field(
        default=None, metadata=_java("rocketmq.serialize.type")
    )
    socks_proxies: str = attrs.field(default="", repr=False, metadata=_java("socksProxyConfig"))
    rpc_hooks: tuple[RpcHook, ...] = attrs.field(
        default=(), converter=_rpc_hooks, metadata=_java("RPCHook")
    )
    trace: bool = _setting(False, "enableTrace")
    trace_topic: str = _setting(TRACE_TOPIC, "traceTopic", _topic)
    tracer_provider: TracerProvider | None = None
    busy_poll: bool = True


def _compression(name: str | Compression) -> Compression:
    try:
        return Compression.of(name)
    except LocalProtocolError as error:
        raise SettingsError(str(error)) from None


def _same_length(instance: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != len(instance.latency_max) or list(instance.latency_max) != sorted(
        instance.latency_max
    ):
        raise SettingsError(
            "latency_max must ascend and have as many entries as not_available, not"
            f" {instance.latency_max} and {value}"
        )


@attrs.frozen(kw_only=True, field_transformer=typed)
class ProducerSettings:
    """How messages are sent.

    Attempts and time limits:

    - ``send_timeout``: seconds for one ``send``, all attempts and look-ups together; None: no limit
    - ``try_timeout``: seconds for each attempt but the last; None: half of the time left while
      another broker could still be asked
    - ``retries``: further attempts after the first
    - ``retry_codes``: refusals of a broker after which another attempt makes sense
    - ``busy_backoff``: how long to wait before the next attempt after a busy answer; after other
      failures there is no wait
    - ``retry_not_stored``: whether to send again, to another broker, after FLUSH_DISK_TIMEOUT,
      FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE

    Slow and failed brokers:

    - ``latency_faults``: whether brokers that were slow or failed are left out for a while
    - ``latency_max``: seconds, ascending; the highest entry that an attempt's latency reaches
      selects the entry of ``not_available``
    - ``not_available``: seconds for which a broker is then left out
    - ``detect_brokers``: with ``latency_faults``, whether unreachable brokers are asked every
      ``detect_interval`` whether they are back
    - ``detect_interval``, ``detect_timeout``: seconds between two such requests, and for each

    Back-pressure:

    - ``in_flight_messages_max``: limit of this producer's messages in flight; further sends wait.
      None: no limit
    - ``in_flight_bytes_max``: the same for the bytes of their bodies

    Automatic batches:

    - ``auto_batch``: whether ``send`` puts messages to one topic that are sent at about the same
      time into one batch (without the retries if they are directed to a queue)
    - ``auto_batch_hold``: seconds that a message may wait for others while a batch like its own is
      in flight; 0 batches only messages that are sent in the same moment
    - ``auto_batch_bytes``: bytes of bodies and properties at which a batch is dispatched at once
    - ``auto_batch_total_bytes``: limit of bytes in batches, open and in flight; further messages
      are sent alone

    Transactions:

    - ``check_concurrency``: calls of the check handler at a time
    - ``check_waiting_max``: questions of brokers that may wait for the check handler; further ones
      are dropped, and come again

    Messages:

    - ``compression``: "zlib"; "lz4" and "zstd" need the extras of these names: ``pip install
      'triomq[zstd]'``
    - ``compress_over_bytes``: bodies of this size and above are compressed
    - ``compress_level``: 1 (fast) to 9 (small), for zlib
    - ``message_bytes_max``: bytes of the largest body that is sent
    - ``batch_bytes_max``: bytes of a request into which ``send_batch`` cuts its list; larger
      requests keep a broker busy for too long
    - ``default_topic_queues``: number of queues for a topic that the first message creates
    - ``create_topic_key``: the template topic of automatic creation

    Hooks:

    - ``send_hooks``: called before and after every attempt; see ``triomq.SendHook``
    - ``check_forbidden``: called before every attempt; an error ends the send
    - ``client``: the settings shared with consumers
    """

    send_timeout: float | None = _positive(3.0, "sendMsgTimeout")
    try_timeout: float | None = _positive(None, "sendMsgMaxTimeoutPerRequest")
    retries: int = _not_negative(2, "retryTimesWhenSendFailed")
    retry_codes: frozenset[int] = attrs.field(
        default=RETRY_CODES, converter=_codes, metadata=_java("retryResponseCodes")
    )
    busy_backoff: BusyBackoff = attrs.field(factory=BusyBackoff)
    retry_not_stored: bool = _setting(False, "retryAnotherBrokerWhenNotStoreOK")
    latency_faults: bool = _setting(False, "sendLatencyEnable")
    latency_max: tuple[float, ...] = attrs.field(
        default=(0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0),
        converter=_seconds,
        metadata=_java("latencyMax"),
    )
    not_available: tuple[float, ...] = attrs.field(
        default=(0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0),
        converter=_seconds,
        validator=_same_length,
        metadata=_java("notAvailableDuration"),
    )
    detect_brokers: bool = _setting(False, "startDetectorEnable")
    detect_interval: float = _positive(2.0, "detectInterval")
    detect_timeout: float = _positive(0.2, "detectTimeout")
    in_flight_messages_max: int | None = _positive(None, "backPressureForAsyncSendNum")
    in_flight_bytes_max: int | None = _positive(None, "backPressureForAsyncSendSize")
    auto_batch: bool = _setting(False, "autoBatch")
    auto_batch_hold: float = _not_negative(0.01, "batchMaxDelayMs")
    auto_batch_bytes: int = _positive(32 * 1024, "batchMaxBytes")
    auto_batch_total_bytes: int = _positive(32 * 1024 * 1024, "totalBatchMaxBytes")
    check_concurrency: int = _positive(4, "checkThreadPoolMaxSize")
    check_waiting_max: int = _positive(2000, "checkRequestHoldMax")
    compression: Compression = attrs.field(
        default=Compression.ZLIB,
        converter=_compression,
        metadata=_java("rocketmq.message.compressType"),
    )
    compress_over_bytes: int = _positive(4096, "compressMsgBodyOverHowmuch")
    compress_level: int = _setting(5, "rocketmq.message.compressLevel")
    message_bytes_max: int = _positive(4 * 1024 * 1024, "maxMessageSize")
    batch_bytes_max: int = _positive(1024 * 1024)
    default_topic_queues: int = _positive(4, "defaultTopicQueueNums")
    create_topic_key: str = _setting(DEFAULT_TOPIC, "createTopicKey")
    send_hooks: tuple[SendHook, ...] = attrs.field(
        default=(), converter=_send_hooks, metadata=_java("registerSendMessageHook")
    )
    check_forbidden: tuple[CheckForbidden, ...] = attrs.field(
        default=(), converter=_checks, metadata=_java("registerCheckForbiddenHook")
    )
    client: ClientSettings = attrs.field(factory=ClientSettings)


@attrs.frozen(kw_only=True, field_transformer=typed)
class ConsumerSettings:
    """How messages are fetched and settled.

    Pulling:

    - ``pull_batch``: maximum number of messages of one pull
    - ``pull_batch_bytes``: limit of bytes of one pull
    - ``suspend``: seconds that a broker may hold a pull that finds nothing
    - ``pull_timeout``: seconds for a pull, ``suspend`` included
    - ``pull_interval``: seconds between an answer with messages and the next pull of its queue
    - ``error_delay``: seconds before the next pull of a queue after a failure
    - ``flow_control_delay``: seconds before the next pull after FLOW_CONTROL (215)

    Unsettled messages, above whose limits a queue is not pulled:

    - ``cached_messages_max``, ``cached_bytes_max``: messages and bytes of each queue
    - ``cached_span_max``: the highest minus the lowest unsettled offset; ordered consumers have no
      such limit
    - ``cached_messages_max_topic``, ``cached_bytes_max_topic``: for all queues of the consumer
      together; each gets an equal part, instead of ``cached_messages_max`` and ``cached_bytes_max``

    POP (``PushConsumer(mode="pop")``), where ``pull_batch``, ``suspend``, ``pull_timeout`` and the
    delays hold as well:

    - ``pop_invisible``: seconds for which a popped message is hidden from the rest of the group;
      renewed while it is held here
    - ``pop_messages_max``: limit of the unsettled messages of each topic and broker. As many are
      held as handlers settle within about a second

    Sharing the queues:

    - ``rebalance_interval``: seconds between two divisions of the queues among the members
    - ``rebalance_retry``: seconds to the next division if the last one did not give every queue its
      owner
    - ``absent_broker_timeout``: seconds for which queues of a broker that is in no route stay
      owned; a consumer whose broker returns in time continues where it was
    - ``handover_delay``: seconds that a member of a group with others waits before it reads the
      offsets of queues that it gains, so that their former owner has stored them. (Java waits 0.5
      s, but reads before it waits.) Ordered consumers have locks instead.

    Offsets:

    - ``offset_interval``: seconds between two times at which offsets are stored on the brokers
    - ``offset_timeout``: seconds for reading or storing an offset; a call of the application is
      repeated with growing waits while the broker cannot be reached
    - ``offset_dir``: broadcasting consumers: the folder of the offset files; None is
      ``~/.rocketmq_offsets``

    Settling:

    - ``max_reconsume_times``: number of deliveries after the first, before the message goes to
      ``%DLQ%<group>``. None leaves it to the group's setting on the broker (retryMaxTimes, 16),
      which then holds for all members; for ordered consumers None means no limit, as in Java
    - ``retry_delay``: seconds until a message that the broker did not take back is handed out again
      here
    - ``consume_timeout``: seconds after which an unsettled message is sent back to the broker.
      (Ordered consumers wait for ever, unless the queue is to move to another member: it then
      moves after this time in any case.)

    Ordered consumers:

    - ``suspend_queue``: seconds for which a queue rests after a failure, before the same message
      comes again (0.01 to 30)
    - ``lock_interval``: seconds between renewals of the queue locks, which brokers keep for 60 s
    - ``lock_life``: seconds after a renewal for which this side trusts a lock
    - ``lock_retry``: seconds between two requests for a queue that another member still holds
    - ``lock_timeout``: seconds for one lock request

    Hooks:

    - ``consume_hooks``: called before and after every call of a handler; see ``triomq.ConsumeHook``
    - ``client``: the settings shared with producers
    """

    pull_batch: int = _positive(32, "pullBatchSize")
    pull_batch_bytes: int = _positive(256 * 1024, "pullBatchSizeInBytes")
    suspend: float = _positive(15.0, "brokerSuspendMaxTimeMillis")
    pull_timeout: float = _positive(30.0, "consumerTimeoutMillisWhenSuspend")
    cached_messages_max: int = _positive(1000, "pullThresholdForQueue")
    cached_bytes_max: int = _positive(100 * 1024 * 1024, "pullThresholdSizeForQueue")
    cached_span_max: int = _positive(2000, "consumeConcurrentlyMaxSpan")
    cached_messages_max_topic: int | None = _positive(None, "pullThresholdForTopic")
    cached_bytes_max_topic: int | None = _positive(None, "pullThresholdSizeForTopic")
    pop_invisible: float = _positive(60.0, "popInvisibleTime")
    pop_messages_max: int = _positive(96, "popThresholdForQueue")
    pull_interval: float = _not_negative(0.0, "pullInterval")
    error_delay: float = _positive(1.0, "pullTimeDelayMillsWhenException")
    flow_control_delay: float = _positive(0.02)
    rebalance_interval: float = _positive(20.0, "rocketmq.client.rebalance.waitInterval")
    rebalance_retry: float = _positive(1.0, "rocketmq.client.rebalance.minInterval")
    absent_broker_timeout: float = _not_negative(120.0, "rocketmq.client.pull.pullMaxIdleTime")
    handover_delay: float = _not_negative(0.1)
    offset_interval: float = _positive(5.0, "persistConsumerOffsetInterval")
    offset_timeout: float = _positive(5.0)
    max_reconsume_times: int | None = _not_negative(None, "maxReconsumeTimes")
    retry_delay: float = _positive(5.0)
    suspend_queue: float = _positive(1.0, "suspendCurrentQueueTimeMillis")
    lock_interval: float = _positive(20.0, "rocketmq.client.rebalance.lockInterval")
    lock_life: float = _positive(30.0, "rocketmq.client.rebalance.lockMaxLiveTime")
    lock_retry: float = _positive(0.5)
    lock_timeout: float = _positive(1.0)
    offset_dir: str | None = _setting(None, "rocketmq.client.localOffsetStoreDir")
    consume_timeout: float = _positive(15 * 60.0, "consumeTimeout")
    consume_hooks: tuple[ConsumeHook, ...] = attrs.field(
        default=(), converter=_consume_hooks, metadata=_java("registerConsumeMessageHook")
    )
    client: ClientSettings = attrs.field(factory=ClientSettings)
