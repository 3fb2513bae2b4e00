"""Name servers that move: an address server that lists them (rocketmq.namesrv.domain), a host name
that gets other addresses; clients and brokers follow.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio
from brokers import running_broker
from mqadmin_calls import failed, mqadmin

from triomq.client.core.config import ClientSettings, ProducerSettings, namesrv_addresses
from triomq.client.core.errors import NoNameServer, RouteNotFound
from triomq.client.sdk.producer import Producer
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.client import discovery
from triomq.remoting.client.discovery import address_server_url, all_addresses, fetch_addresses
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost


class AddressServer:
    """RocketMQ's address server: a GET of one path answers with a text."""

    def __init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                self.send_response(200 if owner.text is not None else 503)
                self.end_headers()
                self.wfile.write((owner.text or "").encode())

            def log_message(self, *arguments: object) -> None:
                """Tests stay quiet."""

        self.text: str | None = ""
        self.asked: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.domain = f"127.0.0.1:{self.server.server_port}"
        self.url = address_server_url(self.domain)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def address_server() -> Iterator[AddressServer]:
    server = AddressServer()
    yield server
    server.close()


@asynccontextmanager
async def name_server(folder: Path, name: str) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        config = NamesrvConfig(
            listen_host="127.0.0.1", listen_port=0, kv_path=folder / f"{name}.json"
        )
        ready: NamesrvReady = await nursery.start(run_namesrv, config)
        yield f"127.0.0.1:{ready.port}"
        nursery.cancel_scope.cancel()


async def registered(namesrv: str) -> bool:
    """Does this name server know broker-a? A broker that has left has a row, too, and code 1."""
    done = await mqadmin("clusterList", "-n", namesrv)
    return done.code == 0 and "broker-a" in done.out


async def until_registered(namesrv: str, wanted: bool) -> None:
    with trio.fail_after(10):
        while await registered(namesrv) is not wanted:
            await trio.sleep(0.02)


async def producer_follows(producer: Producer) -> None:
    with trio.fail_after(10):
        while True:
            try:
                assert (await producer.send("BenchmarkTest", b"2")).queue.broker_name == "broker-a"
                return
            except RouteNotFound:
                await trio.sleep(0.02)


async def test_broker_and_producer_follow_an_address_server(
    tmp_path: Path, address_server: AddressServer
) -> None:
    settings = {
        "fetchNamesrvAddrByAddressServer": True,
        "rmqAddressServerDomain": address_server.domain,
        "fetchNamesrvAddrInterval": 50,
    }
    async with name_server(tmp_path, "one") as one, name_server(tmp_path, "two") as two:
        address_server.text = f"{one}\n"
        async with running_broker(tmp_path / "store", **settings):
            await until_registered(one, True)
            assert not await registered(two)
            assert address_server.asked[0] == "/rocketmq/nsaddr"
            producing = ProducerSettings(client=ClientSettings(name_server_refresh=0.05))
            async with Producer(address_server.url, group="p", settings=producing) as producer:
                assert (await producer.send("TBW102", b"1")).queue.broker_name == "broker-a"
                address_server.text = None  # it is down: everybody stays
                await trio.sleep(0.2)
                assert await registered(one)
                address_server.text = two
                await until_registered(two, True)
                await until_registered(one, False)
                # Only the second name server has a route for a topic that is asked for now.
                await producer_follows(producer)
            assert (await mqadmin("topicList", "-n", address_server.url)).code == 0


async def test_a_broker_registers_with_every_address_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are made up: the resolver is the only part that is not real."""
    async with name_server(tmp_path, "one") as one, name_server(tmp_path, "two") as two:
        ports = {"first.example": one, "second.example": two}
        known = {"first.example"}
        real = trio.socket.getaddrinfo

        async def look_up(host: str, *arguments: object, **more: object) -> list[object]:
            if host not in ports:
                return list(await real(host, *arguments, **more))  # type: ignore[arg-type]
            if host not in known:
                raise socket.gaierror(-2, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

        monkeypatch.setattr(discovery.trio.socket, "getaddrinfo", look_up)
        addresses = ";".join(
            f"{name}:{address.rpartition(':')[2]}" for name, address in ports.items()
        )
        settings = {
            "namesrvAddr": addresses,
            "fetchNameSrvAddrByDnsLookup": True,
            "updateNameServerAddrPeriod": 50,
        }
        known.add("second.example")
        async with running_broker(tmp_path / "store", **settings):
            await until_registered(one, True)
            await until_registered(two, True)
            known.remove("second.example")
            await trio.sleep(0.2)
            assert await registered(two), "a name that cannot be looked up changes nothing"


@pytest.mark.feature("6c")
async def test_broker_and_producer_go_where_a_name_points_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server moves to another machine: its name gets another address, which new connections
    use.
    """
    points_to = "127.0.0.1"
    real = trio.socket.getaddrinfo

    async def look_up(host: str, *arguments: object, **more: object) -> list[object]:
        return list(await real(points_to if host == "names.example" else host, *arguments, **more))  # type: ignore[arg-type]

    monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
    async with trio.open_nursery() as nursery:
        kv_path = tmp_path / "kv.json"
        one: NamesrvReady = await nursery.start(
            run_namesrv, NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_path=kv_path)
        )
        name = f"names.example:{one.port}"
        async with (
            running_broker(tmp_path / "store", namesrvAddr=name),
            Producer(name, group="p") as producer,
        ):
            await until_registered(f"127.0.0.1:{one.port}", True)
            assert (await producer.send("TBW102", b"1")).queue.broker_name == "broker-a"
            one.stop()
            points_to = "127.0.0.2"
            two: NamesrvReady = await nursery.start(
                run_namesrv,
                NamesrvConfig(listen_host="127.0.0.2", listen_port=one.port, kv_path=kv_path),
            )
            await until_registered(f"127.0.0.2:{one.port}", True)
            await producer_follows(producer)
        two.stop()


