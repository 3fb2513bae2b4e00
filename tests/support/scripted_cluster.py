"""A name server and brokers that answer as a test tells them, over real sockets: for faults that
real servers rarely show.

Every broker is one server; what it does with a request code is a function in ``script``, which the
test may replace at any time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.client import (
    ConsumerGroupHeader,
    HeartbeatResponseHeader,
    UnregisterClientHeader,
)
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.send import (
    SendBackHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from triomq.remoting.protocol.headers.transaction import EndTransactionHeader
from triomq.remoting.protocol.record import encode_host, encode_record
from triomq.remoting.server.config import PoolConfig, ServerConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.server import Server

Answer = Response | Awaitable[Response] | None
Play = Callable[[Request], Answer]

_HEADERS: dict[int, tuple[type | None, bool]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: (GetRouteHeader, False),
    RequestCode.HEART_BEAT: (None, False),
    RequestCode.UNREGISTER_CLIENT: (UnregisterClientHeader, False),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (ConsumerGroupHeader, False),
    RequestCode.QUERY_CONSUMER_OFFSET: (QueryConsumerOffsetHeader, False),
    RequestCode.UPDATE_CONSUMER_OFFSET: (UpdateConsumerOffsetHeader, False),
    RequestCode.GET_MAX_OFFSET: (GetMaxOffsetHeader, False),
    RequestCode.PULL_MESSAGE: (PullMessageHeader, False),
    RequestCode.SEND_MESSAGE_V2: (SendMessageHeader, True),
    RequestCode.SEND_BATCH_MESSAGE: (SendMessageHeader, True),
    RequestCode.CONSUMER_SEND_MSG_BACK: (SendBackHeader, False),
    RequestCode.LOCK_BATCH_MQ: (None, False),
    RequestCode.UNLOCK_BATCH_MQ: (None, False),
    RequestCode.CHECK_CLIENT_CONFIG: (None, False),
    RequestCode.END_TRANSACTION: (EndTransactionHeader, False),
}

_HOST = encode_host(bytes([127, 0, 0, 1]), 10911)


async def never(request: Request) -> Response:
    """Let the client wait."""
    await trio.sleep_forever()


def refuse(code: int, remark: str = "as the script says") -> Play:
    """Answer with an error code."""
    return lambda request: Response(code, remark=remark)


def sent(offset: int = 0) -> Response:
    """The answer to a stored message."""
    return Response(
        0,
        SendMessageResponseHeader(
            "7F00000100002A9F0000000000000000", 0, offset, region_id="DefaultRegion"
        ),
    )


def pulled(code: int, next_offset: int, body: bytes = b"", *, max_offset: int = 1000) -> Response:
    """The answer to a pull."""
    return Response(
        code, PullMessageResponseHeader(0, next_offset, 0, max_offset), body, remark="scripted"
    )


def record(offset: int, body: bytes = b"", *, topic: str = "T", message_id: str = "") -> bytes:
    """One stored message."""
    return encode_record(
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 100,
        body=body or b"%d" % offset,
        properties=f"UNIQ_KEY\x01{message_id or f'ID{offset}'}\x02".encode(),
        born_timestamp=1,
        born_host=_HOST,
        store_timestamp=2,
        store_host=_HOST,
    )


@attrs.define(eq=False)
class ScriptedServer:
    """One server and its script."""

    name: str
    """no route has a broker without a name"""
    script: dict[int, Play]
    asked: list[Request] = attrs.field(factory=list)
    """all requests so far"""
    server: Server | None = None

    @property
    def address(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    def count(self, code: RequestCode) -> int:
        """How often something was asked."""
        return sum(request.code == code for request in self.asked)

    def headers(self, code: RequestCode) -> list[object]:
        """The headers of all requests of a code."""
        return [request.header for request in self.asked if request.code == code]

    def play(self, request: Request) -> Response | Deferred | Awaitable[Response]:
        """Do what the script says; None: no answer."""
        self.asked.append(request)
        answer = self.script[request.code](request)
        return Deferred((request,)) if answer is None else answer

    def notify_group(self, group: str) -> None:
        """Tell every client that the group has changed."""
        self.tell(
            Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2, ext={"consumerGroup": group})
        )

    def tell(self, command: Command) -> None:
        """Send every client a one-way request."""
        assert self.server is not None
        for connection in self.server.connections():
            connection.oneway(command)


def _broker_script(broker: Callable[[], ScriptedServer]) -> dict[int, Play]:
    """A broker with an empty queue and one member: the client of the last heartbeat."""

    def members(request: Request) -> Response:
        ids = {
            HeartbeatData.decode(beat.body).client_id
            for beat in broker().asked
            if beat.code == RequestCode.HEART_BEAT
        }
        return Response(0, body=ConsumerIds(sorted(ids)).encode())

    return {
        RequestCode.HEART_BEAT: lambda request: Response(0, HeartbeatResponseHeader(True, False)),
        RequestCode.UNREGISTER_CLIENT: lambda request: Response(),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: members,
        RequestCode.QUERY_CONSUMER_OFFSET: lambda request: Response(0, OffsetResponseHeader(0)),
        RequestCode.UPDATE_CONSUMER_OFFSET: lambda request: Response(),
        RequestCode.GET_MAX_OFFSET: lambda request: Response(0, OffsetResponseHeader(0)),
        RequestCode.PULL_MESSAGE: never,
        RequestCode.SEND_MESSAGE_V2: lambda request: sent(),
        RequestCode.SEND_BATCH_MESSAGE: lambda request: sent(),
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda request: Response(),
        RequestCode.LOCK_BATCH_MQ: lambda request: Response(
            0, body=LockResponse(LockRequest.decode(request.body).queues).encode()
        ),
        RequestCode.UNLOCK_BATCH_MQ: lambda request: Response(),
        RequestCode.CHECK_CLIENT_CONFIG: lambda request: Response(),
        RequestCode.END_TRANSACTION: lambda request: Response(),
    }


@attrs.define(eq=False)
class ScriptedCluster:
    """One name server and its brokers."""

    namesrv: ScriptedServer
    brokers: list[ScriptedServer]
    topics: set[str] = attrs.field(factory=lambda: {"T"})
    """what the name server knows"""

    @property
    def broker(self) -> ScriptedServer:
        return self.brokers[0]

    def route(self, request: Request) -> Response:
        if request.header.topic not in self.topics:
            return Response(
                ResponseCode.TOPIC_NOT_EXIST,
                remark="No topic route info in name server for the topic",
            )
        route = TopicRoute(
            [QueueData(broker.name, 1, 1) for broker in self.brokers if broker.name],
            [
                BrokerData("c", broker.name, {0: broker.address})
                for broker in self.brokers
                if broker.name
            ],
        )
        return Response(0, body=route.encode_standard())


@asynccontextmanager
async def scripted_cluster(brokers: int = 1) -> AsyncIterator[ScriptedCluster]:
    """Run scripted servers for the length of the block."""
    async with trio.open_nursery() as nursery:
        servers: list[ScriptedServer] = []
        for number in range(brokers):
            broker = ScriptedServer(f"broker-{chr(ord('a') + number)}", {})
            broker.script = _broker_script(lambda broker=broker: broker)  # type: ignore[misc]
            servers.append(broker)
        cluster = ScriptedCluster(ScriptedServer("namesrv", {}), servers)
        cluster.namesrv.script = {RequestCode.GET_ROUTEINFO_BY_TOPIC: cluster.route}
        for server in (*servers, cluster.namesrv):
            handlers = [
                Handler(code, server.play, "all", header, short)
                for code, (header, short) in _HEADERS.items()
                if code in server.script
            ]
            config = ServerConfig(
                host="127.0.0.1", pools={"all": PoolConfig(workers=16)}, drain_seconds=0
            )
            server.server = Server(config, HandlerTable(handlers), name=server.name)
            await nursery.start(server.server.run)
        yield cluster
        nursery.cancel_scope.cancel()
