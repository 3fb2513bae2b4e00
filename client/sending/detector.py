"""The broker detector asks unreachable brokers whether they are back.

It runs with ``latency_faults`` and ``detect_brokers``.

Source: client/…/latency/LatencyFaultToleranceImpl.java#detectByOneRound.
"""

from __future__ import annotations

import trio

from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.client.core.session import Session
from triomq.client.sending.faults import BrokerFault, LatencyFaults
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader


async def detect_brokers(
    faults: LatencyFaults, session: Session, settings: ProducerSettings
) -> None:
    """Ask every broker that has a record and was not asked for ``detect_interval``."""
    async with trio.open_nursery() as nursery:
        for known in faults.to_check(trio.current_time(), settings.detect_interval):
            nursery.start_soon(_ask, faults, session, known, settings.detect_timeout)


async def _ask(faults: LatencyFaults, session: Session, known: BrokerFault, timeout: float) -> None:
    queue = known.queue
    address = session.routes.master(queue.broker_name)
    if address is None:
        faults.forget(queue.broker_name)
        return
    header = GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
    try:
        await session.call(address, request(RequestCode.GET_MAX_OFFSET, header), timeout)
    except TrioMQError:
        return  # still not reachable
    faults.answered(queue.broker_name)