async def test_all_addresses_of_a_name_are_found() -> None:
    assert "127.0.0.1:9876" in await all_addresses(["localhost:9876", "127.0.0.1:9876"])
    with pytest.raises(ConnectFailed, match="no-such-host"):
        await all_addresses(["no-such-host.invalid:9876"])


async def test_what_an_address_server_may_answer(address_server: AddressServer) -> None:
    address_server.text = " a:1;b:2 \n"
    assert await fetch_addresses(address_server.url) == ("a:1", "b:2")
    for text, reason in (
        (None, "it answered 503"),
        ("", "empty"),
        ("<html>", "has no port"),
        ("a", "has no port"),
    ):
        address_server.text = text
        with pytest.raises(ConnectFailed, match=reason):
            await fetch_addresses(address_server.url)
    with pytest.raises(NoNameServer):
        async with Producer(address_server.url, group="p"):
            pass
    assert failed(await mqadmin("topicList", "-n", address_server.url), 6, "has no port")


async def test_a_port_that_speaks_no_http_is_an_error_and_no_hang() -> None:
    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]

        async def garbage(stream: trio.SocketStream) -> None:
            await stream.send_all(b"\x00\x00\x00\x05hello")
            await stream.aclose()

        nursery.start_soon(trio.serve_listeners, garbage, [listener])
        with pytest.raises(ConnectFailed):
            await fetch_addresses(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/")
        nursery.cancel_scope.cancel()


async def test_a_server_whose_answer_never_ends_is_given_up() -> None:
    """It sends a byte now and then, so that no single read takes too long."""
    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]

        async def drip(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n")
                while True:
                    await stream.send_all(b"1")
                    await trio.sleep(0.05)

        nursery.start_soon(trio.serve_listeners, drip, [listener])
        with pytest.raises(ConnectFailed, match=r"no whole answer within 0\.2 s"):
            await fetch_addresses(
                f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", timeout=0.2
            )
        nursery.cancel_scope.cancel()


def test_what_a_domain_means() -> None:
    assert address_server_url("names.example") == "http://names.example:8080/rocketmq/nsaddr"
    assert (
        address_server_url("names.example:81", "nsaddr-unit")
        == "http://names.example:81/rocketmq/nsaddr-unit"
    )
    assert address_server_url(" https://names.example/list ") == "https://names.example/list"
    environment = {
        "ROCKETMQ_NAMESRV_DOMAIN": "names.example",
        "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP": "other",
    }
    assert namesrv_addresses(None, environment) == ("http://names.example:8080/rocketmq/other",)
    assert namesrv_addresses(None, {**environment, "NAMESRV_ADDR": "a:1"}) == ("a:1",)


async def test_a_question_under_way_goes_to_the_new_name_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list changes, and the connection to an old name server is closed, while a client waits
    for a route: the client still gets the route.
    """
    async with (
        name_server(tmp_path, "two") as two,
        running_broker(tmp_path / "store", namesrvAddr=two),
    ):
        await until_registered(two, True)
        async with Producer(two, group="p") as producer:
            session = producer._active().session
            names = session._names
            names.replace(["127.0.0.1:9"])
            call = session.call

            async def moved(address: str, *arguments: Any) -> Any:
                if address == "127.0.0.1:9":
                    names.replace([two])
                    raise ConnectionLost(address, "closed by this side")
                return await call(address, *arguments)

            monkeypatch.setattr(type(session), "call", lambda self, *arguments: moved(*arguments))
            assert await session.finder.look_up("TBW102") is not None
