"""Ask controllers for their leader, and for the master and the set of each group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from triomq.client.admin.answers import read_body, read_header
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.bodies.controller import GroupReplicas, SyncStateData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress
    from triomq.client.admin.cluster_view import BrokerRow

PARTS = re.compile(r"[;,\s]+")


def named_controllers(
    brokers: Iterable[BrokerAddress | BrokerRow], settings: Mapping[str, Mapping[str, str]]
) -> tuple[list[str], list[str]]:
    """Return the names of groups in controller mode, and the controllers that they name.

    ``settings``: of brokers, by address.
    """
    names, addresses = set(), set()
    for broker in brokers:
        values = settings.get(broker.address, {})
        if values.get("enableControllerMode") == "true":
            names.add(broker.name)
            addresses |= {part for part in PARTS.split(values.get("controllerAddr", "")) if part}
    return sorted(names), sorted(addresses)


async def metadata_at(admin: Admin, address: str) -> ControllerMetadataHeader:
    """Return what one controller says of itself. Raises: TrioMQError."""
    answer = await admin.ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return read_header(ControllerMetadataHeader, answer)


async def leader_of(admin: Admin, controllers: Sequence[str]) -> str:
    """Return the address of the controller that leads, as the first that knows it says.

    Raises: TrioMQError if no controller answers, or none knows a leader.
    """
    answers = await admin.for_each(controllers, lambda address: metadata_at(admin, address))
    for found in answers.some().values():
        if found.controller_leader_address:
            return found.controller_leader_address
    raise TrioMQError(
        "no controller leads: a majority of them must run and reach each other; see"
        " `mqadmin controller status`"
    )


async def groups_at(admin: Admin, leader: str, names: Sequence[str]) -> dict[str, GroupReplicas]:
    """Return what the controllers know of groups. Raises: TrioMQError."""
    code, body = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, msgspec.json.encode(names)
    return read_body(SyncStateData, await admin.ask(leader, code, None, body)).replicas_info_table
