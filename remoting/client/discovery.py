"""Find name servers: from a web address that lists them, or from the addresses of a host name.

RocketMQ's address server answers a GET of ``http://DOMAIN:8080/rocketmq/nsaddr`` with
``host:9876;host2:9876``. A host name is looked up whenever a connection is made; ``all_addresses``
is for brokers, which must reach every machine behind a name.

Source: common/namesrv/DefaultTopAddressing.java, common/MixAll.java#getWSAddr,
broker/out/BrokerOuterAPI.java#dnsLookupAddressByDomain.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

import trio

from triomq.remoting.core.address import (
    bare_host,
    format_address,
    parse_address,
    parse_address_list,
)
from triomq.remoting.core.errors import ConnectFailed

DEFAULT_SUBGROUP = "nsaddr"
DOMAIN_PORT = 8080
FETCH_SECONDS = 3.0
ANSWER_BYTES_MAX = 64 * 1024


def is_address_server(text: str) -> bool:
    """Return whether this is the web address of a list of name servers, not the list itself."""
    return text.strip().lower().startswith(("http://", "https://"))


def address_server_url(domain: str, subgroup: str = DEFAULT_SUBGROUP) -> str:
    """Return the web address for ``rocketmq.namesrv.domain`` and its ``.subgroup``.

    A *domain* that is a web address is returned unchanged.
    """
    if is_address_server(domain):
        return domain.strip()
    host = domain.strip()
    return f"http://{host}{'' if ':' in host else f':{DOMAIN_PORT}'}/rocketmq/{subgroup}"


async def fetch_addresses(url: str, timeout: float = FETCH_SECONDS) -> tuple[str, ...]:
    """Return the addresses that an address server lists.

    Raises: ConnectFailed if it does not answer, or not with addresses.
    Checkpoint: always.
    """
    try:
        # For the whole answer: urllib's timeout is for each piece of it.
        with trio.fail_after(timeout):
            text = await trio.to_thread.run_sync(
                partial(_get, url, timeout), abandon_on_cancel=True
            )
        addresses = parse_address_list(text)
    except trio.TooSlowError:
        raise ConnectFailed(url, f"no whole answer within {timeout:g} s") from None
    except (OSError, ValueError) as error:  # urllib's errors are OSErrors
        raise ConnectFailed(url, str(getattr(error, "reason", None) or error)) from None
    if not addresses:
        raise ConnectFailed(url, "its list of name servers is empty")
    return tuple(addresses)


def _get(url: str, timeout: float) -> str:
    from http.client import HTTPException  # start-up time: few programs need an HTTP client
    from urllib.error import HTTPError  # start-up time
    from urllib.request import urlopen  # start-up time

    try:
        with urlopen(url, timeout=timeout) as answer:
            return str(answer.read(ANSWER_BYTES_MAX).decode().strip())
    except HTTPError as error:
        error.close()
        raise OSError(f"it answered {error.code} {error.reason}") from None
    except HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from None


async def all_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return ``ip:port`` of every machine behind these addresses.

    Raises: ConnectFailed for an unknown host name.
    Checkpoint: always.
    """
    found: set[str] = set()
    for address in addresses:
        host, port = parse_address(address)
        try:
            entries = await trio.socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(address, error.strerror or str(error)) from None
        found.update(format_address(str(where[0]), port) for _, _, _, _, where in entries)
    return tuple(sorted(found))
