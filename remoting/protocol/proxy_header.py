"""The PROXY protocol: a load balancer sends the client's address ahead of the client's bytes.

Version 1 is one line of text of at most 107 bytes; version 2 is a signature of twelve bytes, a head
and binary addresses. The header may arrive in any pieces. If it has no address (``UNKNOWN``,
``LOCAL``, Unix sockets), the connection keeps its own. Source:
haproxy.org/download/3.0/doc/proxy-protocol.txt, sections 2.1 and 2.2.
"""

import ipaddress
from struct import Struct

import attrs

from triomq.remoting.core.errors import FrameError

V1_PREFIX = b"PROXY "
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BYTES_MAX = 107
V2_BYTES_MAX = 16 + 4096
"""The addresses take up to 216 bytes; additional values of the load balancer follow, and are
skipped.
"""

_V2_HEAD = Struct(">BBH")
_V2_INET = Struct(">4s4sHH")
_V2_INET6 = Struct(">16s16sHH")
_FIX = (
    "let the load balancer send a PROXY header of version 1 or 2 (HAProxy: send-proxy or"
    " send-proxy-v2)"
)


@attrs.frozen
class ProxyHeader:
    """A whole header: its size in bytes, and host and port of the client if it names them."""

    size: int
    client: tuple[str, int] | None


class NoProxyHeader(Exception):  # says something about bytes, and is not a failure
    """The first bytes are not a PROXY header, and more bytes cannot make them one."""


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of ``data``; None while it is incomplete.

    Raises: NoProxyHeader if no header begins there, FrameError if a header is malformed.
    """
    if data.startswith(V1_PREFIX):
        return _version_1(data)
    if data.startswith(V2_SIGNATURE):
        return _version_2(data)
    if V1_PREFIX.startswith(data) or V2_SIGNATURE.startswith(data):
        return None
    raise NoProxyHeader


def _malformed(version: int, what: str) -> FrameError:
    return FrameError(f"malformed PROXY header of version {version}: {what}", _FIX)


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise _malformed(1, f"no end of line within {V1_BYTES_MAX} bytes")
        return None
    size = end + 2
    fields = data[len(V1_PREFIX) : end].split(b" ")
    if fields[0] == b"UNKNOWN":
        return ProxyHeader(size, None)
    versions = {b"TCP4": 4, b"TCP6": 6}
    if fields[0] not in versions or len(fields) != 5:
        raise _malformed(1, f"{data[:end]!r:.120}")
    try:
        source, target = (ipaddress.ip_address(field.decode("ascii")) for field in fields[1:3])
        ports = [_port(field) for field in fields[3:5]]
    except ValueError as error:
        raise _malformed(1, str(error)) from None
    if {source.version, target.version} != {versions[fields[0]]}:
        raise _malformed(1, f"{fields[0].decode()} with address {source}")
    return ProxyHeader(size, (_plain(source), ports[0]))


def _port(field: bytes) -> int:
    if not field.isdigit() or len(field) > 5 or int(field) > 65_535:
        raise ValueError(f"port {field!r}")
    return int(field)


def _version_2(data: bytes) -> ProxyHeader | None:
    begin = len(V2_SIGNATURE)
    if len(data) < begin + _V2_HEAD.size:
        return None
    version_command, family, length = _V2_HEAD.unpack_from(data, begin)
    if version_command >> 4 != 2 or version_command & 15 > 1:
        raise _malformed(2, f"version and command byte {version_command:#04x}")
    begin += _V2_HEAD.size
    size = begin + length
    if size > V2_BYTES_MAX:
        raise _malformed(2, f"{length} bytes of addresses and additional values")
    if len(data) < size:
        return None
    if version_command & 15 == 0:  # LOCAL: the load balancer itself, for instance its health check
        return ProxyHeader(size, None)
    layout = {1: _V2_INET, 2: _V2_INET6}.get(family >> 4)
    if layout is None:
        return ProxyHeader(size, None)
    if length < layout.size:
        raise _malformed(2, f"{length} bytes for addresses of family {family >> 4}")
    source, _target, port, _target_port = layout.unpack_from(data, begin)
    return ProxyHeader(size, (_plain(ipaddress.ip_address(source)), port))


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the text of an address: IPv4 for an IPv4 client behind an IPv6 load balancer."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
