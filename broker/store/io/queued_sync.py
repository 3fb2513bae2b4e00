"""QueuedSync: fdatasync by the kernel's queue (Linux AIO).

The call returns at once, and the kernel wakes the loop when the disk has answered.

With SYNC_FLUSH every group of messages waits for one fsync. A thread has to be woken, takes the
interpreter's lock from the loop three times, and wakes the loop: 110 µs of CPU for each fsync,
which the queue saves. Python has no binding for it, so these are bare system calls. If they are
missing (another system, a container that forbids them), the constructor fails and a thread does the
work.
Source: linux/include/uapi/linux/aio_abi.h, io_submit(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from functools import partial
from typing import Final

import trio

NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Machine -> numbers of io_setup, io_destroy, io_getevents and io_submit. Both are
little-endian.
"""
FDSYNC = 3
WITH_EVENT_FD = 1
# data, key, flags | operation, priority, descriptor | buffer, bytes, offset, reserved | flags,
# event descriptor
CONTROL_BLOCK = struct.Struct("<QII HhI QQqQ II")
EVENT = struct.Struct("<QQqq")
RESULT_AT = 2


class QueuedSync:
    """One fdatasync at a time, of any open file, until ``close``."""

    __slots__ = (
        "_block",
        "_blocks",
        "_call",
        "_context",
        "_destroy",
        "_event",
        "_events",
        "_getevents",
        "_submit",
    )

    def __init__(self) -> None:
        """Set up the queue. Raises: OSError, if this system has none."""
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
        # First, because only this call fails when too many files are open.
        self._events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._check(
                self._call(ctypes.c_long(setup), ctypes.c_long(1), ctypes.byref(self._context))
            )
        except OSError:
            os.close(self._events)
            raise

    def _check(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def begin(self, fd: int) -> None:
        """Begin to force the file's data to the disk. The descriptor may be closed at once.

        Raises: OSError, if the system does not take the request; then the fsync has not begun.
        """
        CONTROL_BLOCK.pack_into(
            self._block, 0, 0, 0, 0, FDSYNC, 0, fd, 0, 0, 0, 0, WITH_EVENT_FD, self._events
        )
        self._check(
            self._call(ctypes.c_long(self._submit), self._context, ctypes.c_long(1), self._blocks)
        )

    async def finished(self) -> None:
        """Wait until the disk has answered, also when cancelled.

        Raises: OSError, the error of the fsync. Checkpoint: always.
        """
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._events)
        os.eventfd_read(self._events)
        self._check(
            self._call(
                ctypes.c_long(self._getevents),
                self._context,
                ctypes.c_long(1),
                ctypes.c_long(1),
                self._event,
                None,
            )
        )
        result: int = EVENT.unpack(self._event)[RESULT_AT]
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def close(self) -> None:
        """Close the queue; no fsync may be in flight. Checkpoint: never.

        No task may be in ``finished``: the poller forgets a closed descriptor, and the task would
        never be woken.
        """
        os.close(self._events)
        # The kernel takes some 30 ms, for which the loop and a change of the role would wait.
        destroy = partial(self._call, ctypes.c_long(self._destroy), self._context)
        trio.lowlevel.start_thread_soon(destroy, lambda _outcome: None)
