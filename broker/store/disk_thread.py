"""One thread for one blocking call after the other, cheaper to ask than ``trio.to_thread``.

With SYNC_FLUSH every group of messages waits for one fsync, and on a fast disk the way to a thread and back takes as long as the fsync itself. Two pipes do it in
10 µs instead of 50: the thread sleeps in ``read``, the loop in its poller.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType

import trio


class DiskThread:
    """An async context manager: the thread ends with it. One call at a time."""

    __slots__ = ("_asked", "_busy", "_call", "_error", "_quiet", "_thread", "_told")

    def __init__(self) -> None:
        self._asked = os.pipe()
        self._told = os.pipe()
        self._call: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._busy = False
        self._quiet = trio.lowlevel.ParkingLot()
        self._thread = threading.Thread(target=self._work, name="store-disk", daemon=True)

    async def __aenter__(self) -> DiskThread:
        self._thread.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for the call of another task, whatever happens to this one, and end the thread. Checkpoint: only if it must wait."""
        with trio.CancelScope(shield=True):
            while self._busy:
                await self._quiet.park()
        self._call = None
        os.write(self._asked[1], b"\0")
        self._thread.join()  # it sleeps in `read`, so this takes no time
        for descriptor in (*self._asked, *self._told):
            os.close(descriptor)

    async def run(self, call: Callable[[], None]) -> None:
        """Run *call* in the thread and raise what it raises. Checkpoint: always; whoever is cancelled waits for the end of the call all the same."""
        assert not self._busy, "a thread takes one call at a time"
        self._busy = True
        self._call = call
        os.write(self._asked[1], b"\0")
        try:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(self._told[0])
            os.read(self._told[0], 1)
        finally:
            self._busy = False
            self._quiet.unpark_all()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while os.read(self._asked[0], 1):
            call = self._call
            if call is None:
                return
            try:
                call()
            except BaseException as error:  # whatever it is, it belongs to the caller
                self._error = error
            os.write(self._told[1], b"\0")
