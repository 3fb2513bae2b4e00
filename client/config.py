"""Settings of the SDK: frozen values, seconds as floats, sizes as bytes.

Every default is the one that is in effect in the official Java client, where a peer could tell the difference; `metadata["java"]` names
its setting there.  Each class is complete: build it, or change one with `attrs.evolve`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from triomq.client.errors import NoNameServer, SettingsError
from triomq.client.hooks import CheckForbidden, ConsumeHook, SendHook
from triomq.client.retry import RETRY_CODES, BusyBackoff
from triomq.client.setting_types import typed
from triomq.remoting.address import parse_address_list
from triomq.remoting.client.access import Access
from triomq.remoting.client.discovery import DEFAULT_SUBGROUP, address_server_url, is_address_server
from triomq.remoting.client.hooks import RpcHook
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.compression import Compression
from triomq.remoting.protocol.names import DEFAULT_TOPIC
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls

NAMESRV_VARIABLE = "NAMESRV_ADDR"
DOMAIN_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN"
SUBGROUP_VARIABLE = "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP"


def _java(name: str) -> dict[str, Any]:
    return {"java": name}


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise SettingsError(f"{attribute.name} must be greater than 0, not {value!r}")


def _not_negative(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if value < 0:
        raise SettingsError(f"{attribute.name} must be 0 or greater, not {value!r}")


def _not_negative_or_none(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None:
        _not_negative(instance, attribute, value)


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


def namesrv_addresses(
    value: str | Iterable[str] | None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the name servers: the given ones (`"a:9876;b:9876"`, or a list or anything else that yields such texts), else those of `NAMESRV_ADDR`.

    A web address, `"http://host:8080/rocketmq/nsaddr"`, stands for the list that it answers with; the session asks for it.  Without any of
    these, `ROCKETMQ_NAMESRV_DOMAIN` (and `ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP`) name one.

    Errors: `NoNameServer` if there are none, `SettingsError` if one is not `host:port`.
    """
    if value is None:
        variables = os.environ if environment is None else environment
        value = variables.get(NAMESRV_VARIABLE, "")
        if not value.strip() and variables.get(DOMAIN_VARIABLE, "").strip():
            value = address_server_url(variables[DOMAIN_VARIABLE], variables.get(SUBGROUP_VARIABLE) or DEFAULT_SUBGROUP)
    if isinstance(value, str) and is_address_server(value):
        return (value.strip(),)
    if not isinstance(value, str):
        given = value
        value = None if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable) else tuple(given)
        if value is None or not all(isinstance(part, str) for part in value):
            raise SettingsError(f"name server addresses must be a text or a list of texts, not {given!r}; write 'host:port', several separated by ';'")
    text = value if isinstance(value, str) else ";".join(value)
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise NoNameServer({})
    try:
        parse_address_list(";".join(addresses))
    except ValueError as error:
        raise SettingsError(
            f"name server addresses {text!r}: {error}; write 'host:port', several separated by ';'"
        ) from error
    return tuple(dict.fromkeys(addresses))


def checked_access(
    tls: Tls | None, credentials: Credentials | None, serialize: SerializeType | None = None, socks_proxies: str = ""
) -> Access:
    """Return what is given, or what the environment names, with its files loaded once.  Errors: `SettingsError`."""
    try:
        socks = SocksProxies.parse(socks_proxies)
        access = Access(tls=tls, credentials=credentials, serialize=serialize, socks=socks).or_environment()
        access.check()
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    return access


def _namespace(instance: Any, attribute: attrs.Attribute[Any], value: str | None) -> None:
    if value is not None and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", value) is None:
        raise SettingsError(f"namespace {value!r} cannot be used: 1 to 64 letters, digits, '_' and '-'")


