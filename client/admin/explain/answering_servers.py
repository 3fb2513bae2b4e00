"""Which server of each broker name answers: its master, or a slave while the master hangs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader
from triomq.remoting.protocol.names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


@attrs.frozen
class AnsweringServers:
    """The servers to ask."""

    addresses: dict[str, str]
    """broker name → address of its first server that answers, of the first one if none does"""
    silent: dict[str, str]
    """broker name → why its first server was not asked, and which one is in its place"""


async def answering_servers(admin: Admin, brokers: Iterable[BrokerAddress]) -> AnsweringServers:
    """Find them. A name with one server is not asked: its first real request will tell."""
    servers: dict[str, list[str]] = {}
    for broker in brokers:  # sorted by id within a name
        servers.setdefault(broker.name, []).append(broker.address)
    silent: dict[str, str] = {}

    async def first_answering(name: str) -> str:
        first, *others = servers[name]
        reason = ""
        for address in [first, *others] if others else []:
            try:
                await admin.ask(
                    address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(DEFAULT_TOPIC, 0)
                )
            except BrokerError:
                pass  # a refusal is an answer
            except TrioMQError as error:
                reason = reason or str(error)
                continue
            if reason:
                silent[name] = f"{reason}; its slave {address} was asked instead"
            return address
        return first

    answers = await admin.for_each(servers, first_answering)
    return AnsweringServers(dict(answers.values), silent)
