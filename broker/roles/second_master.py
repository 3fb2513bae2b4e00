"""Whether another master of this broker's name is alive: then this one must not start.

After a promotion by hand, an old master that starts again would take the route back. Clients would
go to it, and would not find what the promoted master has stored since. Name servers know which
master registered last, and forget a dead one only after two minutes, so the broker asks that master
itself.
"""

from __future__ import annotations

import trio

from triomq.broker.config import BrokerConfig
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError, RequestTimeout
from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request

ASK_SECONDS = 2.0
MASTER_ID = 0


class SecondMaster(Exception):
    """Another master of this name is alive. The message says where, and both ways out."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(
            f"another master of broker {name} is alive at {address}; start this one as its slave"
            " (brokerRole=SLAVE, brokerId=1), or with another brokerName; --force starts it all the"
            " same, and then clients reach one of the two only, and not the messages of the other"
        )
        self.address = address


async def require_only_master(config: BrokerConfig, connecting: ConnectorConfig) -> None:
    """Ask the name servers, and the master that they name, if it is not this broker itself.

    A name server that does not answer in time is passed. Raises: SecondMaster.
    """
    found: set[str] = set()
    async with Connector(connecting) as connector:

        async def ask(name_server: str) -> None:
            address = await _registered(connector, name_server, config.broker_name)
            own = format_address(config.broker_ip, config.listen_port)
            if address not in (None, own) and await _is_alive(connector, str(address), config):
                found.add(str(address))

        async with trio.open_nursery() as nursery:
            for name_server in config.namesrv_addresses:
                nursery.start_soon(ask, name_server)
    if found:
        raise SecondMaster(config.broker_name, min(found))


async def _registered(connector: Connector, name_server: str, broker_name: str) -> str | None:
    """Return the address of the master that a name server knows."""
    try:
        answer = await connector.invoke(
            name_server, request(RequestCode.GET_BROKER_CLUSTER_INFO), timeout=ASK_SECONDS
        )
        brokers = ClusterTable.decode(bytes(answer.body)).broker_addr_table
    except (RemotingError, ValueError):
        return None
    known = brokers.get(broker_name)
    return None if known is None else known.broker_addrs.get(MASTER_ID)


async def _is_alive(connector: Connector, address: str, config: BrokerConfig) -> bool:
    """Return whether a master of this broker's name is at an address.

    One that takes the connection and does not answer hangs, and may go on at any moment. One that
    refuses to show its settings answers, too.
    """
    try:
        answer = await connector.invoke(
            address, request(RequestCode.GET_BROKER_CONFIG), timeout=ASK_SECONDS
        )
    except RequestTimeout:
        return True
    except RemotingError:  # no server, or a server that is no broker
        return False
    if answer.code != ResponseCode.SUCCESS:
        return True
    settings = dict(parse_properties(bytes(answer.body).decode(errors="replace")))
    return (settings.get("brokerName"), settings.get("brokerId")) == (config.broker_name, "0")
