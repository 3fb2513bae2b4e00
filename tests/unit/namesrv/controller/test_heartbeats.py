"""Heartbeats at a controller: which of them count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.commands import ApplyId
from triomq.namesrv.controller.controller_files import ControllerFolder
from triomq.namesrv.controller.controller_settings import ControllerSettings, Peer
from triomq.namesrv.controller.liveness import BrokerLiveness
from triomq.namesrv.controller.members import ControllerMembers
from triomq.namesrv.controller.requests import ControllerRequests
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.requests import Request

NAME = "broker-a"


@asynccontextmanager
async def requests_of_one(folder: Path) -> AsyncIterator[ControllerRequests]:
    """A controller that has given one id."""
    settings = ControllerSettings()
    log = CommandLog(own_id="n0", folder=ControllerFolder(folder, ["n0"]), send=print)
    groups = BrokerGroups(
        log=log,
        liveness=BrokerLiveness(trio.current_time() - 60),
        settings=lambda: settings,
        limits=Limits(settings, "controller"),
        role_changed=lambda _name: None,
    )
    command = ApplyId(cluster="C", broker_name=NAME, broker_id=1, check_code="a:1;1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await log.led.wait()
        await groups.apply_id(command)
        peer = Peer("n0", "a:1")
        members = ControllerMembers(peer, [peer], log)
        yield ControllerRequests(groups=groups, settings=settings, members=members)
        nursery.cancel_scope.cancel()


def heartbeat(broker_id: int = 1, *, closed: bool = False, **more: Any) -> Request:
    header = BrokerHeartbeatHeader("C", "a:1", NAME, broker_id, **more)
    return cast(
        "Request", SimpleNamespace(header=header, connection=SimpleNamespace(closed=closed))
    )


async def test_one_that_waited_behind_the_end_of_its_connection_is_no_life(tmp_path: Path) -> None:
    """In Java it makes a dead broker alive again, and nobody takes over for ten seconds."""
    async with requests_of_one(tmp_path) as requests:
        requests.heartbeat(heartbeat(closed=True))
        assert not requests.groups.is_living(NAME, 1)
        requests.heartbeat(heartbeat())
        assert requests.groups.is_living(NAME, 1)


async def test_a_broker_without_an_id_takes_no_memory(tmp_path: Path) -> None:
    async with requests_of_one(tmp_path) as requests:
        requests.heartbeat(heartbeat(2))
        assert requests.unknown_heartbeats == 1
        assert requests.groups.liveness.living(NAME, (2,), trio.current_time()) == {}


async def test_what_a_broker_says_about_itself_is_kept(tmp_path: Path) -> None:
    async with requests_of_one(tmp_path) as requests:
        said = {"heartbeat_timeout_ms": 3000, "epoch": 4, "max_offset": 5, "election_priority": 6}
        requests.heartbeat(heartbeat(**said))
        seen = requests.groups.living(NAME)[1]
        assert (seen.timeout, seen.epoch, seen.max_offset, seen.priority) == (3.0, 4, 5, 6)
        requests.heartbeat(heartbeat(heartbeat_timeout_ms=2**62))
        assert requests.groups.living(NAME)[1].timeout == 3600
        requests.heartbeat(heartbeat(heartbeat_timeout_ms=-1))
        assert requests.groups.living(NAME)[1].timeout == 10
