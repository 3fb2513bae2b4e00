"""A broker in controller mode whose disk has no room for the files of its next role.

It stays up: its port answers every request with the reason, as a slave's does, so that senders look
for another master; heartbeats go on; and the start of the role is tried again.
"""

from __future__ import annotations

import logging

import attrs
import trio

from triomq.broker.addresses import side_ports
from triomq.broker.config import BrokerConfig
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.core.errors import DiskFull, FullAtStart
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.refused_sends import REJECTED
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.server import Server

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


async def refuse_without_room(
    config: BrokerConfig, tenure: Tenure, error: BaseExceptionGroup[FullAtStart]
) -> None:
    """Answer requests until it is time to try again. Raises: AddressInUse, ListenFailed."""
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    assert isinstance(cause, FullAtStart)
    reason = str(DiskFull(cause.path))  # no other start is needed
    logger.error("no role until there is room, tried again every %g s: %s", AGAIN_SECONDS, reason)

    def refuse(_request: Request) -> Response:
        raise Rejected(ResponseCode.SYSTEM_BUSY, f"{REJECTED}{reason}")

    server = Server(
        attrs.evolve(
            config.network.server_config(
                config.listen_host,
                config.listen_port,
                {"default": PoolConfig()},
                side_ports(config),
            ),
            checks_callers=True,
        ),
        HandlerTable(Handler(code, refuse) for code in RequestCode),
    )
    tenure.next_cut = tenure.cut_at
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, name="server")
        with trio.move_on_after(AGAIN_SECONDS):
            await tenure.over.wait()
        nursery.cancel_scope.cancel()
