"""The rows and columns of docs/compatibility.md: what ``@pytest.mark.compatible(ROW, …,
peer=COLUMN)`` may name, and which cells nobody can fill.
"""

from __future__ import annotations

import attrs

COLUMNS = {
    "java-client-5.5.0": "Java client 5.5.0",
    "java-client-4.9.4": "Java client 4.9.4",
    "go-client": "Go client 2.1.2",
    "java-server-5.5.0": "Java servers 5.5.0",
    "java-server-4.9.4": "Java servers 4.9.4",
    "grpc-java-5.2.0": "Java gRPC client 5.2.0",
    "grpc-python-5.1.2": "Python gRPC client 5.1.2",
    "grpc-node-1.0.8": "Node gRPC client 1.0.8",
    "grpc-go-5.1.4": "Go gRPC client 5.1.4",
}
"""Peer of the mark -> head of the column. Clients work on our servers; our SDK and our tools work
on theirs.
"""

CLIENTS = tuple(COLUMNS)[:3]
SERVERS = tuple(COLUMNS)[3:5]
ALL = CLIENTS + SERVERS
GRPC_CLIENTS = tuple(COLUMNS)[5:]

GRPC_ENDPOINTS = {
    "java-proxy": "RocketMQ 5 clients (gRPC) at Java's proxy 5.5.0 before our brokers",
    "broker": "RocketMQ 5 clients (gRPC) at our broker itself",
    "mqproxy": "RocketMQ 5 clients (gRPC) at our mqproxy before our brokers",
}
"""Where these clients connect -> title of the table."""
GRPC_ROWS = {
    "send": "Send; id, tag, keys and properties are as the client says",
    "send in order": "The messages of a message group stay in one queue, in their order",
    "time of delivery": "A message with a time of delivery comes no earlier",
    "recall": "Its sender takes such a message back",
    "refused send": (
        "A message that is not of its topic's type is refused: the client has the type from the"
        " route"
    ),
    "transactions": (
        "A message is delivered when its transaction is committed, never if it is rolled back; the"
        " producer is asked about one that stays open"
    ),
    "receive and acknowledge": (
        "Simple consumer: what is not acknowledged comes again after its invisible time"
    ),
    "change the invisible time": "… or after another time, when the consumer changes it",
    "tag filter": "`a \\|\\| b`: nothing else arrives",
    "SQL filter": "The same for an expression over properties",
    "push": "Push consumer: every message reaches the listener",
    "retry": "A message that failed comes again, and counts its deliveries",
    "dead letter": "A message that fails too often lies in `%DLQ%<group>`, and comes no more",
    "receive in order": (
        "Simple consumer of an orderly group: while a message is not acknowledged, none of its"
        " message group comes"
    ),
    "push in order": "An orderly group: a message that failed holds back the rest of its group",
    "dead letter in order": "… until it has failed too often; then the rest comes",
    "TLS": "Send, receive and acknowledge with TLS",
}
"""Of the tables of ``GRPC_ENDPOINTS``; a row's name is ``endpoint: row``."""


@attrs.frozen
class Section:
    """A table of the page: row name -> what is seen when it is green."""

    title: str
    columns: tuple[str, ...]
    rows: dict[str, str]


