"""The boss: accepts connections and deals them to the selectors, `n % N`."""

import errno
import itertools
import logging
import socket
from collections.abc import Callable

import attrs
import trio

_log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 64
# Out of descriptors or memory: the connection stays in the backlog until something is closed.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_PAUSE_SECONDS = 0.1


@attrs.define(eq=False)
class Boss:
    """`deal(number, socket)` takes a new, non-blocking socket; `number` counts accepted connections from 0."""

    listener: socket.socket
    deal: Callable[[int, socket.socket], None]
    accepted: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    _exhausted: bool = attrs.field(default=False, init=False)

    async def run(self) -> None:
        """Accept until cancelled."""
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()  # before its first step the listener may be closed already
            await trio.lowlevel.wait_readable(self.listener)
            for _ in itertools.repeat(None, _ACCEPTS_PER_TURN):
                try:
                    sock, _peer = self.listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno not in _EXHAUSTED:
                        self.failed += 1  # the peer gave up while it was in the backlog (ECONNABORTED and its kin)
                        continue
                    await self._wait_for_resources(error)
                    break
                self._exhausted = False
                sock.setblocking(False)
                number = self.accepted
                self.accepted += 1
                self.deal(number, sock)
            await trio.lowlevel.checkpoint()

    async def _wait_for_resources(self, error: OSError) -> None:
        self.failed += 1
        if not self._exhausted:
            self._exhausted = True
            _log.error(
                "cannot accept connections: %s; raise the limit of open files (ulimit -n) or close clients",
                error.strerror,
            )
        await trio.sleep(_EXHAUSTED_PAUSE_SECONDS)
