"""Makes docs/limits.md from the settings and constants that bound what a peer can cause.

A row names its setting or constant; the value is read from the code.
"""

from __future__ import annotations

import importlib
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.settings import settings_of


@attrs.frozen
class Row:
    """One limit: ``place`` is a setting's key or ``module:CONSTANT``, ``counter`` what counts the
    refusals.
    """

    what: str
    place: str
    unit: str
    beyond: str
    counter: str = "–"


REFUSED = "`triomq_limit_refusals_total`"
POOL = "`triomq_requests_refused_total`"
SERVER = [
    Row(
        "one frame",
        "remoting.protocol.framing:FRAME_BYTES_MAX",
        "bytes",
        "the connection is closed, the log names both sizes",
    ),
    Row(
        "the header of a frame",
        "remoting.protocol.framing:HEADER_BYTES_MAX",
        "bytes",
        "the connection is closed",
    ),
    Row(
        "values of JSON in a header or a body: objects, arrays, texts, numbers",
        "remoting.protocol.fastjson:VALUES_MAX",
        "values",
        "SYSTEM_ERROR, the remark names the limit",
    ),
    Row(
        "text that is not standard JSON, in a header or a body",
        "remoting.protocol.fastjson:LOOSE_BYTES_MAX",
        "bytes",
        "SYSTEM_ERROR, the remark names the limit",
    ),
    Row("nesting of such text", "remoting.protocol.fastjson:DEPTH_MAX", "levels", "the same"),
    Row(
        "values that references in such text stand for",
        "remoting.protocol.fastjson:REFERENCED_VALUES_MAX",
        "values",
        "the same",
    ),
    Row(
        "connections of a server",
        "serverConnectionsMax",
        "connections",
        "the connection is closed",
        "`triomq_connections_turned_away_total`",
    ),
    Row(
        "what half frames and unread answers of all connections hold",
        "serverBuffersMaxBytes",
        "bytes",
        "the greediest connections are closed",
        "log",
    ),
    Row("silence of a connection", "serverChannelMaxIdleTimeSeconds", "s", "it is closed", "log"),
    Row(
        "a request that changes settings",
        "remoting.limits:SETTINGS_BYTES_MAX",
        "bytes",
        "INVALID_PARAMETER",
    ),
    Row(
        "connections to the monitor port",
        "remoting.monitor.http_server:CONNECTIONS_MAX",
        "connections",
        "the oldest half request makes room",
        "`triomq_monitor_connections_closed_total`",
    ),
    Row(
        "a request to the monitor port", "remoting.monitor.http:HEAD_BYTES_MAX", "bytes", "HTTP 431"
    ),
    Row(
        "a request to the monitor port, in all",
        "remoting.monitor.http_server:REQUEST_SECONDS_MAX",
        "s",
        "it is closed",
    ),
]
NAMESRV = [
    Row("broker processes", "brokersMax", "processes", "INVALID_PARAMETER", REFUSED),
    Row(
        "topics in the routes",
        "topicsMax",
        "topics",
        "a registration is taken without the rest; the log says so",
        REFUSED,
    ),
    Row(
        "queues of a topic on one broker",
        "remoting.protocol.bodies.route:QUEUES_MAX",
        "queues",
        "routes show the limit; the log says so",
    ),
    Row("filter servers of a broker", "filterServersMax", "servers", "INVALID_PARAMETER", REFUSED),
    Row("the key-value table", "kvConfigBytesMax", "bytes", "INVALID_PARAMETER", REFUSED),
    Row(
        "a deflated registration",
        "remoting.protocol.bodies.registration:INFLATED_BYTES_MAX",
        "bytes inflated",
        "SYSTEM_ERROR",
    ),
    Row(
        "topics of one registration",
        "remoting.protocol.bodies.large_registration:TOPICS_MAX",
        "topics",
        "SYSTEM_ERROR",
    ),
    Row(
        "route look-ups that wait",
        "clientRequestThreadPoolQueueCapacity",
        "requests",
        "SYSTEM_BUSY",
        POOL,
    ),
    Row(
        "other requests that wait",
        "defaultThreadPoolQueueCapacity",
        "requests",
        "SYSTEM_BUSY",
        POOL,
    ),
]
BROKER = [
    Row(
        "the body of a heartbeat, of locks, topics or groups",
        "broker.processors.bodies:BODY_BYTES_MAX",
        "bytes",
        "INVALID_PARAMETER",
    ),
    Row(
        "such a body that is read in the loop; a longer one in a thread",
        "broker.processors.bodies:INLINE_BYTES_MAX",
        "bytes",
        "–",
    ),
    Row("a message's body", "maxMessageSize", "bytes", "MESSAGE_ILLEGAL"),
    Row(
        "a message's properties",
        "remoting.protocol.message_properties:PROPERTIES_BYTES_MAX",
        "bytes",
        "MESSAGE_ILLEGAL",
    ),
    Row("a message's keys", "broker.store.draft:KEYS_MAX", "keys", "MESSAGE_ILLEGAL"),
    Row(
        "messages of one batch",
        "remoting.protocol.batch:ELEMENTS_MAX",
        "messages",
        "MESSAGE_ILLEGAL",
    ),
    Row(
        "a topic's name",
        "remoting.protocol.names:TOPIC_LENGTH_MAX",
        "characters",
        "INVALID_PARAMETER",
    ),
    Row(
        "a group's name",
        "remoting.protocol.names:GROUP_LENGTH_MAX",
        "characters",
        "INVALID_PARAMETER",
    ),
    Row(
        "queues of a topic",
        "remoting.protocol.bodies.route:QUEUES_MAX",
        "queues",
        "INVALID_PARAMETER",
    ),
    Row(
        "topics",
        "topicsMax",
        "topics",
        "INVALID_PARAMETER; retry and dead-letter topics are made all the same",
        REFUSED,
    ),
    Row("groups", "groupsMax", "groups", "INVALID_PARAMETER", REFUSED),
    Row(
        "groups of one connection",
        "groupsPerConnectionMax",
        "groups",
        "the heartbeat is refused: INVALID_PARAMETER",
        REFUSED,
    ),
    Row(
        "topics that a group subscribes",
        "subscriptionsPerGroupMax",
        "topics",
        "the heartbeat is refused: INVALID_PARAMETER",
        REFUSED,
    ),
    Row("consumer offsets", "consumerOffsetsMax", "offsets", "INVALID_PARAMETER", REFUSED),
    Row(
        "messages that a group has popped and not acknowledged",
        "popInFlightPerGroupMax",
        "messages",
        "its pops are refused: INVALID_PARAMETER",
        REFUSED,
    ),
    Row(
        "such messages of one topic, with `enablePopMessageThreshold`",
        "popInflightMessageThreshold",
        "messages",
        "pops pass the topic; one that finds nothing else gets SYSTEM_BUSY",
        REFUSED,
    ),
    Row("pops that wait for a message", "maxPopPollingSize", "requests", "POLLING_FULL"),
    Row("pops of a group that wait for a topic", "popPollingSize", "requests", "POLLING_FULL"),
    Row("queues that are locked", "queueLocksMax", "queues", "INVALID_PARAMETER", REFUSED),
    Row(
        "replies that one requester leaves unanswered",
        "repliesPerClientMax",
        "replies",
        "SYSTEM_BUSY",
        REFUSED,
    ),
    Row(
        "replies that wait for their requesters",
        "replyThreadPoolQueueCapacity",
        "replies",
        "SYSTEM_BUSY",
        "`triomq_replies_total`",
    ),
    Row(
        "a requester that does not answer a reply",
        "broker.services.pushed_replies:PUSH_SECONDS",
        "s",
        "the sender of the reply gets SYSTEM_ERROR",
        "`triomq_replies_total`",
    ),
    Row(
        "an SQL92 filter",
        "broker.filters.tokens:LENGTH_MAX",
        "characters",
        "SUBSCRIPTION_PARSE_FAILED",
    ),
    Row(
        "words of an SQL92 filter",
        "broker.filters.sql92:WORDS_MAX",
        "words",
        "SUBSCRIPTION_PARSE_FAILED",
    ),
    Row(
        "filters of a heartbeat",
        "broker.services.filters:HEARTBEAT_CHARACTERS_MAX",
        "characters",
        "the filters beyond it are not registered",
    ),
    Row(
        "pulls that are held",
        "broker.services.held_pulls:HELD_PULLS_MAX",
        "pulls",
        "the pull is answered at once, empty",
    ),
    Row(
        "pulls that wait for the disk",
        "broker.services.cold_pulls:WAITING_MAX",
        "pulls",
        "SYSTEM_BUSY",
    ),
    Row(
        "messages of a pull",
        "broker.processors.pull:PULL_BYTES_MAX",
        "bytes",
        "fewer messages come",
    ),
    Row(
        "questions that one consumer leaves unanswered",
        "broker.processors.relays:UNANSWERED_MAX",
        "questions",
        "SYSTEM_BUSY",
    ),
    Row(
        "questions to consumers at once",
        "relayThreadPoolNums",
        "questions",
        "they wait their turn, then SYSTEM_BUSY",
        POOL,
    ),
    Row(
        "changes of topics and groups at once",
        "changeThreadPoolNums",
        "changes",
        "they wait their turn, then SYSTEM_BUSY",
        POOL,
    ),
    Row("sends that wait", "sendThreadPoolQueueCapacity", "requests", "SYSTEM_BUSY", POOL),
    Row("how long a send waits", "waitTimeMillsInSendQueue", "ms", "SYSTEM_BUSY", POOL),
    Row(
        "connections to the HA port",
        "haConnectionsMax",
        "connections",
        "the connection is closed",
        "`triomq_replication_turned_away_total`",
    ),
    Row(
        "of them from one address",
        "haConnectionsPerAddressMax",
        "connections",
        "the connection is closed",
        "`triomq_replication_turned_away_total`",
    ),
    Row(
        "addresses that may open it",
        "haSlaveAddresses",
        "networks",
        "the connection is closed",
        "`triomq_replication_turned_away_total`",
    ),
]
CLIENT = [
    Row(
        "queues of a route",
        "remoting.protocol.bodies.route:ROUTE_QUEUES_MAX",
        "queues",
        "an error that names the limit",
    ),
    Row(
        "a body that is inflated",
        "remoting.protocol.compression:BODY_BYTES_MAX",
        "bytes",
        "`MessageInvalid`",
    ),
    Row(
        "the answer of an address server",
        "remoting.client.discovery:ANSWER_BYTES_MAX",
        "bytes",
        "an error that names the limit",
    ),
    Row(
        "requests of mqadmin at once, to one server",
        "client.admin.requests:CONCURRENT_PER_SERVER_MAX",
        "requests",
        "they wait their turn",
    ),
    Row(
        "a cluster file of mqadmin",
        "client.admin.cluster_files.items:FILE_BYTES_MAX",
        "bytes",
        "an error that names the limit",
    ),
    Row(
        "items of a cluster file, each offset counted",
        "client.admin.cluster_files.items:ITEMS_MAX",
        "items",
        "an error that names the limit",
    ),
    Row(
        "records of message traces that wait in a client",
        "client.trace.dispatcher:BUFFERED_MAX",
        "records",
        "further ones are dropped",
        "the log",
    ),
    Row(
        "records read from one trace message",
        "client.trace.trace_records:RECORDS_READ_MAX",
        "records",
        "the others are left out",
    ),
]
SECTIONS = (
    ("Every server", SERVER, (BrokerConfig,)),
    ("Name server", NAMESRV, (NamesrvConfig,)),
    ("Broker", BROKER, (BrokerConfig,)),
    ("Clients", CLIENT, ()),
)
INTRODUCTION = """# Limits

<!-- generated by `make docs` from settings and constants; a test checks it -->

What a peer can make a server keep or do, and what happens beyond it. A key is a setting
([configuration.md](configuration.md)), anything else a constant. A refusal names the limit and what
to do; what exists already is never deleted for a limit. Figures are on `/metrics` of the monitor
port.
"""


def page() -> str:
    """The whole page. Raises KeyError or AttributeError for a row whose setting or constant does
    not exist.
    """
    parts = [INTRODUCTION]
    for title, rows, configs in SECTIONS:
        defaults = {
            described.java: attribute
            for config in configs
            for _, attribute, described in settings_of(config)
        }
        parts.append(
            f"\n## {title}\n\n| What | At most | Set by | Beyond it | Counted by"
            " |\n|---|---|---|---|---|\n"
        )
        parts.extend(
            f"| {row.what} | {value_of(row, defaults)} | `{row.place.replace(':', '.')}` |"
            f" {row.beyond} | {row.counter} |\n"
            for row in rows
        )
    return "".join(parts)


def value_of(row: Row, defaults: dict[str, Any]) -> str:
    """The value of a row with its unit."""
    if ":" in row.place:
        module, name = row.place.split(":")
        value: Any = getattr(importlib.import_module(f"triomq.{module}"), name)
    else:
        value = defaults[row.place].default
        if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
            return f"depends on the machine ({row.unit})"
    if value == ():
        return "any"
    return f"{value:,} {row.unit}" if isinstance(value, int) else f"{value:g} {row.unit}"
