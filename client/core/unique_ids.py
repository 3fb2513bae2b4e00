"""The maker of message ids of one producer or consumer."""

from __future__ import annotations

import ipaddress
import os
import random
import time

from triomq.remoting.protocol.ids import UniqueIds


def make_unique_ids(client_id: str) -> UniqueIds:
    """Return a maker of ids that contain the address of a client id, and this process."""
    address = ipaddress.ip_address(client_id.partition("@")[0].strip("[]"))
    utc_offset = time.localtime().tm_gmtoff
    return UniqueIds(
        address.packed, os.getpid(), random.getrandbits(32), utc_offset_seconds=utc_offset
    )