@attrs.frozen(kw_only=True, field_transformer=typed)
class ClientSettings:
    """What producers and consumers share: connections, routes, heartbeats, start and stop.

    `name_server_refresh`: seconds between two questions to an address server, where name servers are given as a web
        address
    `request_timeout`: seconds for heartbeats, member lists, unregistering and other small requests
    `route_timeout`: seconds for one route look-up, all name servers together
    `route_interval`: seconds between two refreshes of the routes
    `heartbeat_interval`: seconds between two heartbeats to each broker
    `shutdown_timeout`: seconds that running handlers get at the end (Java: 0, they are interrupted and their
        messages come again)
    `farewell_timeout`: seconds for each of the last words to the brokers: offsets, locks of an ordered consumer,
        unregistering. A broker that is slower notices the closed connection instead, so nothing but a moment of
        rebalancing is lost.
    `client_ip`: address shown in the client id; None finds the one that reaches the first name server
    `namespace`: tenant: topics and groups travel, and lie on brokers, as `<namespace>%<name>`, and other tenants'
        are out of sight. The application uses the plain names everywhere; administrators see the full ones. None is
        the one space that all others share
    `unit_name`: RocketMQ's unit of deployment, part of the client id
    `instance_name`: takes the place of process and object number in the client id, which then stays the same over
        restarts. It must be unique among the members of a group on a machine; a broadcasting consumer finds its
        offset file by it (and is called DEFAULT without it, as in Java)
    `tls`: how connections are secured; None asks the environment variable TRIOMQ_TLS, and without it they are plain
    `credentials`: signs every request; None asks the environment variable TRIOMQ_CREDENTIALS, and without it
        nothing is signed
    `serialize`: form of request headers; None asks the environment variable ROCKETMQ_SERIALIZE_TYPE, and without it
        they are JSON
    `socks_proxies`: SOCKS5 proxies as a JSON object, `{"0.0.0.0/0": {"addr": "host:1080", "username": "",
        "password": ""}}`; the first address range that holds a server counts. Empty asks the environment variable
        TRIOMQ_SOCKS_PROXIES.
    `rpc_hooks`: see every request before it is sent, and every answer; requests are signed after them
    `busy_poll`: while an answer is due and no task can run, look for it for up to 150 µs before the loop sleeps: a
        lone request takes half the time. A program soon stops looking where that does not pay; False never looks
    """

    name_server_refresh: float = attrs.field(
        default=120.0, validator=_positive, metadata=_java("rocketmq.namesrv.domain")
    )
    request_timeout: float = attrs.field(default=3.0, validator=_positive, metadata=_java("mqClientApiTimeout"))
    route_timeout: float = attrs.field(default=3.0, validator=_positive)
    route_interval: float = attrs.field(default=30.0, validator=_positive, metadata=_java("pollNameServerInterval"))
    heartbeat_interval: float = attrs.field(
        default=30.0, validator=_positive, metadata=_java("heartbeatBrokerInterval")
    )
    shutdown_timeout: float = attrs.field(
        default=10.0, validator=_not_negative, metadata=_java("awaitTerminationMillisWhenShutdown")
    )
    farewell_timeout: float = attrs.field(default=0.5, validator=_not_negative)
    client_ip: str | None = attrs.field(default=None, metadata=_java("clientIP"))
    namespace: str | None = attrs.field(default=None, validator=_namespace, metadata=_java("namespace"))
    unit_name: str = attrs.field(default="", metadata=_java("unitName"))
    instance_name: str | None = attrs.field(default=None, metadata=_java("instanceName"))
    tls: Tls | None = attrs.field(default=None, metadata=_java("useTLS"))
    credentials: Credentials | None = None
    serialize: SerializeType | None = attrs.field(default=None, metadata=_java("rocketmq.serialize.type"))

    socks_proxies: str = attrs.field(default="", repr=False, metadata=_java("socksProxyConfig"))

    rpc_hooks: tuple[RpcHook, ...] = attrs.field(default=(), converter=_rpc_hooks, metadata=_java("RPCHook"))

    busy_poll: bool = True

    def access(self) -> Access:
        """Return how servers are approached, checked.  Errors: `SettingsError`."""
        return checked_access(self.tls, self.credentials, self.serialize, self.socks_proxies)


def _compression(name: str | Compression) -> Compression:
    try:
        return Compression.of(name)
    except LocalProtocolError as error:
        raise SettingsError(str(error)) from None


