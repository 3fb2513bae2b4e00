"""The client's side of a SOCKS5 dialogue, as bytes.

The client sends a greeting, user and password if the proxy requests them, and CONNECT.

Source: RFC 1928 (SOCKS5), RFC 1929 (user and password).
"""

import ipaddress
from collections.abc import Callable

from triomq.remoting.core.errors import RemoteProtocolError

_VERSION, _PASSWORD_VERSION = 5, 1
_NO_AUTHENTICATION, _USER_AND_PASSWORD = 0, 2
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_REFUSALS = {
    1: "it failed there",
    2: "its rules do not allow that",
    3: "the network cannot be reached from there",
    4: "the host cannot be reached from there",
    5: "the target refused the connection",
    6: "the time to live expired",
    7: "it does not know CONNECT",
    8: "it does not know this kind of address",
}
_FIX = "check socksProxyConfig and the proxy"


class SocksDialogue:
    """Asks a proxy to connect to a host and port.

    ``done`` is True once the proxy has; all bytes after that belong to the target.
    """

    def __init__(self, host: str, port: int, username: str = "", password: str = "") -> None:
        self._target = _address(host) + port.to_bytes(2, "big")
        self._username = username.encode()
        self._password = password.encode()
        if len(self._username) > 255 or len(self._password) > 255:
            raise ValueError("a SOCKS user name and its password have at most 255 bytes")
        self._step: Callable[[bytes], bytes] = self._method_chosen
        self._needed = 2
        self._data = b""
        self.done = False

    def start(self) -> bytes:
        """Return the greeting."""
        methods = bytes(
            [_NO_AUTHENTICATION, _USER_AND_PASSWORD] if self._username else [_NO_AUTHENTICATION]
        )
        return bytes([_VERSION, len(methods)]) + methods

    def wanted(self) -> int:
        """Return the number of bytes to read next: never more, they would belong to the target."""
        return self._needed - len(self._data)

    def received(self, data: bytes) -> bytes:
        """Take bytes from the proxy; return the next bytes for it, b"" for none.

        Raises: RemoteProtocolError if the proxy refuses.
        """
        self._data += data
        if len(self._data) < self._needed:
            return b""
        data, self._data = self._data, b""
        return self._step(data)

    def _method_chosen(self, data: bytes) -> bytes:
        if data[0] != _VERSION:
            raise RemoteProtocolError(
                f"the SOCKS proxy answers with version {data[0]}", "name a proxy that speaks SOCKS5"
            )
        if data[1] == _NO_AUTHENTICATION:
            return self._connect()
        if data[1] == _USER_AND_PASSWORD and self._username:
            self._step = self._checked
            user, secret = self._username, self._password
            return bytes([_PASSWORD_VERSION, len(user)]) + user + bytes([len(secret)]) + secret
        wish = (
            "a user and a password"
            if not self._username
            else "an authentication other than user and password"
        )
        raise RemoteProtocolError(
            f"the SOCKS proxy demands {wish}", "set username and password in socksProxyConfig"
        )

    def _checked(self, data: bytes) -> bytes:
        if data[1] != 0:
            raise RemoteProtocolError(
                "the SOCKS proxy does not accept user and password",
                "correct them in socksProxyConfig",
            )
        return self._connect()

    def _connect(self) -> bytes:
        self._step = self._answered
        self._needed = 5  # with the first byte of the address, which says how long it is
        return bytes([_VERSION, _CONNECT, 0]) + self._target

    def _answered(self, data: bytes) -> bytes:
        if data[0] != _VERSION:
            raise RemoteProtocolError(
                f"the SOCKS proxy answers with version {data[0]}", "name a proxy that speaks SOCKS5"
            )
        if data[1] != 0:
            raise RemoteProtocolError(
                f"the SOCKS proxy cannot connect: {_REFUSALS.get(data[1], f'code {data[1]}')}", _FIX
            )
        sizes = {_IPV4: 4, _IPV6: 16, _NAME: 1 + data[4]}
        if data[3] not in sizes:
            raise RemoteProtocolError(
                f"the SOCKS proxy answers with an address of kind {data[3]}", _FIX
            )
        self._data, self._needed = data, 4 + sizes[data[3]] + 2
        self._step = self._finished
        return b""

    def _finished(self, data: bytes) -> bytes:
        self.done = True
        return b""


def _address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = host.encode("idna") if not host.isascii() else host.encode()
        if len(name) > 255:
            raise ValueError(f"host name {host[:40]!r}... is too long for a SOCKS proxy") from None
        return bytes([_NAME, len(name)]) + name
    return bytes([_IPV4 if address.version == 4 else _IPV6]) + address.packed
