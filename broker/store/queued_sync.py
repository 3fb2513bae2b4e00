"""fdatasync by the kernel's own queue (Linux AIO): asked without waiting, and the answer wakes the loop.

With SYNC_FLUSH every group of messages waits for one fsync. A thread of ours would have to be woken, to take the interpreter's lock away from the loop three
times, and to wake the loop: 110 µs of CPU for each fsync that this way does not take. Python has no binding for it, so these are bare system calls; where they are
missing (another system, a container that forbids them) ``open`` fails, and `disk_thread` does the work. Source: linux/include/uapi/linux/aio_abi.h, io_submit(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

import trio

NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""io_setup, io_destroy, io_getevents and io_submit of a machine; both are little-endian."""
FDSYNC = 3
WITH_EVENT_FD = 1
# data, key, flags | operation, priority, descriptor | buffer, bytes, offset, reserved | flags, event descriptor
CONTROL_BLOCK = struct.Struct("<QII HhI QQqQ II")
EVENT = struct.Struct("<QQqq")
RESULT_AT = 2


class QueuedSync:
    """One fdatasync at a time, of any open file. Made by ``open``, ended by ``close``."""

    __slots__ = ("_block", "_blocks", "_call", "_context", "_destroy", "_event", "_events", "_getevents", "_submit")

    def __init__(self) -> None:
        """Raises OSError if this system cannot."""
        numbers = NUMBERS.get(platform.machine())
        if sys.platform != "linux" or numbers is None or sys.maxsize <= 1 << 32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, self._destroy, self._getevents, self._submit = numbers
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._block = ctypes.create_string_buffer(CONTROL_BLOCK.size)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = ctypes.create_string_buffer(EVENT.size)
        self._events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # first: it is the one that may fail for want of descriptors
        try:
            self._check(self._call(ctypes.c_long(setup), ctypes.c_long(1), ctypes.byref(self._context)))
        except OSError:
            os.close(self._events)
            raise

    def _check(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def begin(self, fd: int) -> None:
        """Ask for everything written to the file so far. Raises OSError if the system does not take it: then nothing was done. The descriptor may be closed at once."""
        CONTROL_BLOCK.pack_into(self._block, 0, 0, 0, 0, FDSYNC, 0, fd, 0, 0, 0, 0, WITH_EVENT_FD, self._events)
        self._check(self._call(ctypes.c_long(self._submit), self._context, ctypes.c_long(1), self._blocks))

    async def finished(self) -> None:
        """Wait for the disk, also when cancelled. Checkpoint: always. Raises OSError, as the fsync did."""
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._events)
        os.eventfd_read(self._events)
        self._check(self._call(ctypes.c_long(self._getevents), self._context, ctypes.c_long(1), ctypes.c_long(1), self._event, None))
        result: int = EVENT.unpack(self._event)[RESULT_AT]
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def close(self) -> None:
        """Give it back; waits for what was begun. Nobody may be in ``finished``: a poller forgets a closed descriptor, and whoever waits for it is never woken."""
        self._call(ctypes.c_long(self._destroy), self._context)
        os.close(self._events)


def has_queued_sync() -> bool:
    """Whether this system has it."""
    try:
        QueuedSync().close()
    except OSError:
        return False
    return True
