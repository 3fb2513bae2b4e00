"""PROXY headers: complete and in pieces, and invalid headers."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.core.errors import FrameError
from triomq.remoting.protocol.proxy_header import V2_SIGNATURE, NoProxyHeader, read_proxy_header

PORTS = st.integers(0, 65_535)


def version_2(family: int, payload: bytes, command: int = 1) -> bytes:
    return V2_SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(payload)) + payload


def plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, tuple[str, int] | None]:
    """Yield (bytes, client) of a well-formed header of either version."""
    addresses = draw(st.sampled_from([st.ip_addresses(v=4), st.ip_addresses(v=6)]))
    source, target = draw(addresses), draw(addresses)
    port, target_port = draw(PORTS), draw(PORTS)
    kind = draw(st.sampled_from(["v1", "v1 unknown", "v2", "v2 local", "v2 unix"]))
    notes = draw(st.binary(max_size=60))
    if kind == "v1":
        return f"PROXY TCP{source.version} {source} {target} {port} {target_port}\r\n".encode(), (
            plain(source),
            port,
        )
    if kind == "v1 unknown":
        return b"PROXY UNKNOWN whatever follows\r\n", None
    if kind == "v2 local":
        return version_2(0x00, notes, command=0), None
    if kind == "v2 unix":
        return version_2(0x31, bytes(216) + notes), None
    payload = source.packed + target.packed + struct.pack(">HH", port, target_port) + notes
    return version_2(0x11 if source.version == 4 else 0x21, payload), (plain(source), port)


@given(header=headers(), rest=st.binary(max_size=200))
def test_every_prefix_waits_and_the_rest_is_not_read(
    header: tuple[bytes, tuple[str, int] | None], rest: bytes
) -> None:
    data, client = header
    for size in range(len(data)):
        assert read_proxy_header(data[:size]) is None, data[:size]
    found = read_proxy_header(data + rest)
    assert found is not None
    assert (found.size, found.client) == (len(data), client)


@given(data=st.binary(max_size=300))
def test_other_bytes_are_not_a_header_or_are_refused(data: bytes) -> None:
    for begin in (b"", b"PROXY ", b"PROXY TCP4 ", V2_SIGNATURE):
        try:
            found = read_proxy_header(begin + data)
        except (NoProxyHeader, FrameError):
            continue
        assert found is None or found.size <= len(begin + data)


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x01\x00", b"\x16\x03\x01", b"PROXX", b"\r\n\r\n\x00\r\nQUIX", b"Q"]
)
def test_other_protocols_are_recognised_at_the_first_differing_byte(data: bytes) -> None:
    with pytest.raises(NoProxyHeader):
        read_proxy_header(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n", "version 1"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n", "port b'65536'"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 1\r\n", "port b'-1'"),
        (b"PROXY TCP4 ::1 ::1 1 1\r\n", "TCP4 with address ::1"),
        (b"PROXY TCP6 1.2.3.4 ::1 1 1\r\n", "TCP6 with address 1.2.3.4"),
        (b"PROXY TCP4 localhost 5.6.7.8 1 1\r\n", "'localhost'"),
        (b"PROXY UDP4 1.2.3.4 5.6.7.8 1 1\r\n", "version 1"),
        (b"PROXY " + b"x" * 200, "no end of line within 107 bytes"),
        (V2_SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12), "version and command byte 0x31"),
        (V2_SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12), "version and command byte 0x22"),
        (V2_SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11), "11 bytes for addresses of family 1"),
        (V2_SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12), "12 bytes for addresses of family 2"),
        (V2_SIGNATURE + b"\x21\x11\xff\xff", "65535 bytes of addresses and additional values"),
    ],
)
def test_malformed_headers_are_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match="malformed PROXY header") as caught:
        read_proxy_header(data)
    assert words in str(caught.value)
    assert "send-proxy" in str(caught.value)
