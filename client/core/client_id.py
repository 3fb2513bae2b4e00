"""The client id: the name of a producer or a consumer on the brokers; its message ids."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import time

import trio

from triomq.client.core.config import ClientSettings
from triomq.remoting.core.address import parse_address
from triomq.remoting.protocol.ids import UniqueIds

_object_numbers = itertools.count(1)


async def make_client_id(settings: ClientSettings, address: str) -> str:
    """Return ``ip@pid#nanoseconds-number[@unit]``, unique for each process and object.

    With ``instance_name`` it is ``ip@name[@unit]``. After a fork a new id is made.

    Checkpoint: maybe, only to resolve a host name.
    """
    ip = settings.client_ip or await own_address(address)
    host = f"[{ip}]" if ":" in ip else ip
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    instance = settings.instance_name or f"{os.getpid()}#{time.time_ns()}-{next(_object_numbers)}"
    return f"{host}@{instance}{unit}"


async def own_address(towards: str) -> str:
    """Return this machine's address on the way to a server, or 127.0.0.1; send nothing."""
    try:
        host, port = parse_address(towards)
        family, *_, target = (
            await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
        )[0]
        with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as probe:
            await probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


def make_unique_ids(client_id: str) -> UniqueIds:
    """Return a maker of message ids that contain the address of a client id, and this process."""
    address = ipaddress.ip_address(client_id.partition("@")[0].strip("[]"))
    utc_offset = time.localtime().tm_gmtoff
    return UniqueIds(
        address.packed, os.getpid(), random.getrandbits(32), utc_offset_seconds=utc_offset
    )
