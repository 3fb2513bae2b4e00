"""The monitor port of real services: probes, status and metrics over HTTP by a client that we did not write."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import running_broker
from processes import free_port
from prometheus_client.parser import text_string_to_metric_families

from triomq import Producer
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.monitor.server import CONNECTIONS_MAX, REQUEST_SECONDS_MAX, Monitor, monitoring
from triomq.remoting.monitor.settings import MonitorSettings
from triomq.remoting.server.listen import AddressInUse
from triomq.testing import local_cluster


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()
    finally:
        connection.close()


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    return await trio.to_thread.run_sync(fetch, port, path, method)


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page: str, name: str, **labels: str) -> float:
    found = [number for (one, its), number in samples(page).items() if one == name and set(labels.items()) <= its]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.mark.feature(184, "185a")
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
        assert value(page, "rocketmq_messages_in_total", topic="orders", is_system="false", cluster="DefaultCluster", node_type="broker", node_id="broker-a") == 3
        assert value(page, "triomq_requests_total", request="SEND_MESSAGE_V2") == 3
        assert value(page, "triomq_request_latency_seconds_count", request="SEND_MESSAGE_V2") == 3
        assert value(page, "triomq_request_latency_seconds_bucket", request="SEND_MESSAGE_V2", le="+Inf") == 3
        assert value(page, "rocketmq_producer_connections") == 1
        assert value(page, "triomq_ready") == value(page, "triomq_storage_writable") == value(page, "triomq_name_servers_registered") == 1
        assert value(page, "process_resident_memory_bytes") > 10_000_000
        facts: dict[str, Any] = json.loads((await get(port, "/status"))[2])
        assert (facts["ready"], facts["brokerName"], facts["nameServers"]) == (True, "broker-a", {cluster.namesrv_address: True})


@pytest.mark.feature(184)
async def test_a_broker_that_nobody_can_find_is_live_but_not_ready(tmp_path: Path) -> None:
    port, nowhere = free_port(), f"127.0.0.1:{free_port()}"
    async with running_broker(tmp_path, monitorPort=port, namesrvAddr=nowhere):
        assert (await get(port, "/live"))[0] == 200
        status, _, text = await get(port, "/ready")
        assert (status, text) == (503, f"not ready: no name server knows this broker: none of {nowhere} took its registration\n")
        assert value((await get(port, "/metrics"))[2], "triomq_ready") == 0


async def test_without_a_port_nothing_listens(tmp_path: Path) -> None:
    async with monitoring(MonitorSettings(), "mqbroker") as monitor, trio.open_nursery():
        assert monitor.not_ready() == "starting"


async def test_a_port_that_is_taken_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.RaisesGroup(pytest.RaisesExc(AddressInUse, match="set monitorPort to another port")):
            async with monitoring(MonitorSettings(port=taken.getsockname()[1]), "mqbroker"):
                raise AssertionError("not reached")


async def test_probes_are_answered_while_the_service_starts_and_stops() -> None:
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        assert [(await get(port, path))[::2] for path in ("/live", "/ready")] == [(200, "live\n"), (503, "not ready: starting\n")]
        monitor.phase = "recovering"
        assert json.loads((await get(port, "/status"))[2])["reason"] == "recovering"
        monitor.leave()
        assert (await get(port, "/ready"))[2] == "not ready: stopping\n"


async def test_a_thousand_half_requests_keep_no_probe_out() -> None:
    """Each new connection takes the seat of the oldest one that has not asked; scrapes under way go on."""
    port = free_port()
    async with monitoring(MonitorSettings(port=port), "mqbroker") as monitor:
        half = []
        for number in range(1000):
            half.append(await trio.open_tcp_stream("127.0.0.1", port))
            await half[-1].send_all(b"GET /live HTTP/1.1\r\nHost: a")
            if number % 100 == 99:
                assert (await get(port, "/live"))[::2] == (200, "live\n")
        assert monitor.seats.closed >= 1000 - CONNECTIONS_MAX
        assert value((await get(port, "/metrics"))[2], "triomq_monitor_connections_closed_total") >= 1000 - CONNECTIONS_MAX
        assert await half[0].receive_some() == b"", "the oldest half request was not closed"
        await half[-1].send_all(b"\r\n\r\n")
        assert (await half[-1].receive_some()).startswith(b"HTTP/1.1 200 "), "the youngest half request lost its seat"
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


@pytest.mark.feature(184)
async def test_a_name_server_tells_who_is_there(tmp_path: Path) -> None:
    port = free_port()
    config = NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_path=tmp_path / "kv.json", monitor=MonitorSettings(port=port))
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(run_namesrv, config)
        assert value((await get(port, "/metrics"))[2], "triomq_namesrv_topics") == 0
        async with running_broker(tmp_path / "store", namesrvAddr=f"127.0.0.1:{ready.port}") as broker:
            facts = json.loads((await get(port, "/status"))[2])
            assert (facts["ready"], facts["brokers"]) == (True, {"broker-a": {"0": broker.address}})
            page = (await get(port, "/metrics"))[2]
            assert value(page, "triomq_namesrv_broker", cluster="TestCluster", broker="broker-a", broker_id="0", address=broker.address) == 1
            assert value(page, "triomq_requests_total", request="REGISTER_BROKER", node_type="nameserver") == 1
        ready.stop()
