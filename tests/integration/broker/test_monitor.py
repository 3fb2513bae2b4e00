"""The monitor port of real services: probes, status and metrics over HTTP by a client that we did
not write.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import peer_of, running_broker
from monitor_pages import get, samples, value
from processes import free_port

from triomq import Producer
from triomq.broker.processors.query import QueryMessages
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.core.open_files import ConnectionBudget, Places
from triomq.remoting.monitor.http import HttpAnswer, HttpRequest
from triomq.remoting.monitor.http_server import (
    CONNECTIONS_MAX,
    REQUEST_SECONDS_MAX,
    Monitor,
    monitoring,
)
from triomq.remoting.monitor.metrics import Family
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.query import ViewMessageHeader
from triomq.remoting.server.listen import AddressInUse
from triomq.testing import local_cluster


async def test_pages_ask_for_the_token_and_probes_do_not(tmp_path: Path) -> None:
    port = free_port()
    settings = {"monitorPort": port, "monitorToken": "swordfish"}
    async with local_cluster(dir=tmp_path, settings=settings):
        for path in "/live", "/ready":
            assert (await get(port, path))[0] == 200
        for path in "/status", "/metrics":
            for token in "", "wrong":
                assert (await get(port, path, token=token))[0] == 401
            assert (await get(port, path, token="swordfish"))[0] == 200


@pytest.mark.feature("184a", "184b", "184c", "184d")
async def test_a_cluster_tells_what_it_did(tmp_path: Path) -> None:
    port = free_port()
    async with local_cluster(dir=tmp_path, settings={"monitorPort": port}) as cluster:
        assert await get(port, "/live") == (200, "text/plain; charset=utf-8", "live\n")
        assert (await get(port, "/ready"))[::2] == (200, "ready\n")
        assert (await get(port, "/ready", "HEAD"))[::2] == (200, "")
        assert (await get(port, "/"))[0] == 404
        assert (await get(port, "/live", "POST"))[0] == 405
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            for number in range(3):
                await producer.send("orders", b"%d" % number)
            status, kind, page = await get(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert (
            value(
                page,
                "rocketmq_messages_in_total",
                topic="orders",
                is_system="false",
                cluster="DefaultCluster",
                node_type="broker",
                node_id="broker-a",
            )
            == 3
        )
        assert value(page, "triomq_requests_total", request="SEND_MESSAGE_V2") == 3
        assert value(page, "triomq_request_latency_seconds_count", request="SEND_MESSAGE_V2") == 3
        assert (
            value(
                page, "triomq_request_latency_seconds_bucket", request="SEND_MESSAGE_V2", le="+Inf"
            )
            == 3
        )
        assert value(page, "rocketmq_producer_connections") == 1
        assert (
            value(page, "triomq_ready")
            == value(page, "triomq_storage_writable")
            == value(page, "triomq_name_servers_registered")
            == 1
        )
        assert value(page, "process_resident_memory_bytes") > 10_000_000
        facts: dict[str, Any] = json.loads((await get(port, "/status"))[2])
        assert (facts["ready"], facts["brokerName"], facts["nameServers"]) == (
            True,
            "broker-a",
            {cluster.namesrv_address: True},
        )


@pytest.mark.feature("148a", "148b", "148c", "148d", "185a")
async def test_load_and_capacity_are_seen_before_a_limit_is_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of messages and bytes for rates, a group's backlog, requests that wait in a pool,
    and how full the disk is.
    """
    port, gate = free_port(), trio.Event()

    async def slow(self: QueryMessages, _request: object) -> None:
        await gate.wait()

    monkeypatch.setattr(QueryMessages, "by_offset", slow)
    async with (
        running_broker(tmp_path, monitorPort=port, queryMessageThreadPoolNums=1) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("orders", queues=1)
        for sent in (3, 7):
            while (await peer.send("orders")).queue_offset < sent - 1:
                pass
            page = (await get(port, "/metrics"))[2]
            assert value(page, "rocketmq_messages_in_total", topic="orders") == sent
            assert value(page, "rocketmq_throughput_in_total", topic="orders") > 0
        await peer.pull("orders", count=4, group="billing")
        await peer.commit("billing", "orders", 0, 4)
        await peer.heartbeat(
            "one", group="billing", subscriptions={"orders": "*"}, producers=("shop",)
        )
        page = (await get(port, "/metrics"))[2]
        assert value(page, "rocketmq_producer_connections") == 1
        assert value(page, "rocketmq_consumer_connections", consumer_group="billing") == 1
        assert (
            value(page, "rocketmq_messages_out_total", topic="orders", consumer_group="billing")
            == 4
        )
        assert (
            value(page, "rocketmq_consumer_lag_messages", topic="orders", consumer_group="billing")
            == 3
        )
        assert value(page, "rocketmq_processor_watermark", processor="query_message") == 0
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(peer.call, Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(0))
            with trio.fail_after(10):
                while (
                    value(
                        (await get(port, "/metrics"))[2],
                        "rocketmq_processor_watermark",
                        processor="query_message",
                    )
                    != 2
                ):
                    await trio.sleep(0.01)
            gate.set()
            nursery.cancel_scope.cancel()
        disk = shutil.disk_usage(tmp_path)
        page = (await get(port, "/metrics"))[2]
        assert value(page, "rocketmq_storage_size_bytes") == pytest.approx(disk.used, rel=0.05)
        assert value(page, "rocketmq_storage_dispatch_behind_bytes") == 0
        assert value(page, "triomq_storage_used_ratio") == pytest.approx(
            disk.used / (disk.used + disk.free), rel=0.05
        )


@pytest.mark.feature("184b")
async def test_a_broker_that_nobody_can_find_is_live_but_not_ready(tmp_path: Path) -> None:
    port, nowhere = free_port(), f"127.0.0.1:{free_port()}"
    async with running_broker(tmp_path, monitorPort=port, namesrvAddr=nowhere):
        assert (await get(port, "/live"))[0] == 200
        status, _, text = await get(port, "/ready")
        assert (status, text) == (
            503,
            (
                f"not ready: no name server knows this broker: none of {nowhere} took its"
                " registration\n"
            ),
        )
        assert value((await get(port, "/metrics"))[2], "triomq_ready") == 0


async def test_without_a_port_nothing_listens(tmp_path: Path) -> None:
    async with monitoring(MonitorSettings(), "mqbroker") as monitor, trio.open_nursery():
        assert monitor.not_ready() == "starting"


async def test_a_port_that_is_taken_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.RaisesGroup(
            pytest.RaisesExc(AddressInUse, match="set monitorPort to another port")
        ):
            async with monitoring(MonitorSettings(port=taken.getsockname()[1]), "mqbroker"):
                raise AssertionError("not reached")


class Fine:
    """A service that has nothing to complain of."""

    def labels(self) -> dict[str, str]:
        return {}

    def not_ready(self) -> None:
        return None

    def status(self) -> dict[str, Any]:
        return {}

    def figures(self) -> Iterator[Family]:
        return iter(())


async def test_probes_are_answered_while_the_service_starts_and_stops() -> None:
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        assert [(await get(port, path))[::2] for path in ("/live", "/ready")] == [
            (200, "live\n"),
            (503, "not ready: starting\n"),
        ]
        monitor.phase = "recovering"
        assert json.loads((await get(port, "/status"))[2])["reason"] == "recovering"
        monitor.leave()
        assert (await get(port, "/ready"))[2] == "not ready: stopping\n"
        for _ in range(2):
            monitor.serve(Fine())
            assert (await get(port, "/ready"))[0] == 200
            monitor.leave("draining")
            assert (await get(port, "/ready"))[2] == "not ready: draining\n"


async def test_a_probe_that_was_answered_gives_its_place_back() -> None:
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        for _ in range(CONNECTIONS_MAX + 2):
            assert (await get(port, "/live"))[0] == 200
        assert monitor.accepted.closed == 0, "no connection was closed to make room"


async def test_a_low_limit_of_open_files_leaves_fewer_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    budget = ConnectionBudget(Places(9), Places(1), Places(2))
    async with monitoring(MonitorSettings(port=port), "mqbroker", budget) as monitor:
        half = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        page = (await get(port, "/metrics"))[2]
        assert monitor.accepted.closed == 1
        assert value(page, "triomq_connection_places", port="probes") == 2
        for stream in half:
            await stream.aclose()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "2 connections to the monitor port at once: one that has not asked makes room"
    ]