SECTIONS = (
    Section(
        "Sending",
        ALL,
        {
            "send": "Send and wait for the answer; consumers see the message where the answer said",
            "send async": "Many sends under way at once",
            "send one-way": "Send without an answer",
            "batch": "Several messages in one request, taken apart by the consumer",
            "automatic batch": "The client gathers single sends into batches",
            "send by key": "Equal keys go to the queue that every client takes for this key",
            "send to a queue": "The sender chooses the queue",
            "compressed zlib": (
                "Bodies that one kind of client compressed with zlib are read by the other"
            ),
            "compressed lz4": "The same with LZ4",
            "compressed zstd": "The same with Zstandard",
            "properties": "Tag, keys and properties of the sender's own arrive",
            "unique ids": "The other side reads address and time from the ids that a sender makes",
            "delay level": "A message with a delay level comes no earlier",
            "time of delivery": "A message with a time of delivery comes at it, and not earlier",
            "recall": "Its sender takes such a message back",
            "transactions": (
                "A message is delivered when its transaction is committed, never if it is rolled"
                " back; the producer is asked about one that stays open"
            ),
            "request and reply": (
                "A requester gets the reply of a consumer, whichever of the two is ours"
            ),
            "topic by first send": "The first message to an unknown topic creates it",
            "refused send": "The server's reason for a refusal reaches the sender",
            "broker stops": (
                "A broker stops in order while messages are sent: the others get them, and nothing"
                " is lost"
            ),
        },
    ),
    Section(
        "Push consumers",
        ALL,
        {
            "push": "Concurrent listener, clustering",
            "push in order": "Orderly listener: the messages of each key come in their order",
            "push in batches": "The listener gets several messages at once",
            "broadcasting": "Every member gets every message",
            "broadcasting offsets": (
                "A broadcasting consumer of the other kind goes on with the same offset file"
            ),
            "tag filter": "Tags, one or several (`a \\|\\| b`): nothing else arrives",
            "from first": (
                "A new group begins at the first message (of a queue for which the broker offers it"
                " no offset)"
            ),
            "from last": "… at the end",
            "from timestamp": "… at a time",
            "group goes on": "A group goes on where its last member stopped",
            "retry": "A message that failed comes again after its delay, and counts its deliveries",
            "dead letter": (
                "A message that fails too often lies in `%DLQ%<group>`, and comes no more"
            ),
            "shares AVG": "Members of both kinds in one group share the queues alike: `AVG`",
            "shares AVG_BY_CIRCLE": "… `AVG_BY_CIRCLE`",
            "shares CONSISTENT_HASH": "… `CONSISTENT_HASH`",
            "queue locks": (
                "Members of both kinds in one ordered group: the order of each key holds while they"
                " come and go"
            ),
            "running information": (
                "A broker asks a running consumer for its state, and an administrator sees it"
            ),
            "consume directly": "An administrator lets a running consumer handle one message",
            "reset while running": (
                "The offsets of a running group are moved, and it consumes from there"
            ),
            "read from a slave": "A consumer goes on at the slave when the master is dead",
        },
    ),
    Section(
        "Pull consumers",
        ALL,
        {
            "pull": (
                "Pull from a queue at an offset (`DefaultMQPullConsumer`, `PullFrom`; our SDK:"
                " `assign`, `seek`, `poll`)"
            ),
            "pull and commit": "Store an offset with the broker, and read it back",
            "lite assign": "`DefaultLitePullConsumer` and our `PullConsumer`: these queues",
            "lite subscribe": "… a share of the topic, filtered by tag",
            "lite seek": "… go to an offset, to the beginning, to the end",
            "lite seek by time": "… the offset for a time",
            "lite commit": "… commit by hand: the next member goes on there",
            "lite auto-commit": "… commit by itself",
            "lite queue listener": "… be told that the topic has more queues",
        },
    ),
    Section(
        "Looking and administrating",
        ALL,
        {
            "query by key": "Messages found by key",
            "query by unique id": "A message found by the id that its sender gave it",
            "view by offset id": "A message found by where it lies",
            "message trace": (
                "What happened to a message, by the records that clients of the other kind wrote"
            ),
            "admin: topics": "mqadmin creates and changes topics, and shows what came of it",
            "admin: groups": "mqadmin creates and changes groups, and shows what came of it",
            "admin: offsets": (
                "mqadmin resets, skips and clones the offsets of a group, and shows how far it is"
                " behind"
            ),
            "admin: messages": "mqadmin sends a message",
            "admin: settings": "mqadmin changes settings and permissions of running servers",
            "admin: users": "mqadmin creates, changes, copies and deletes users and their rights",
            "admin: side by side": (
                "mqadmin prints the same at a cluster of ours and at one of theirs in the same"
                " state"
            ),
        },
    ),
    Section(
        "On the wire",
        ALL,
        {
            "header JSON": "Headers in JSON",
            "header ROCKETMQ": "Headers in RocketMQ's binary form",
            "header and body classes": (
                "Every header and body class of ours through the peer's own class and back"
            ),
            "heartbeat V2": (
                "Heartbeats that repeat a fingerprint in place of subscriptions; the filter holds"
            ),
            "VIP channel": "Clients send to the broker's fast port",
            "IPv6": "Name server and broker known by IPv6 addresses only",
            "TLS": "The client verifies the server's certificate",
            "TLS both ways": "The server demands a certificate of the client",
            "TLS enforced": "Who speaks plainly is refused where TLS is demanded",
            "signed requests": "Requests signed with access key and secret key",
            "unsigned refused": "Who does not sign, or not rightly, is refused with a reason",
        },
    ),
    Section(
        "Servers side by side, and the files on disk",
        SERVERS,
        {
            "slave of theirs": (
                "Our slave follows their master, through kills of either; logs equal byte for byte"
            ),
            "slave of ours": (
                "Their slave follows our master, through kills of either; logs equal byte for byte"
            ),
            "directory from theirs": (
                "Our broker goes on with a store directory of theirs, stopped or killed"
            ),
            "directory from ours": (
                "Their broker goes on with a store directory of ours, stopped or killed"
            ),
            "directory with open transactions from theirs": (
                "Our broker finishes what their broker has left open: it asks, commits, rolls back"
            ),
            "directory with open transactions from ours": (
                "Their broker finishes what our broker has left open"
            ),
            "directory with timers from theirs": (
                "Our broker delivers, at their times, messages that wait in files of theirs"
            ),
            "directory with timers from ours": (
                "Their broker delivers messages that wait in files of ours; what we were told to"
                " take back does not come"
            ),
            "batch queues": "The same with queues of batches (`queue.type=BatchCQ`), to and fro",
            "light queues": "The same with light queues (`%LMQ%`) and their offsets, to and fro",
            "migration in place": (
                "Stop theirs, start ours with the same files and the same `broker.conf`, and back,"
                " under a running Java consumer"
            ),
            "migration by slave": (
                "Our slave takes over from their master and gives back, under a running Java"
                " consumer"
            ),
            "limits": "The same sends are stored and refused, at the edge of every limit",
        },
    ),
    *(
        Section(
            title, GRPC_CLIENTS, {f"{endpoint}: {row}": text for row, text in GRPC_ROWS.items()}
        )
        for endpoint, title in GRPC_ENDPOINTS.items()
    ),
)

