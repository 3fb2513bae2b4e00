"""Who counts as a living master at the address that a name server knows."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from brokers import broker_config

from triomq.broker.roles.second_master import SecondMaster, require_only_master
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import BrokerData
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ("brokerName=broker-a\nbrokerId=0\n", True),
        ("brokerName=broker-a\nbrokerId=1\n", False),
        ("brokerName=broker-b\nbrokerId=0\n", False),
        ("", False),
        (ResponseCode.NO_PERMISSION, True),
        (None, False),
    ],
    ids=["the master", "a slave now", "another broker now", "no broker", "it refuses", "nobody"],
)
async def test_who_is_a_second_master(
    settings: str | int | None, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invoke(address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            known = BrokerData("c", "broker-a", {0: "10.0.0.1:10911"})
            return response_to(command, body=ClusterTable({"broker-a": known}).encode())
        if settings is None:
            raise ConnectFailed(address, "Connection refused")
        if isinstance(settings, int):
            return response_to(command, settings)
        return response_to(command, body=settings.encode())

    monkeypatch.setattr(
        "triomq.broker.roles.second_master.Connector",
        lambda connecting: nullcontext(SimpleNamespace(invoke=invoke)),
    )
    connecting: Any = None
    config = broker_config(tmp_path, namesrvAddr="127.0.0.1:1", brokerName="broker-a")
    if counts:
        with pytest.raises(SecondMaster, match=r"10\.0\.0\.1:10911"):
            await require_only_master(config, connecting)
    else:
        await require_only_master(config, connecting)
