"""The addresses of a broker before it starts: its ports, those in records, its name servers."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.processors.handler_table import NOT_ON_THE_FAST_PORT
from triomq.remoting.client.discovery import address_server_url, all_addresses, fetch_addresses
from triomq.remoting.core.address import bare_host
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.server.config import SidePort


@contextlib.contextmanager
def reserved_ports(config: BrokerConfig) -> Iterator[BrokerConfig]:
    """Give the configuration with free ports in place of 0, reserved inside the block.

    Records and registrations name the ports, so they must be known before the store opens.
    """
    ha_port = config.ha_port
    if not config.listen_port and ha_port == 1:
        ha_port = 0  # the default, listenPort + 1, was computed with listenPort=0
    if config.listen_port and ha_port:
        yield config
        return
    # The sockets stay open until all ports are found, so that none is found twice.
    with contextlib.ExitStack() as sockets:

        def reserve(port: int, listen_host: str = config.listen_host) -> int:
            host = bare_host(listen_host)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            reserved = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((host, port))
            return int(reserved.getsockname()[1])

        if config.listen_port:  # otherwise the system may choose it for the replication
            with contextlib.suppress(OSError):  # it is taken: opening the listener reports that
                reserve(config.listen_port)
        while True:
            found = attrs.evolve(
                config,
                listen_port=config.listen_port or reserve(0),
                ha_port=ha_port or reserve(0, config.ha_listen_host),
            )
            if config.listen_port or config.fast_port >= 0:
                break
            # If another process has the fast port: try another pair.
            with contextlib.suppress(OSError):
                reserve(found.fast_listen_port())
                break
        # On Linux a listener may share the port of a socket that does not listen, and the system
        # gives that port to nothing else meanwhile. Elsewhere the listener would be refused.
        if sys.platform != "linux":
            sockets.close()
        yield found


async def encoded_host(config: BrokerConfig) -> bytes:
    """Return the advertised address as records carry it: 4 or 16 bytes, then the port.

    A name is looked up. Raises: ConfigError.
    """
    host = bare_host(config.broker_ip)
    try:
        found = await trio.socket.getaddrinfo(host, config.listen_port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            "",
            f"brokerIP1={config.broker_ip}: {error}",
            "name an address of this machine, or a name that it can look up",
        ) from None
    family, _, _, _, where = found[0]
    return socket.inet_pton(family, str(where[0]).partition("%")[0]) + struct.pack(
        ">i", config.listen_port
    )


def side_ports(config: BrokerConfig) -> list[SidePort]:
    """Return the fast port, if there is one.

    Source: broker/BrokerController.java#registerProcessor (fastRemotingServer).
    """
    port = config.fast_listen_port()
    if not port:
        return []
    return [
        SidePort(
            name="fast", port=port, exclude_codes=NOT_ON_THE_FAST_PORT, setting="fastListenPort"
        )
    ]


def discovery_of(
    config: BrokerConfig,
) -> tuple[Callable[[], Awaitable[Sequence[str]]] | None, float]:
    """Return a function that looks up the name servers, and the interval of its calls (seconds).

    The function is None if the configuration lists their addresses.
    """
    if config.namesrv_addresses and config.namesrv_dns:
        return partial(all_addresses, config.namesrv_addresses), config.namesrv_follow_ms / 1000
    if not config.namesrv_addresses and config.namesrv_address_server:
        url = address_server_url(config.namesrv_domain, config.namesrv_subgroup)
        return partial(fetch_addresses, url), config.namesrv_fetch_ms / 1000
    return None, config.namesrv_follow_ms / 1000