ROWS = {row: section for section in SECTIONS for row in section.rows}

GO_HAS_NO = "The Go client 2.1.2 has no {}"
NOT_POSSIBLE: dict[tuple[str, str], str] = {
    ("automatic batch", "java-client-4.9.4"): "The Java client 4.9.4 has no `setAutoBatch`",
    **{
        (f"{endpoint}: {row}", "grpc-go-5.1.4"): (
            "Go's push consumer hands out the rest of what one receive brought while a message"
            " waits for its retry (`consumer_service.go`)"
        )
        for endpoint in GRPC_ENDPOINTS
        for row in ("push in order", "dead letter in order")
    },
    **{
        (row, f"java-{kind}-4.9.4"): "Java 4.9.4 knows no times of delivery"
        for row in ("time of delivery", "recall")
        for kind in ("client", "server")
    },
    **{
        (f"directory with timers from {whose}", "java-server-4.9.4"): (
            "Java 4.9.4 has no timer wheel"
        )
        for whose in ("theirs", "ours")
    },
    ("recall", "go-client"): GO_HAS_NO.format("recall of messages (`api.go`)"),
    ("shares CONSISTENT_HASH", "go-client"): (
        "The Go client 2.1.2 has another ring of hashes (`consumer/strategy.go`)"
    ),
    ("automatic batch", "go-client"): GO_HAS_NO.format("automatic batches (`producer/option.go`)"),
    ("compressed lz4", "go-client"): GO_HAS_NO.format(
        "compression but zlib (`internal/utils/compression.go`)"
    ),
    ("compressed zstd", "go-client"): GO_HAS_NO.format(
        "compression but zlib (`internal/utils/compression.go`)"
    ),
    **{
        (f"lite {what}", "go-client"): GO_HAS_NO.format(
            "lite pull consumer; it has a pull consumer of its own (`api.go`)"
        )
        for what in (
            "assign",
            "subscribe",
            "seek",
            "seek by time",
            "commit",
            "auto-commit",
            "queue listener",
        )
    },
    **{
        (row, "go-client"): GO_HAS_NO.format(
            "queries: neither `api.go` nor `admin/admin.go` offers one"
        )
        for row in ("query by key", "query by unique id", "view by offset id")
    },
    **{
        (row, "go-client"): GO_HAS_NO.format(
            "such command; its `admin` package creates, lists and deletes topics and lists groups"
        )
        for row in (
            *("admin: groups", "admin: offsets", "admin: messages", "admin: settings"),
            "admin: side by side",
        )
    },
    ("header ROCKETMQ", "go-client"): GO_HAS_NO.format(
        "way to choose it: `codecType` is a variable of its package `internal/remote` that nothing"
        " sets"
    ),
    ("header and body classes", "go-client"): GO_HAS_NO.format(
        "such classes for an application: they are `internal`"
    ),
    ("broadcasting offsets", "go-client"): (
        "The Go client 2.1.2 keeps them in a file of its own form (`~/.rocketmq_client_go`,"
        " `consumer/offset_store.go`)"
    ),
    ("heartbeat V2", "go-client"): GO_HAS_NO.format(
        "heartbeats of the second form (`internal/model.go`)"
    ),
    ("heartbeat V2", "java-client-4.9.4"): "Java 4.9.4 does not know heartbeats of the second form",
    **{
        (row, "go-client"): GO_HAS_NO.format("TLS: nothing in it names `crypto/tls`")
        for row in ("TLS", "TLS both ways", "TLS enforced")
    },
    ("unique ids", "go-client"): GO_HAS_NO.format("function that reads them"),
    ("VIP channel", "go-client"): GO_HAS_NO.format(
        "VIP channel: `WithVIPChannel` sets a field that nothing reads"
    ),
    **{
        (row, server): f"No server takes part: {reason}"
        for server in SERVERS
        for row, reason in {
            "unique ids": "ids are made and read by clients",
            "broadcasting offsets": "the file lies beside the client",
            "message trace": "clients write and read the records",
            "header and body classes": "servers use the clients' classes",
        }.items()
    },
    **{("VIP channel", server): "Our SDK uses the main port for everything" for server in SERVERS},
    **{
        ("heartbeat V2", server): "Our SDK sends whole heartbeats, which every release takes"
        for server in SERVERS
    },
    ("directory with open transactions from ours", "java-server-4.9.4"): (
        "Java 4.9.4 does not read the notes of ended transactions that Java 5 and we write"
        " (`12,13,`): it asks again about some that have ended"
    ),
    ("limits", "java-server-4.9.4"): (
        "Java 4.9.4 has other limits: it knows no inner batches, and stores longer properties"
    ),
    ("batch queues", "java-server-4.9.4"): "Java 4.9.4 does not know queues of batches",
}
"""Cells that cannot be filled, each with the reason."""
