"""Open a listening socket, with errors that name cause and fix."""

import errno
import ipaddress
import logging
import os
import socket

from triomq.remoting.core.address import bare_host, format_address
from triomq.remoting.core.errors import RemotingError

_log = logging.getLogger(__name__)

OPEN_FIX = (
    "keep it behind a firewall, set bindAddress to an address that only clients reach, or let"
    " `mqadmin security init` make users, certificates and the settings for them"
)


class ListenFailed(RemotingError, OSError):
    """The server cannot listen on *address*; *fix*: what to do. ``errno`` is the system's."""

    def __init__(self, address: str, number: int, reason: str, fix: str) -> None:
        super().__init__(number, f"cannot listen on {address}: {reason}; {fix}")
        self.errno = number
        self.address = address
        self.reason = reason
        self.fix = fix

    def __str__(self) -> str:
        return f"cannot listen on {self.address}: {self.reason}; {self.fix}"


class AddressInUse(ListenFailed):
    """Another socket already listens there (EADDRINUSE)."""

    def __init__(self, address: str, setting: str = "") -> None:
        fix = f"set {setting} to another port" if setting else "configure another port"
        super().__init__(
            address,
            errno.EADDRINUSE,
            "the port is in use",
            f"stop the process that holds it or {fix}",
        )


_FIXES = {
    errno.EACCES: "ports below 1024 need privileges: configure a higher port",
    errno.EADDRNOTAVAIL: (
        "the address does not belong to this machine: configure one that does, or 0.0.0.0"
    ),
}


def open_listener(host: str, port: int, backlog: int, setting: str = "") -> socket.socket:
    """Bind and listen, non-blocking. Looking a host name up may block: call this at start-up.

    An empty host means every IPv4 address; ``::`` takes IPv4 peers too. ``setting``: the setting of
    the port, which an error names.

    Raises: AddressInUse, ListenFailed.
    """
    address = format_address(host, port)
    host = bare_host(host)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenFailed(
            address,
            errno.EADDRNOTAVAIL,
            f"unknown host ({error.strerror})",
            "configure an address of this machine",
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.setblocking(False)
        listener.bind(where)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        number = error.errno or errno.EINVAL
        if number == errno.EADDRINUSE:
            raise AddressInUse(address, setting) from None
        raise ListenFailed(
            address,
            number,
            os.strerror(number),
            _FIXES.get(number, "check host and port in the configuration"),
        ) from None
    return listener


def warn_if_open(listener: socket.socket, may: str, fix: str) -> None:
    """Say once at start that a port without login can be reached from other machines.

    ``may``: what everybody may do who reaches it; ``fix``: the setting that closes it. Checkpoint:
    never.
    """
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        _log.warning(
            "everybody who reaches %s may %s: the port has no login; %s",
            format_address(host, port),
            may,
            fix,
        )
