"""mqadmin doctor tries the gRPC endpoints of brokers."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from mqadmin_calls import run
from processes import free_port

from triomq.client.admin.doctor.endpoint_checks import speaks_http2
from triomq.testing import local_cluster


async def grpc_findings(namesrv: str) -> list[dict[str, Any]]:
    out = io.StringIO()
    await run(["doctor", "--cluster", "-n", namesrv, "--json"], out, io.StringIO())
    found = json.loads(out.getvalue())["findings"]
    return [one for one in found if one["check"].endswith("gRPC")]


async def test_an_endpoint_that_answers(tmp_path: Path) -> None:
    port = free_port()
    async with local_cluster(dir=tmp_path, settings={"grpcServerPort": port}) as cluster:
        with trio.fail_after(30):
            while await speaks_http2("127.0.0.1", port) is not None:
                await trio.sleep(0.01)
        (found,) = await grpc_findings(cluster.namesrv_address)
        assert (found["level"], found["check"]) == ("ok", "broker-a:0 gRPC")


async def test_a_broker_without_an_endpoint_is_left_out(tmp_path: Path) -> None:
    async with local_cluster(dir=tmp_path) as cluster:
        assert await grpc_findings(cluster.namesrv_address) == []


async def test_what_is_wrong_is_told() -> None:
    assert await speaks_http2("127.0.0.1", free_port()) == "connection refused"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, answer)
            found = await speaks_http2("127.0.0.1", port)
        assert found == "what answers there does not speak HTTP/2"


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.client.admin.doctor.endpoint_checks.ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = await speaks_http2("127.0.0.1", listener.getsockname()[1])
    assert found == "no answer within 0.2 s"
