"""Servers that accept connections and never answer: a name server, or a broker that is
registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from socket import create_server, socket

from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader


@contextlib.contextmanager
def silent_server(host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a socket that the system accepts connections for; nothing reads them."""
    with create_server((host, 0), backlog=512) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def refusing_server() -> Iterator[int]:
    """The port of a socket that refuses connections, and that nobody else gets meanwhile."""
    with socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@asynccontextmanager
async def silent_broker(
    namesrv: str,
    topics: Iterable[str],
    name: str = "ghost",
    slave: str | None = None,
    *,
    refuses: bool = False,
) -> AsyncIterator[str]:
    """The address of a broker that is registered with these topics, and one of its own name, and
    never answers. ``slave``: address of a living broker that becomes its slave in the routes.
    ``refuses``: it refuses connections, too.
    """
    with refusing_server() if refuses else silent_server() as port:
        address = f"127.0.0.1:{port}"
        body = RegisterBrokerBody(
            TopicTable(
                {topic: TopicConfig(topic_name=topic) for topic in (name, *topics)},
                DataVersion(0, 1, 1),
            )
        ).encode()
        headers = [RegisterBrokerHeader(name, address, "DefaultCluster", "", 0)]
        if slave is not None:
            headers.append(RegisterBrokerHeader(name, slave, "DefaultCluster", "", 1))
        async with Connector() as connector:
            for header in headers:
                answer = await connector.invoke(
                    namesrv, request(RequestCode.REGISTER_BROKER, header, body), timeout=10
                )
                assert answer.code == 0, answer.remark
            yield address
