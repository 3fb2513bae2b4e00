"""Checks of the gRPC endpoints of a cluster's brokers: do they answer where clients look for them?

A broker's settings say which port it has. A Java broker has no such setting, and is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import trio

from triomq.client.admin.broker_address import BrokerAddress
from triomq.remoting.client.dial import dial
from triomq.remoting.core.address import format_address, parse_address
from triomq.remoting.core.findings import Finding, advice, ok, problem
from triomq.remoting.protocol.bodies.route import MASTER_ID

PORT = "grpcServerPort"
DEFAULT_PORT = 8081
ANSWER_SECONDS = 3.0
# What an HTTP/2 client says first: the preface, and a SETTINGS frame without settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
FRAME_HEAD = struct.Struct(">HBBBI")
SETTINGS = 4


async def endpoints(
    brokers: Sequence[BrokerAddress], settings: Mapping[str, Mapping[str, str]]
) -> list[Finding]:
    """Try the endpoint of each master; ``settings``: of brokers, by address."""
    masters = {broker.address: broker for broker in brokers if broker.id == MASTER_ID}
    found: dict[str, Finding] = {}

    async def check(address: str, values: Mapping[str, str]) -> None:
        finding = await _endpoint(masters[address], values.get(PORT, "0"))
        if finding is not None:
            found[address] = finding

    async with trio.open_nursery() as nursery:
        for address in masters.keys() & settings.keys():
            nursery.start_soon(check, address, settings[address])
    return [found[address] for address in masters if address in found]


async def _endpoint(broker: BrokerAddress, text: str) -> Finding | None:
    """Return what a client would find; None for a broker without an endpoint."""
    port = int(text) if text.lstrip("-").isdecimal() else 0
    if port == 0:
        return None
    check = f"{broker.name}:{broker.id} gRPC"
    host = parse_address(broker.address)[0]
    address = format_address(host, port if port > 0 else DEFAULT_PORT)
    failure = await speaks_http2(host, port if port > 0 else DEFAULT_PORT)
    if failure is None:
        return ok("broker", check, f"{address} answers")
    why = "RocketMQ 5 clients, which speak gRPC, cannot use this broker"
    if port < 0:
        fix = "read the broker's log; set grpcServerPort to a free port, or to 0 for none"
        return advice("broker", check, f"{address}: {failure}", fix, why)
    fix = f"publish {PORT} under the same number, and open it in firewalls"
    return problem("broker", check, f"{address}: {failure}", fix, why)


async def speaks_http2(host: str, port: int) -> str | None:
    """Return None if a server answers as HTTP/2 does, otherwise what is wrong. Checkpoint: always.

    A server that wants TLS answers otherwise, and counts as one.
    """
    try:
        with trio.fail_after(ANSWER_SECONDS):
            sock = trio.socket.from_stdlib_socket(await dial(host, port))
            with sock:
                await sock.send(HELLO)
                head = await sock.recv(FRAME_HEAD.size)
    except trio.TooSlowError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if not head:
        return None  # it closes plain connections: tls.server.mode=enforcing
    if len(head) == FRAME_HEAD.size and FRAME_HEAD.unpack(head)[2] == SETTINGS:
        return None
    return "what answers there does not speak HTTP/2"
