"""``h2load`` of nghttp2, an HTTP/2 client that no gRPC library wrote, at a broker's port."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio
from grpc_broker import TOPIC, GrpcBroker, grpc_broker
from monitor_pages import get, samples
from processes import free_port

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.service import PATH
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader

pytestmark = pytest.mark.skipif(
    shutil.which("h2load") is None, reason="h2load is missing: apt-get install nghttp2-client"
)
CONNECTIONS = 4
SENT = re.compile(
    r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+)"
    r" errored, (\d+) timeout"
)


async def load(broker: GrpcBroker, folder: Path, method: str, request: object, *more: str) -> str:
    """Post one request again and again; return what h2load says."""
    body = request.SerializeToString()  # type: ignore[attr-defined]
    file = folder / method
    file.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
    headers = ["content-type: application/grpc", "te: trailers", "x-mq-client-id: h2load"]
    command = [
        *("h2load", "-c", str(CONNECTIONS), "-d", str(file), *more),
        *(part for header in headers for part in ("-H", header)),
        f"http://127.0.0.1:{broker.port}{PATH}{method}",
    ]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
    return (await trio.to_thread.run_sync(run, abandon_on_cancel=True)).stdout


async def stored(broker: GrpcBroker) -> int:
    total = 0
    for queue in range(2):
        answer = await broker.peer.call(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, queue)
        )
        total += answer.header(OffsetResponseHeader).offset
    return total


@pytest.mark.parametrize(("streams", "count"), [(1, 1_000), (32, 2_000)])
async def test_every_request_of_h2load_is_answered(
    tmp_path: Path, streams: int, count: int
) -> None:
    monitor = free_port()
    async with grpc_broker(tmp_path / "store", monitorPort=monitor) as broker:
        other = broker.client()
        message = other.message(b"x" * 200)
        sends = rpc.SendMessageRequest(messages=[message])
        routes = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        said: list[str] = []

        async def run(method: str, request: object) -> None:
            more = "-n", str(count), "-m", str(streams)
            said.append(await load(broker, tmp_path, method, request, *more))

        served = 0
        async with trio.open_nursery() as nursery:

            async def serve_others() -> None:
                """Somebody else works at the same time."""
                nonlocal served
                while len(said) < 2:
                    answer = await other.call("QueryRoute", routes, timeout=60)
                    assert answer.status.code == pb.Code.OK
                    served += 1

            nursery.start_soon(serve_others)
            nursery.start_soon(run, "SendMessage", sends)
            nursery.start_soon(run, "QueryRoute", routes)
        assert served > 2
        for text in said:
            match = SENT.search(text)
            assert match is not None, text
            assert [int(number) for number in match.groups()] == [*[count] * 4, 0, 0, 0], text
            assert f"status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx" in text, text
        assert await stored(broker) == count
        counted = samples((await get(monitor, "/metrics"))[2])

        def total(name: str, **labels: str) -> float:
            return sum(
                number
                for (one, its), number in counted.items()
                if one == name and labels.items() <= set(its)
            )

        assert total("triomq_grpc_calls_total", status="OK") == 2 * count + served
        assert total("triomq_grpc_calls_total") == 2 * count + served
        assert total("triomq_grpc_connections_broken_total") == 0
        assert total("triomq_grpc_connections_turned_away_total") == 0
        assert total("triomq_grpc_refused_total") == 0
