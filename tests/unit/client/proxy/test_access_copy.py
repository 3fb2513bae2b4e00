"""A proxy takes users, rules and quotas from a master again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from triomq.client.proxy.access_copy import AccessCopy
from triomq.remoting.access.quotas import Use
from triomq.remoting.core.errors import ConnectFailed, Rejected
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to


class Open:
    """A connection."""

    close_reason = ""


async def test_the_newest_quotas_count_and_those_of_before_while_no_master_answers() -> None:
    settings: list[bytes | None] = [b"quotas=User:u connections=1\n"]

    async def invoke(address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        if settings[0] is None:
            raise ConnectFailed(address, "Connection refused")
        body = settings[0] if command.code == RequestCode.GET_BROKER_CONFIG else b"[]"
        return response_to(command, body=body)

    connector: Any = SimpleNamespace(invoke=invoke)
    copy = AccessCopy(connector, lambda: ["master:1"])
    connections = [Open() for _ in range(3)]

    def taken() -> int:
        """How many connections of the user are served."""
        served = 0
        for connection in connections:
            use = Use("u", None, None, requests=0, connection=connection)
            try:
                copy.quotas.require(use, 0.0)
            except Rejected:
                continue
            served += 1
        return served

    assert await copy.copy()
    assert taken() == 1
    settings[0] = b"quotas=User:u connections=2\n"
    assert await copy.copy()
    assert taken() == 2
    settings[0] = None
    assert not await copy.copy()
    assert taken() == 2
    settings[0] = b"quotas=nonsense\n"
    assert await copy.copy()
    assert taken() == 2
    settings[0] = b""
    assert await copy.copy()
    assert taken() == 3
