"""Requests that destroy, or change configuration, from addresses that are no administrator's."""

from __future__ import annotations

from collections.abc import Collection
from itertools import starmap
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import trio
from access_callers import ROOT, SETTINGS, Caller
from access_requests import access_request
from brokers import peer_of, running_broker
from processes import free_port
from replicated_brokers import broker_group

from triomq.broker.options import load_broker_config
from triomq.broker.processors.handler_table import handler_table
from triomq.namesrv.command_line import namesrv_parser
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.namesrv.controller.serve_controller import ControllerParts
from triomq.namesrv.request_table import handler_table as namesrv_table
from triomq.namesrv.serve import read_options
from triomq.remoting.access.administration import CHANGES
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError, Source, load

OF_BROKERS = CHANGES & set(handler_table(MagicMock()).handlers)
OF_CONTROLLERS = CHANGES & set(
    ControllerParts.handler_table(*(MagicMock() for _ in range(3))).handlers
)
OF_NAME_SERVERS = CHANGES & set(namesrv_table(*(MagicMock() for _ in range(4))).handlers)


def let_through(address: str, codes: Collection[int], *credentials: str) -> set[int]:
    """The codes that are not refused because of the address."""
    found = set()
    with BlockingConnection(address) as connection:
        caller = Caller(connection)
        for code in sorted(codes):
            given = credentials or (None,)
            answer = caller.ask(access_request(code, ""), *given)
            if answer.code != 16 or "adminAddresses" not in (answer.remark or ""):
                found.add(int(code))
    return found


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["nobody", "super user"])
async def test_changes_come_from_administrators_only_on_each_port(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    user = ROOT if settings else ()
    given = {"grpcServerPort": 0, "fastListenPort": free_port(), **settings}
    elsewhere = {**given, "adminAddresses": "10.0.0.7, 10.1.0.0/16"}
    async with running_broker(tmp_path / "a", **elsewhere) as broker:
        for address in (broker.address, f"127.0.0.1:{given['fastListenPort']}"):
            passed = await trio.to_thread.run_sync(let_through, address, OF_BROKERS, *user)
            assert passed == set()
        if not settings:
            async with peer_of(broker) as peer:  # clients go on
                await peer.send("TA", b"x")
    here = {**given, "adminAddresses": "127.0.0.0/8"}
    async with running_broker(tmp_path / "b", **here) as broker:
        passed = await trio.to_thread.run_sync(let_through, broker.address, OF_BROKERS, *user)
        assert passed == {int(code) for code in OF_BROKERS}


async def test_a_name_server_keeps_changes_away_and_takes_brokers(tmp_path: Path) -> None:
    port = free_port()
    entries = {
        "adminAddresses": "10.0.0.7",
        "enableControllerInNamesrv": "true",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
    }
    source = Source("test", tuple(starmap(Entry, entries.items())))
    loaded = load(NamesrvConfig, [source], NAMESRV_KEYS).config
    async with broker_group(tmp_path, access=loaded.access, controller=loaded.controller) as group:
        await group.start(0)  # it registers
        passed = await trio.to_thread.run_sync(let_through, group.namesrv, OF_NAME_SERVERS)
        assert passed == set()
        controller = f"127.0.0.1:{port}"
        passed = await trio.to_thread.run_sync(let_through, controller, OF_CONTROLLERS)
        assert passed == set()


def test_an_address_that_every_client_can_claim_limits_nothing() -> None:
    entries = [Entry("adminAddresses", "10.0.0.7"), Entry("proxyProtocol", "optional")]
    with pytest.raises(ConfigError, match="every client can claim any address"):
        load_broker_config(None, environment={}, definitions=entries)
    words = [f"-D{entry.key}={entry.value}" for entry in entries]
    with pytest.raises(ConfigError, match="every client can claim any address"):
        read_options(namesrv_parser().parse_args(words))