async def test_a_scrape_under_way_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    go_on = trio.Event()
    answer = Monitor.answer

    async def slow(monitor: Monitor, request: HttpRequest) -> HttpAnswer:
        if request.path == "/metrics":
            await go_on.wait()
        return await answer(monitor, request)

    monkeypatch.setattr(Monitor, "answer", slow)
    async with (
        monitoring(
            MonitorSettings(port=port),
            "mqbroker",
            ConnectionBudget(Places(9), Places(1), Places(2)),
        ) as monitor,
        trio.open_nursery() as nursery,
    ):
        pages: list[int] = []

        async def scrape() -> None:
            pages.append((await get(port, "/metrics"))[0])

        nursery.start_soon(scrape)
        with trio.fail_after(10):
            while not any(one.asked for one in monitor.accepted._open):
                await trio.sleep(0.005)
        for count in (1, 2, 3):
            half = await trio.open_tcp_stream("127.0.0.1", port)
            await half.send_all(b"GET")
            assert (await get(port, "/live"))[0] == 200
            assert monitor.accepted.closed == count, "the half request made room"
            await half.aclose()
        go_on.set()
    assert pages == [200]


async def test_the_page_tells_what_the_limit_of_open_files_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    budget = ConnectionBudget(Places(9), Places(0), Places(32))
    assert not budget.slaves.take()
    failures = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]
    accept = socket.socket.accept

    def flaky(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures and listener.getsockname()[1] == port:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", flaky)
    async with monitoring(MonitorSettings(port=port), "mqbroker", budget):
        page = (await get(port, "/metrics"))[2]
    refused = {
        (labels["port"], labels["reason"]): number
        for (name, frozen), number in samples(page).items()
        if name == "triomq_open_file_refusals_total"
        for labels in [dict(frozen)]
    }
    assert {key: number for key, number in refused.items() if number} == {
        ("slaves", "no_place"): 1,
        ("probes", "no_descriptor"): 2,
    }
    assert len(refused) == 6
    assert [
        record.getMessage().partition(":")[0]
        for record in caplog.records
        if record.levelname == "ERROR"
    ] == ["cannot accept probes for now"]


async def test_a_thousand_half_requests_keep_no_probe_out() -> None:
    """Each new connection takes the place of the oldest that has not asked; scrapes under way go
    on.
    """
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        half = []
        for number in range(1000):
            half.append(await trio.open_tcp_stream("127.0.0.1", port))
            await half[-1].send_all(b"GET /live HTTP/1.1\r\nHost: a")
            if number % 100 == 99:
                assert (await get(port, "/live"))[::2] == (200, "live\n")
        assert monitor.accepted.closed >= 1000 - CONNECTIONS_MAX
        assert (
            value((await get(port, "/metrics"))[2], "triomq_monitor_connections_closed_total")
            >= 1000 - CONNECTIONS_MAX
        )
        assert await half[0].receive_some() == b"", "the oldest half request was not closed"
        await half[-1].send_all(b"\r\n\r\n")
        assert (await half[-1].receive_some()).startswith(b"HTTP/1.1 200 "), (
            "the youngest half request lost its place"
        )
        for stream in half:
            await trio.aclose_forcefully(stream)


async def test_silent_peers_leave_after_a_while(mock_clock: trio.testing.MockClock) -> None:
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker"):
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        assert (await get(port, "/live"))[::2] == (200, "live\n")
        mock_clock.jump(REQUEST_SECONDS_MAX)
        for stream in silent:
            assert await stream.receive_some() == b""
            await stream.aclose()


async def test_a_source_that_fails_costs_one_scrape_only(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()

    class Broken:
        def labels(self) -> dict[str, str]:
            raise RuntimeError("boom")

        def not_ready(self) -> str | None:
            return None

    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        monitor.serve(Broken())  # type: ignore[arg-type]
        with pytest.raises(http.client.RemoteDisconnected):
            await get(port, "/metrics")
        assert (await get(port, "/ready"))[0] == 200
    assert "a probe or a scrape failed" in caplog.text


def test_the_parts_of_the_test_can_fail() -> None:
    assert Monitor("x").not_ready() == "starting"
    with pytest.raises(AssertionError):
        value("a 1\n", "b")


@pytest.mark.feature("184e")
async def test_a_name_server_tells_who_is_there(tmp_path: Path) -> None:
    port = free_port()
    config = NamesrvConfig(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_path=tmp_path / "kv.json",
        monitor=MonitorSettings(port=port),
    )
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(run_namesrv, config)
        assert [(await get(port, path))[::2] for path in ("/live", "/ready")] == [
            (200, "live\n"),
            (200, "ready\n"),
        ]
        assert value((await get(port, "/metrics"))[2], "triomq_namesrv_topics") == 0
        async with running_broker(
            tmp_path / "store", namesrvAddr=f"127.0.0.1:{ready.port}"
        ) as broker:
            facts = json.loads((await get(port, "/status"))[2])
            assert (facts["ready"], facts["brokers"]) == (True, {"broker-a": {"0": broker.address}})
            page = (await get(port, "/metrics"))[2]
            assert (
                value(
                    page,
                    "triomq_namesrv_broker",
                    cluster="TestCluster",
                    broker="broker-a",
                    broker_id="0",
                    address=broker.address,
                )
                == 1
            )
            assert (
                value(
                    page, "triomq_requests_total", request="REGISTER_BROKER", node_type="nameserver"
                )
                == 1
            )
        ready.stop()
