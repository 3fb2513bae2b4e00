"""Ids of messages as operators type them. Pure."""

from __future__ import annotations

import ipaddress

from triomq.remoting.core.address import format_address
from triomq.remoting.protocol.ids import decode_offset_message_id

UNIQUE_COUNT_MAX = 32
"""messages that one unique id is searched for: a send that is repeated has the same id"""


def parse_offset_id(text: str) -> tuple[str, int] | None:
    """Return broker address and commit-log offset of an offset message id, None for other ids."""
    try:
        host, port, log_offset = decode_offset_message_id(text)
    except ValueError:
        return None
    if not 0 < port < 65536:
        return None
    return format_address(str(ipaddress.ip_address(host)), port), log_offset
