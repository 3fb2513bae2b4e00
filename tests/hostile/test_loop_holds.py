"""No request and no periodic task holds a server's loop for long, with the worst input of each.

Run as a program, this file writes what it measures to ``docs/loop_holds.json``, from which
``docs/limits.md`` has its table.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
import trio
from brokers import broker_config
from loop_holds import LoopHolds
from worst_requests import FULL, Size, Worst, broker_requests, namesrv_requests, write_tables

from triomq.broker import app
from triomq.broker.services.groups import ConsumerGroup, Member
from triomq.broker.wiring import Broker
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import ConnectionLost, RemotingError
from triomq.remoting.core.garbage_pauses import GarbagePauses
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request

STEP_SECONDS_MAX = 0.020
PERIODS_SECONDS = 35
"""Longer than the period of every task."""
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "loop_holds.json"
SERVING = ("pool-", "codec", "selector", "cold-pulls")
"""How the names of tasks begin that work for requests. All others are periodic, or wait for
something.
"""


@attrs.define(eq=False)
class Stranger:
    """A connection that only looks like one."""

    peer_text: str
    told_of_members: bool = True

    def oneway(self, command: object) -> None:
        """Do nothing."""

    async def invoke(self, command: object, timeout: float) -> object:
        """Fail as a connection that is lost."""
        raise ConnectionLost(self.peer_text, "it only looks like one")


class Hold(NamedTuple):
    """The longest step of one request."""

    code: int
    what: str
    milliseconds: float


Periodic = dict[str, float]
"""Name of a task -> its longest step (ms)."""


def join_members(broker: Broker, size: Size) -> None:
    """Let many clients be members of a consumer group and of a producer group."""
    table: Any = broker.services.clients.table
    group: Any = ConsumerGroup("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
    now = trio.current_time()
    for number in range(size.members):
        connection: Any = Stranger(f"10.0.0.1:{number}")
        member: Any = Member(connection, f"member-{number}", 1, 479, now)
        group.members[connection] = member
        table.producers.setdefault("P", {})[connection] = member
    table.consumers["G"] = group


async def measured(
    address: str, requests: Iterable[Worst], holds: LoopHolds, periodic: Periodic
) -> list[Hold]:
    """Send one after the other over a socket, from a thread."""
    found = []
    connection = await trio.to_thread.run_sync(BlockingConnection, address)
    for each in requests:
        note(periodic, holds.take())
        command = request(each.code, each.header, each.body)
        ask = functools.partial(connection.invoke, command, timeout=120)
        try:
            await trio.to_thread.run_sync(ask)
        except RemotingError:  # some answers are longer than clients take
            connection = await trio.to_thread.run_sync(BlockingConnection, address)
        taken = holds.take()
        serving = {name: taken[name] for name in taken if name.startswith(SERVING)}
        note(periodic, {name: taken[name] for name in taken.keys() - serving.keys()})
        longest = max(serving.values(), default=0.0) * 1000
        found.append(Hold(int(each.code), each.what, round(longest, 1)))
    connection.close()
    return found


def note(periodic: Periodic, taken: dict[str, float]) -> None:
    for name, seconds in taken.items():
        if name.startswith(SERVING) or "." in name:  # parts of this program
            continue
        periodic[name] = max(periodic.get(name, 0.0), round(seconds * 1000, 1))


@asynccontextmanager
async def full_broker(folder: Path, size: Size, namesrv: str) -> AsyncIterator[str]:
    """A broker with the most of everything; return its address."""
    write_tables(folder, size)
    made: list[Broker] = []
    opened = app.open_broker

    def open_broker(*arguments: Any, **more: Any) -> Broker:
        made.append(opened(*arguments, **more))
        return made[-1]

    app.open_broker = open_broker  # type: ignore[attr-defined]
    try:
        config = broker_config(
            folder,
            mappedFileSizeCommitLog=1 << 28,
            namesrvAddr=namesrv,
            authenticationEnabled=True,
            authenticationWhitelist=",".join(str(int(code)) for code in RequestCode),
        )
        async with trio.open_nursery() as nursery:
            ready = await nursery.start(app.run_broker, config)
            join_members(made[0], size)
            yield f"127.0.0.1:{ready.port}"
            ready.stop()
    finally:
        app.open_broker = opened  # type: ignore[attr-defined]


async def broker_holds(folder: Path, size: Size) -> tuple[list[Hold], Periodic]:
    """Measure a broker that registers at a name server in the same loop."""
    periodic: Periodic = {}
    holds = LoopHolds()
    async with trio.open_nursery() as nursery:
        config = NamesrvConfig(
            listen_host="127.0.0.1", listen_port=0, kv_path=folder.parent / "kv.json"
        )
        namesrv: NamesrvReady = await nursery.start(run_namesrv, config)
        async with full_broker(folder, size, f"127.0.0.1:{namesrv.port}") as address:
            with holds.watching():
                found = await measured(address, broker_requests(size), holds, periodic)
                await trio.sleep(PERIODS_SECONDS)
                note(periodic, holds.take())
        namesrv.stop()
    return found, periodic


async def namesrv_holds(folder: Path) -> tuple[list[Hold], Periodic]:
    """Measure a name server."""
    periodic: Periodic = {}
    holds = LoopHolds()
    async with trio.open_nursery() as nursery:
        config = NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_path=folder / "kv.json")
        namesrv: NamesrvReady = await nursery.start(run_namesrv, config)
        with holds.watching():
            address = f"127.0.0.1:{namesrv.port}"
            found = await measured(address, namesrv_requests(), holds, periodic)
            await trio.sleep(PERIODS_SECONDS)
            note(periodic, holds.take())
        namesrv.stop()
    return found, periodic


def measure() -> dict[str, Any]:
    """Measure both servers."""
    results: dict[str, Any] = {}
    pauses = GarbagePauses()  # as the programs have it
    pauses.begin()
    with tempfile.TemporaryDirectory() as folder:
        for name, run in (
            ("Name server", functools.partial(namesrv_holds, Path(folder))),
            ("Broker", functools.partial(broker_holds, Path(folder) / "store", FULL)),
        ):
            holds, periodic = trio.run(run)
            longest: dict[int, Hold] = {}
            for hold in holds:
                if hold.milliseconds >= longest.get(hold.code, Hold(0, "", 0.0)).milliseconds:
                    longest[hold.code] = hold
            results[name] = {
                "requests": sorted(longest.values()),
                "tasks": dict(sorted(periodic.items())),
            }
    pauses.end()
    return results


@pytest.mark.hostile
@pytest.mark.timeout(900)
def test_no_step_is_long() -> None:
    found = {
        f"{server} {what}": milliseconds
        for server, holds in measure().items()
        for what, milliseconds in (
            *((f"{code}: {what}", most) for code, what, most in holds["requests"]),
            *holds["tasks"].items(),
        )
    }
    limit = STEP_SECONDS_MAX * 1000
    assert {what: most for what, most in found.items() if most > limit} == {}


def main() -> None:
    results = measure()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for server, holds in results.items():
        for code, what, most in sorted(holds["requests"], key=lambda hold: -hold[2])[:40]:
            sys.stdout.write(f"{server} {code} {most} ms: {what}\n")
        for name, most in sorted(holds["tasks"].items(), key=lambda pair: -pair[1])[:12]:
            sys.stdout.write(f"{server} {name}: {most} ms\n")


if __name__ == "__main__":
    main()
