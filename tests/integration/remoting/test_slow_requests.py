"""Slow requests are logged, with the stage in which they spent their time."""

from __future__ import annotations

import logging
import math

import pytest
import trio
from serving import ECHO, RawPeer, serving, until

from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response

SLEEPY, LATER = 9601, 9602
THRESHOLD = 0.04


async def sleepy(_request: Request) -> Response:
    await trio.sleep(0.06)
    return Response(0)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, float]]:
    name = "triomq.remoting.server.slow_requests"
    return [record.__dict__["fields"] for record in caplog.records if record.name == name]


async def test_the_stages_of_slow_requests(caplog: pytest.LogCaptureFixture) -> None:
    held: list[Deferred] = []

    def later(request: Request) -> Deferred:
        held.append(Deferred((request,)))
        return held[-1]

    caplog.set_level(logging.WARNING)
    handlers = [Handler(SLEEPY, sleepy, "sleepy"), Handler(LATER, later, "later")]
    async with (
        serving(
            handlers,
            pools={"sleepy": PoolConfig(workers=1), "later": PoolConfig()},
            slow_seconds=THRESHOLD,
        ) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(code, b"xyz") for code in (SLEEPY, SLEEPY, LATER, ECHO)]
        await peer.send(b"".join(data for _, data in frames))
        await until(lambda: bool(held))
        await trio.sleep(0.06)
        held[0].finish(lambda: Response(0))
        for opaque, _ in frames:
            await peer.answer(opaque)
    found = lines_of(caplog)
    assert all(one["total_ms"] > THRESHOLD * 1000 for one in found)
    first, second = [one for one in found if one["code"] == SLEEPY]
    assert first["queue_ms"] < first["handler_ms"]
    assert second["queue_ms"] >= 40
    assert second["handler_ms"] >= 55
    (waited,) = [one for one in found if one["code"] == LATER]
    assert waited["completion_ms"] >= 55
    assert waited["body_bytes"] == 3
    assert waited["pool"] == "later"
    assert "slow request UNKNOWN of 127.0.0.1:" in caplog.text
    assert not [one for one in found if one["code"] == ECHO and one["total_ms"] < 40]


async def test_nothing_is_logged_without_a_threshold(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving([Handler(SLEEPY, sleepy, "sleepy")], pools={"sleepy": PoolConfig()}) as server,
        await RawPeer.open(server) as peer,
    ):
        opaque, data = peer.frame(SLEEPY, b"")
        await peer.send(data)
        await peer.answer(opaque)
    assert lines_of(caplog) == []
    assert server.config.slow_seconds == math.inf


async def test_many_slow_requests_make_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(
            [Handler(SLEEPY, sleepy, "sleepy")],
            pools={"sleepy": PoolConfig(workers=40)},
            slow_seconds=THRESHOLD,
        ) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(SLEEPY, b"") for _ in range(40)]
        await peer.send(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            await peer.answer(opaque)
    assert len(lines_of(caplog)) == 10
