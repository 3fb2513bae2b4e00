"""The boss: accept the connections of one port and deal them to selectors (``n % N``) or tasks."""

import errno
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Callable

import attrs
import trio

from triomq.remoting.core import open_files
from triomq.remoting.core.address import plain_host
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import NONE_LEFT, Places, explained
from triomq.remoting.core.socket_options import set_stream_options

_log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 64
# Out of descriptors or memory: the connection stays in the backlog until another is closed.
_EXHAUSTED = NONE_LEFT | {errno.ENOBUFS, errno.ENOMEM}
_EXHAUSTED_PAUSE_SECONDS = 0.1


def take_place(
    places: Places, open_count: int, most: int, what: str, setting: str, limit: LogLimit
) -> bool:
    """Take a place for one more connection; if there is none, log it and return False.

    ``most``: the limit of ``open_count``, which ``setting`` gives; ``what``: a connection, for the
    log.
    """
    if open_count >= most:
        message = f"turning away {what}: %d are open, the limit; raise {setting}, or close clients"
        limit.warning(_log, message, open_count)
        return False
    if not places.take():
        message = (
            f"turning away {what}: the limit of open files (ulimit -n, %d) leaves %d for clients;"
            " raise it, or close clients"
        )
        limit.warning(_log, message, open_files.limit(), places.most)
        return False
    return True


def new_stream(sock: socket.socket, places: Places) -> tuple[str, int] | None:
    """Set the options of a new socket and return its peer's address.

    If it was reset in the backlog, close it, release its place and return None.
    """
    try:
        host, port = sock.getpeername()[:2]
        set_stream_options(sock)
    except OSError:
        sock.close()
        places.leave()
        return None
    return plain_host(host), port


@attrs.define(eq=False)
class AddressPlaces:
    """How many connections of one server each address has. *most*: of one address, which *setting*
    gives; 0: no limit. *what*: a connection, for the log.
    """

    most: int
    what: str
    setting: str
    limit: LogLimit
    _open: Counter[str] = attrs.field(factory=Counter, init=False)

    def take(self, host: str) -> bool:
        """Take a place for one more connection of an address; if it has none, log it."""
        if self.most and self._open[host] >= self.most:
            message = (
                f"turning away {self.what}: %d of %s are open, the limit of one address; raise"
                f" {self.setting}, or close clients there"
            )
            self.limit.warning(_log, message, self.most, host)
            return False
        self._open[host] += 1
        return True

    def leave(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]


@attrs.define(eq=False)
class Boss:
    """Accepts connections; ``deal(number, socket)`` takes each new, non-blocking socket.

    ``number`` counts accepted connections from 0. ``places`` counts how often no descriptor was
    left for a connection; ``what`` names the connections in the log.
    """

    listener: socket.socket
    deal: Callable[[int, socket.socket], None]
    places: Places
    what: str = "connections"
    limit: LogLimit = attrs.field(factory=LogLimit, kw_only=True)
    accepted: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Accept until cancelled."""
        while True:
            # The listener may be closed before the first step of this task.
            await trio.lowlevel.checkpoint_if_cancelled()
            await trio.lowlevel.wait_readable(self.listener)
            for _ in itertools.repeat(None, _ACCEPTS_PER_TURN):
                try:
                    sock, _peer = self.listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno not in _EXHAUSTED:
                        # The peer gave up while it was in the backlog (ECONNABORTED and its kin).
                        continue
                    await self._wait_for_resources(error)
                    break
                sock.setblocking(False)
                number = self.accepted
                self.accepted += 1
                self.deal(number, sock)
            await trio.lowlevel.checkpoint()

    async def _wait_for_resources(self, error: OSError) -> None:
        if error.errno in NONE_LEFT:
            self.places.failed_accepts += 1
        self.limit.log(
            _log, logging.ERROR, "cannot accept %s for now: %s", self.what, explained(error)
        )
        await trio.sleep(_EXHAUSTED_PAUSE_SECONDS)
