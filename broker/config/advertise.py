"""The address that a broker advertises (``brokerIP1``): found by Java's rule, then connected to.

Java considers the interfaces that are up, not a bridge and not point to point. It takes the first
public IPv4 address, otherwise the last private one, otherwise an IPv6 address, otherwise the
loopback; it lists interfaces and addresses in the reverse of the system's order. Source:
common/…/utils/NetworkUtil.java; order compared with Java 17 on Linux.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from triomq.remoting.core.address import bare_host, format_address

logger = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
_LOOPBACK = "127.0.0.1"
# struct ifreq on 64-bit Linux: char name[16], then an address (family u16, port u16, ip) or flags
# (i16)
_IFREQ_BYTES = 40
_NAME_BYTES = 16
_ADDRESS_AT = 20
_INTERFACES_MAX = 256
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_UP, _LOOPBACK_FLAG, _POINT_TO_POINT = 0x1, 0x8, 0x10
_INTERNAL = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)


def local_address() -> str:
    """Return the address that Java would advertise: IPv6 in brackets, ``127.0.0.1`` if none."""
    try:
        usable = [(name, text) for name, text in _ipv4_addresses() if _usable(name)]
    except OSError:
        return outgoing_address()
    chosen = choose_ipv4([text for _, text in usable])
    if chosen is not None:
        return chosen
    chosen = choose_ipv6([text for name, text in _ipv6_addresses() if _usable(name)])
    return f"[{chosen}]" if chosen is not None else _LOOPBACK


def choose_ipv4(in_system_order: Sequence[str]) -> str | None:
    """Return Java's choice: the last public IPv4 address, otherwise the first private one."""
    addresses = [text for text in in_system_order if not ipaddress.ip_address(text).is_loopback]
    public = [text for text in addresses if not _internal(text)]
    if public:
        return public[-1]
    return addresses[0] if addresses else None


def choose_ipv6(in_system_order: Iterable[str]) -> str | None:
    """Return Java's choice: the last address not link-local or site-local, otherwise the last."""
    parsed = [ipaddress.IPv6Address(text) for text in in_system_order]
    candidates = [address for address in parsed if not address.is_loopback]
    wide = [
        address for address in candidates if not (address.is_link_local or address.is_site_local)
    ]
    return str((wide or candidates)[-1]) if candidates else None


def outgoing_address() -> str:
    """Return the address that packets to the outside would carry. Sends nothing.

    For systems whose interfaces cannot be listed.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # TEST-NET-1: connecting a datagram socket only chooses a route.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK


async def check_advertised(host: str, port: int) -> str | None:
    """Connect to the advertised address; return a warning with the likely fixes if that fails.

    ``host``: a name or an address, IPv6 with or without brackets.
    """
    bare = bare_host(host)
    reason = f"no answer within {CHECK_SECONDS:g} s"
    with trio.move_on_after(CHECK_SECONDS):
        try:
            stream = await trio.open_tcp_stream(bare, port)
        except OSError as error:
            reason = _root_reason(error)
        else:
            await stream.aclose()
            return None
    return (
        f"clients are told to connect to {format_address(bare, port)} (brokerIP1), but this machine"
        f" itself cannot: {reason}; set brokerIP1 to an address or host name that the clients"
        " reach: the address of the host for a container whose port is published under the same"
        " number, 127.0.0.1 when all clients run on this machine"
    )


async def warn_if_unreachable(host: str, port: int) -> None:
    """Log the warning of ``check_advertised``, if there is one."""
    warning = await check_advertised(host, port)
    if warning is not None:
        logger.warning("%s", warning)


def _root_reason(error: BaseException) -> str:
    """Return the system's reason, without the errors that Trio puts around it."""
    cause: BaseException = error
    while True:
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
        if inner is None:
            break
        cause = inner
    if isinstance(cause, OSError) and cause.errno is not None:
        # Trio puts the address into its texts; the warning has it already.
        text = cause.strerror if isinstance(cause, socket.gaierror) else os.strerror(cause.errno)
        return (text or str(cause)).lower()
    return str(cause) or type(cause).__name__


def _internal(text: str) -> bool:
    return any(ipaddress.ip_address(text) in network for network in _INTERNAL)


def _ipv4_addresses() -> list[tuple[str, str]]:
    """Return (interface, address) in the system's order. Raises: OSError."""
    buffer = array.array("B", bytes(_IFREQ_BYTES * _INTERFACES_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(
            probe, _SIOCGIFCONF, struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        )
    size = struct.unpack("iP", answer)[0]
    found = []
    for start in range(0, size - size % _IFREQ_BYTES, _IFREQ_BYTES):
        entry = buffer[start : start + _IFREQ_BYTES].tobytes()
        label = entry[:_NAME_BYTES].split(b"\0")[0].decode()
        found.append(
            (label.partition(":")[0], socket.inet_ntoa(entry[_ADDRESS_AT : _ADDRESS_AT + 4]))
        )
    return found


def _ipv6_addresses() -> list[tuple[str, str]]:
    """Return (interface, address) as Linux lists them; an empty list without IPv6."""
    table = Path("/proc/net/if_inet6")
    if not table.exists():
        return []
    rows = [line.split() for line in table.read_text().splitlines()]
    return [(row[5], str(ipaddress.IPv6Address(int(row[0], 16)))) for row in rows]


def _usable(interface: str) -> bool:
    if os.path.exists(f"/sys/class/net/{interface}/bridge"):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sh22x", interface.encode(), 0))
    flags: int = struct.unpack_from("H", answer, _NAME_BYTES)[0]
    return bool(flags & _UP) and not flags & (_LOOPBACK_FLAG | _POINT_TO_POINT)
