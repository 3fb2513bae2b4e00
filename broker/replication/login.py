"""The login of a slave at the HA port (``haAuthentication``): both ends know the same secret.

RocketMQ's HA protocol has no login. With the setting a connection begins with four messages of a
fixed size, and goes on as it always does (``transfer.py``)::

    slave  -> master   LOGIN (8 bytes), the slave's random number (32)
    master -> slave    the master's random number (32)
    slave  -> master   HMAC-SHA256 of "slave", the name of the user and both numbers (32)
    master -> slave    HMAC-SHA256 of "master", the same (32)

The key of the HMACs is the secret of ``innerClientAuthenticationCredentials``, which never crosses
the network. The slave proves first, so that a peer which only connects learns nothing to guess the
secret by. To other first bytes, those of a Java slave among them, the master sends nothing: it
closes the connection, and its log names the setting.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from triomq.broker.replication.errors import HaLoginRefused
from triomq.broker.replication.link_socket import LinkSocket
from triomq.remoting.protocol.signing import Credentials

LOGIN = b"\xffTMQHA\x00\x01"
"""Where a slave without login sends its first report: as such it would be far below -1."""
LOGIN_SECONDS = 5.0
_SIZE = 32
FIX = "write haAuthentication, haTls and innerClientAuthenticationCredentials alike at both brokers"


def _random() -> bytes:
    return os.urandom(_SIZE)


@attrs.frozen(eq=False)
class ReplicationLogin:
    """Both ends of the login. *random*: the source of the 32 bytes that each end chooses."""

    credentials: Credentials
    random: Callable[[], bytes] = attrs.field(default=_random, kw_only=True)

    def proof(self, side: bytes, slave_number: bytes, master_number: bytes) -> bytes:
        """Return what *side* (``slave`` or ``master``) sends to show that it knows the secret."""
        name = self.credentials.access_key.encode()
        content = b"\0".join((b"TrioMQ HA", side, name, slave_number + master_number))
        return hmac.digest(self.credentials.secret_key.encode(), content, "sha256")

    async def admit(self, link: LinkSocket) -> None:
        """Let a slave log in, as its master. Raises: HaLoginRefused, trio.BrokenResourceError."""
        reader = _LoginReader(link)
        with _time_limit("the slave"):
            if await reader.take(len(LOGIN)) != LOGIN:
                raise HaLoginRefused(
                    "it does not log in; a slave of TrioMQ does with haAuthentication=true, a"
                    " slave of RocketMQ cannot; haTls must be alike, too"
                )
            slave_number, master_number = await reader.take(_SIZE), self.random()
            await link.send(master_number)
            proof = await reader.take(_SIZE)
            if not hmac.compare_digest(proof, self.proof(b"slave", slave_number, master_number)):
                raise HaLoginRefused(f"its login is wrong: {FIX}")
            await link.send(self.proof(b"master", slave_number, master_number))
        reader.require_empty()

    async def enter(self, link: LinkSocket) -> None:
        """Log in at a master. Raises: HaLoginRefused, trio.BrokenResourceError."""
        reader = _LoginReader(link)
        with _time_limit("the master"):
            slave_number = self.random()
            await link.send(LOGIN + slave_number)
            master_number = await reader.take(_SIZE)
            await link.send(self.proof(b"slave", slave_number, master_number))
            proof = await reader.take(_SIZE)
            if not hmac.compare_digest(proof, self.proof(b"master", slave_number, master_number)):
                raise HaLoginRefused(f"the master does not know the secret of this broker: {FIX}")
        reader.require_empty()


@attrs.define(eq=False)
class _LoginReader:
    """Takes the messages out of what a socket receives."""

    link: LinkSocket
    rest: bytes = b""

    async def take(self, size: int) -> bytes:
        """Return the next *size* bytes. Raises: HaLoginRefused, trio.BrokenResourceError."""
        while len(self.rest) < size:
            data = await self.link.receive()
            if not data:
                raise HaLoginRefused(f"the connection was closed during the login: {FIX}")
            self.rest += data
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def require_empty(self) -> None:
        """Refuse bytes before their time: they are not part of a login. Raises: HaLoginRefused."""
        if self.rest:
            raise HaLoginRefused("it sends more than a login")


@contextmanager
def _time_limit(peer: str) -> Iterator[None]:
    """Limit the time of a login. Raises: HaLoginRefused."""
    with trio.move_on_after(LOGIN_SECONDS) as scope:
        yield
    if scope.cancelled_caught:
        raise HaLoginRefused(f"{peer} did not complete the login within {LOGIN_SECONDS:g} s: {FIX}")