def _same_length(instance: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != len(instance.latency_max) or list(instance.latency_max) != sorted(instance.latency_max):
        raise SettingsError(
            f"latency_max must ascend and have as many entries as not_available, not {instance.latency_max} and {value}"
        )


@attrs.frozen(kw_only=True, field_transformer=typed)
class ProducerSettings:
    """How messages are sent.

    `send_timeout`: seconds for one `send`, all tries and look-ups together; None waits for ever
    `try_timeout`: seconds for each try but the last; None gives each half of what is left while another broker
        could still be asked
    `retries`: further tries after the first
    `retry_codes`: refusals of a broker after which another try makes sense
    `busy_backoff`: how long to wait before another try after a busy answer; after other failures there is none
    `retry_not_stored`: whether FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE are tried again on
        another broker
    `latency_faults`: whether brokers that were slow or failed are left out for a while
    `latency_max`: seconds; the highest entry that a try's latency reaches says which entry of `not_available`
        counts
    `not_available`: seconds for which a broker is then left out
    `detect_brokers`: with `latency_faults`: whether brokers that could not be reached are asked every
        `detect_interval` if they are back
    `detect_interval`, `detect_timeout`: seconds between two such questions, and for each
    `in_flight_messages_max`: messages of this producer that may wait for their answers; further sends wait for
        their turn. None is no limit
    `in_flight_bytes_max`: the same for the bytes of their bodies
    `auto_batch`: whether `send` holds messages for a moment, so that those for one topic travel together (without
        the directed ones' retries)
    `auto_batch_hold`: seconds that a message may wait for others while a batch like its own is under way; 0 takes
        only those that are sent at the same moment
    `auto_batch_bytes`: bytes of bodies and properties at which a batch leaves at once
    `auto_batch_total_bytes`: bytes that may wait or be under way in batches; messages beyond it are sent alone
    `compression`: "zlib"; "lz4" and "zstd" need the extras of that name: `pip install 'triomq[zstd]'`
    `compress_over_bytes`: bodies of this size and above travel compressed
    `compress_level`: 1 (fast) to 9 (small), for zlib
    `message_bytes_max`: bytes of the largest body that is sent
    `batch_bytes_max`: `send_batch` cuts its list into requests of about this size; larger ones keep a broker busy
        for too long
    `default_topic_queues`: queues wished for a topic that the first message creates
    `create_topic_key`: template topic of automatic creation
    `send_hooks`: told of every try; see `triomq.client.hooks`
    `check_forbidden`: called before every try; what they raise ends the send
    `client`: what consumers have, too
    """

    send_timeout: float | None = attrs.field(default=3.0, validator=_positive, metadata=_java("sendMsgTimeout"))
    try_timeout: float | None = attrs.field(
        default=None, validator=_positive, metadata=_java("sendMsgMaxTimeoutPerRequest")
    )
    retries: int = attrs.field(default=2, validator=_not_negative, metadata=_java("retryTimesWhenSendFailed"))
    retry_codes: frozenset[int] = attrs.field(
        default=RETRY_CODES, converter=_codes, metadata=_java("retryResponseCodes")
    )
    busy_backoff: BusyBackoff = attrs.field(factory=BusyBackoff)
    retry_not_stored: bool = attrs.field(default=False, metadata=_java("retryAnotherBrokerWhenNotStoreOK"))
    latency_faults: bool = attrs.field(default=False, metadata=_java("sendLatencyEnable"))
    latency_max: tuple[float, ...] = attrs.field(
        default=(0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0), converter=_seconds, metadata=_java("latencyMax")
    )
    not_available: tuple[float, ...] = attrs.field(
        default=(0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0),
        converter=_seconds,
        validator=_same_length,
        metadata=_java("notAvailableDuration"),
    )
    detect_brokers: bool = attrs.field(default=False, metadata=_java("startDetectorEnable"))
    detect_interval: float = attrs.field(default=2.0, validator=_positive, metadata=_java("detectInterval"))
    detect_timeout: float = attrs.field(default=0.2, validator=_positive, metadata=_java("detectTimeout"))
    in_flight_messages_max: int | None = attrs.field(
        default=None, validator=_positive, metadata=_java("backPressureForAsyncSendNum")
    )
    in_flight_bytes_max: int | None = attrs.field(
        default=None, validator=_positive, metadata=_java("backPressureForAsyncSendSize")
    )
    auto_batch: bool = attrs.field(default=False, metadata=_java("autoBatch"))
    auto_batch_hold: float = attrs.field(default=0.01, validator=_not_negative, metadata=_java("batchMaxDelayMs"))
    auto_batch_bytes: int = attrs.field(default=32 * 1024, validator=_positive, metadata=_java("batchMaxBytes"))
    auto_batch_total_bytes: int = attrs.field(
        default=32 * 1024 * 1024, validator=_positive, metadata=_java("totalBatchMaxBytes")
    )
    compression: Compression = attrs.field(
        default=Compression.ZLIB, converter=_compression, metadata=_java("rocketmq.message.compressType")
    )
    compress_over_bytes: int = attrs.field(
        default=4096, validator=_positive, metadata=_java("compressMsgBodyOverHowmuch")
    )
    compress_level: int = attrs.field(default=5, metadata=_java("rocketmq.message.compressLevel"))
    message_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=_positive, metadata=_java("maxMessageSize"))
    batch_bytes_max: int = attrs.field(default=1024 * 1024, validator=_positive)
    default_topic_queues: int = attrs.field(default=4, validator=_positive, metadata=_java("defaultTopicQueueNums"))
    create_topic_key: str = attrs.field(default=DEFAULT_TOPIC, metadata=_java("createTopicKey"))
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

    `pull_batch`: messages wanted by one pull request
    `pull_batch_bytes`: bytes wanted by one pull request
    `suspend`: seconds that a broker may hold a pull that finds nothing
    `pull_timeout`: seconds for a pull, `suspend` included
    `cached_messages_max`, `cached_bytes_max`: per queue; above any of these three limits pulling pauses
    `cached_span_max`: highest minus lowest offset that is not settled yet; ordered consumers do not look at it
    `cached_messages_max_topic`, `cached_bytes_max_topic`: for all queues of the consumer together: each gets an equal part, which replaces
        `cached_messages_max`
    `pull_interval`: seconds between an answer with messages and the next pull of its queue
    `error_delay`: seconds before the next pull of a queue after a failure
    `flow_control_delay`: seconds before the next pull after the broker asked for patience (code 215)
    `rebalance_interval`: seconds between two divisions of the queues among the members
    `rebalance_retry`: seconds to the next round when the last one could not give every queue its owner
    `absent_broker_timeout`: seconds for which queues of a broker that is in no route stay ours, so that we go on
        exactly where we were when it comes back
    `handover_delay`: seconds that a member of a group with others waits before it reads where to begin in queues
        that it gains, so that their former owner has stored how far it had come. (Java waits 0.5 s, but reads
        before it waits.) Ordered consumers have locks instead.
    `offset_interval`: seconds between two times at which offsets are stored on the brokers
    `offset_timeout`: seconds for a question about offsets
    `max_reconsume_times`: deliveries after the first; then the message goes to `%DLQ%<group>`. None leaves it to
        the group's setting on the broker (retryMaxTimes, 16), so that changing that changes all members; for
        ordered consumers it means without end, as in Java
    `retry_delay`: seconds until a message that could not be given back to the broker is handed out again here
    `suspend_queue`: ordered consumers: seconds for which a queue rests after a failure, before the same message
        comes again (0.01 to 30)
    `lock_interval`: ordered consumers: seconds between renewals of the queue locks, which brokers keep for 60 s
    `lock_life`: ordered consumers: seconds after a renewal for which this side trusts a lock
    `lock_retry`: ordered consumers: seconds until a queue that somebody else still holds is asked for again
    `lock_timeout`: seconds for one lock request
    `offset_dir`: broadcasting consumers: folder of the offset files; None is `~/.rocketmq_offsets`
    `consume_timeout`: seconds after which a message without a verdict is sent back to the broker. (Ordered
        consumers wait for ever, except when the queue is to move to another member: then it moves after this time
        in any case.)
    `consume_hooks`: told of every call of a handler; see `triomq.client.hooks`
    `client`: what producers have, too
    """

    pull_batch: int = attrs.field(default=32, validator=_positive, metadata=_java("pullBatchSize"))
    pull_batch_bytes: int = attrs.field(default=256 * 1024, validator=_positive, metadata=_java("pullBatchSizeInBytes"))
    suspend: float = attrs.field(default=15.0, validator=_positive, metadata=_java("brokerSuspendMaxTimeMillis"))
    pull_timeout: float = attrs.field(
        default=30.0, validator=_positive, metadata=_java("consumerTimeoutMillisWhenSuspend")
    )
    cached_messages_max: int = attrs.field(default=1000, validator=_positive, metadata=_java("pullThresholdForQueue"))
    cached_bytes_max: int = attrs.field(
        default=100 * 1024 * 1024, validator=_positive, metadata=_java("pullThresholdSizeForQueue")
    )
    cached_span_max: int = attrs.field(default=2000, validator=_positive, metadata=_java("consumeConcurrentlyMaxSpan"))
    cached_messages_max_topic: int | None = attrs.field(
        default=None, validator=_positive, metadata=_java("pullThresholdForTopic")
    )
    cached_bytes_max_topic: int | None = attrs.field(
        default=None, validator=_positive, metadata=_java("pullThresholdSizeForTopic")
    )
    pull_interval: float = attrs.field(default=0.0, validator=_not_negative, metadata=_java("pullInterval"))
    error_delay: float = attrs.field(
        default=1.0, validator=_positive, metadata=_java("pullTimeDelayMillsWhenException")
    )
    flow_control_delay: float = attrs.field(default=0.02, validator=_positive)
    rebalance_interval: float = attrs.field(
        default=20.0, validator=_positive, metadata=_java("rocketmq.client.rebalance.waitInterval")
    )
    rebalance_retry: float = attrs.field(
        default=1.0, validator=_positive, metadata=_java("rocketmq.client.rebalance.minInterval")
    )
    absent_broker_timeout: float = attrs.field(
        default=120.0, validator=_not_negative, metadata=_java("rocketmq.client.pull.pullMaxIdleTime")
    )
    handover_delay: float = attrs.field(default=0.1, validator=_not_negative)
    offset_interval: float = attrs.field(
        default=5.0, validator=_positive, metadata=_java("persistConsumerOffsetInterval")
    )
    offset_timeout: float = attrs.field(default=5.0, validator=_positive)
    max_reconsume_times: int | None = attrs.field(
        default=None, validator=_not_negative_or_none, metadata=_java("maxReconsumeTimes")
    )
    retry_delay: float = attrs.field(default=5.0, validator=_positive)
    suspend_queue: float = attrs.field(
        default=1.0, validator=_positive, metadata=_java("suspendCurrentQueueTimeMillis")
    )
    lock_interval: float = attrs.field(
        default=20.0, validator=_positive, metadata=_java("rocketmq.client.rebalance.lockInterval")
    )
    lock_life: float = attrs.field(
        default=30.0, validator=_positive, metadata=_java("rocketmq.client.rebalance.lockMaxLiveTime")
    )
    lock_retry: float = attrs.field(default=0.5, validator=_positive)
    lock_timeout: float = attrs.field(default=1.0, validator=_positive)
    offset_dir: str | None = attrs.field(default=None, metadata=_java("rocketmq.client.localOffsetStoreDir"))
    consume_timeout: float = attrs.field(default=15 * 60.0, validator=_positive, metadata=_java("consumeTimeout"))
    consume_hooks: tuple[ConsumeHook, ...] = attrs.field(
        default=(), converter=_consume_hooks, metadata=_java("registerConsumeMessageHook")
    )
    client: ClientSettings = attrs.field(factory=ClientSettings)
