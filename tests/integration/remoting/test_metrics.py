"""A server's figures for each request code: requests, errors, and how long they took and waited."""

from __future__ import annotations

from pathlib import Path

import trio
from brokers import peer_of, running_broker
from mqadmin_calls import mqadmin
from serving import ECHO, ECHO_ONE, FAIL, RawPeer, serving

from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response

SLEEPY, REFUSING, NOTHING_THERE, REFUSING_ALL = 9601, 9602, 9603, 9604


async def sleepy(request: Request) -> Response:
    await trio.sleep(0.05)
    return Response(0)


def refusing(request: Request) -> Response:
    raise Rejected(16, "no")


def refusing_some(requests: list[Request]) -> list[Response | None]:
    return [Response(13 if request.body else 0) for request in requests]


HANDLERS = [
    Handler(SLEEPY, sleepy, "sleepy"),
    Handler(REFUSING, refusing, "refusing"),
    Handler(NOTHING_THERE, lambda request: Response(ResponseCode.PULL_NOT_FOUND), "refusing"),
    Handler(REFUSING_ALL, refusing_some, "refusing", batch=True),
]


async def test_every_code_has_its_own_figures() -> None:
    async with (
        serving(HANDLERS, pools={"sleepy": PoolConfig(workers=1)}) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [
            peer.frame(code, b"x")
            for code in (
                ECHO,
                ECHO,
                ECHO_ONE,
                FAIL,
                REFUSING,
                REFUSING,
                NOTHING_THERE,
                REFUSING_ALL,
            )
        ]
        frames += [peer.frame(REFUSING_ALL), *(peer.frame(SLEEPY) for _ in range(3))]
        await peer.send(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            await peer.answer(opaque)
        codes = server.statistics().codes
        assert {
            code: (one.requests, one.answered, one.errors, one.failed)
            for code, one in codes.items()
        } == {
            ECHO: (2, 2, 0, 0),
            ECHO_ONE: (1, 1, 0, 0),
            FAIL: (1, 1, 1, 1),
            REFUSING: (2, 2, 2, 0),
            NOTHING_THERE: (1, 1, 0, 0),
            REFUSING_ALL: (2, 2, 1, 0),
            SLEEPY: (3, 3, 0, 0),
        }
        for one in codes.values():
            assert sum(one.latency) == one.answered
            assert 0 < one.latency_quantile(0.5) <= one.latency_quantile(1.0)
        slow = codes[SLEEPY]
        assert slow.latency_quantile(1.0) >= 0.15  # the third ran after two others
        assert slow.answer_seconds >= 0.05 + 0.1 + 0.15
        assert slow.queued == 2
        assert slow.wait_seconds_max >= 0.1
        assert slow.wait_seconds >= 0.15
        assert codes[ECHO].queued == 0


async def test_the_broker_and_mqadmin_show_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for _ in range(3):
            await peer.send("T")
        assert (await peer.send_raw("T", properties={"DELAY": "x"})).code >= 0
        assert (await peer.pull("T", 0, 99)).code != 0
        table = KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table
        assert table["request_310_SEND_MESSAGE_V2"].startswith("count 4, errors ")
        assert table["request_11_PULL_MESSAGE"].startswith(
            "count 1, errors 0, failed 0, refused 0, p50 "
        )
        assert (table["connections"], table["connectionsAccepted_fast"]) == ("1", "0")
        printed = await mqadmin("brokerStatus", "-b", ready.address, "-n", "127.0.0.1:9")
        assert "request_310_SEND_MESSAGE_V2" in printed.out, printed
