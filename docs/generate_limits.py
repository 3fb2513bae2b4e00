"""Makes docs/limits.md from the settings and constants that bound what a peer can cause.

A row names its setting or constant; the value is read from the code.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.core.settings import settings_of
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.protocol.codes import RequestCode


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
GRPC_REFUSED = "`triomq_grpc_refused_total`"
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
        "of these, those of one address (0: no limit)",
        "serverConnectionsPerAddressMax",
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
        "remoting.protocol.limits:SETTINGS_BYTES_MAX",
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
    Row("a message's keys", "broker.store.core.draft:KEYS_MAX", "keys", "MESSAGE_ILLEGAL"),
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
    Row(
        "login of a slave",
        "haAuthentication",
        "",
        "the connection is closed",
        "`triomq_replication_turned_away_total`",
    ),
]
GRPC = [
    Row(
        "calls of a connection at once",
        "grpcConnectionCallsMax",
        "calls",
        "REFUSED_STREAM, the client tries again",
        GRPC_REFUSED,
    ),
    Row(
        "cancelled calls of a connection, in bursts of ten times as many",
        "grpcResetsPerSecond",
        "calls a second",
        "GOAWAY",
        GRPC_REFUSED,
    ),
    Row(
        "the same of all connections of an address",
        "grpcResetsPerAddressPerSecond",
        "calls a second",
        "GOAWAY for the connection that cancels more than one a second",
        GRPC_REFUSED,
    ),
    Row(
        "SETTINGS frames of a connection",
        "grpcSettingsPerSecond",
        "frames a second",
        "GOAWAY",
        GRPC_REFUSED,
    ),
    Row(
        "PING frames of a connection, beside one for each data frame",
        "grpcPingsPerSecond",
        "frames a second",
        "GOAWAY",
        GRPC_REFUSED,
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
        "client.core.trace_records:RECORDS_READ_MAX",
        "records",
        "the others are left out",
    ),
]
SECTIONS = (
    ("Every server", SERVER, (BrokerConfig,)),
    ("Name server", NAMESRV, (NamesrvConfig,)),
    ("Broker", BROKER, (BrokerConfig,)),
    ("gRPC", GRPC, (GrpcSettings,)),
    ("Clients", CLIENT, ()),
)
INTRODUCTION = """# Limits

<!-- generated by `make docs` from settings and constants; a test checks it -->

What a peer can make a server keep or do, and what happens beyond it. A key is a setting
([configuration.md](configuration.md)), anything else a constant. A refusal names the limit and what
to do; what exists already is never deleted for a limit. Figures are on `/metrics` of the monitor
port.
"""


HOLDS = """
## How long a request holds a server

A server has one loop: while a step of a task runs, nobody else is served. Loops over queues,
topics, groups and members let other tasks run in between, long bodies are read and long answers
written in a thread, and what would take longer is refused. The tables have the longest step of
each request code with the input that makes it do the most (`any`: its work does not grow), and that
of each task. `tests/hostile/test_loop_holds.py` measures it: processor time on the machine of
[performance.md](performance.md), a broker with 20,000 topics, one of them with 65,535 queues, 5,000
groups and 50,000 members in one of them, and a name server with 199,000 topics and 9,000 brokers.
What Python's garbage collector takes depends on everything in the process, and has its own row.
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
    return "".join(parts) + holds()


def holds() -> str:
    """The section of how long a request holds a server, as ``loop_holds.json`` has it."""
    measured = json.loads((Path(__file__).parent / "loop_holds.json").read_text())
    parts = [HOLDS]
    for server, found in measured.items():
        parts.append(
            f"\n### {server}\n\n| Request code | Its worst input | Longest hold |\n|---|---|---|\n"
        )
        parts.extend(
            f"| {code} {RequestCode(code).name} | {what} | {milliseconds:.1f} ms |\n"
            for code, what, milliseconds in found["requests"]
        )
        parts.append("\n| Task | Longest hold |\n|---|---|\n")
        parts.extend(f"| {task} | {most:.1f} ms |\n" for task, most in found["tasks"].items())
    parts.append(
        "\n### gRPC calls\n\n`tests/hostile/test_grpc_holds.py` measures it, at a broker; mqproxy"
        " runs the same code.\n\n| Method | Its worst input | Longest hold |\n|---|---|---|\n"
    )
    calls = json.loads((Path(__file__).parent / "grpc_holds.json").read_text())
    parts.extend(f"| {method} | {what} | {most:.1f} ms |\n" for method, what, most in calls)
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
