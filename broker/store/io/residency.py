"""Residency: which pages of a memory map the page cache has.

One call of ``mincore`` answers for a whole span of scattered records.

A read of a missing page through the map would make the loop wait for the disk, and a call for each
record would cost more than reading the record. Source: mincore(2). The kernel answers truthfully
only to a process that may write to the file, as the broker may.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import ClassVar

PAGES_MAX = 1024
"""Limit of one call: for each page outside the page table of the process the kernel searches the
table of the file.
"""
_SPAN_MAX = (PAGES_MAX - 1) * mmap.PAGESIZE
_PAGE_MASK = -mmap.PAGESIZE


def has_mincore() -> bool:
    """Return whether this system has ``mincore`` as Linux has it."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mincore")


class _PyBuffer(ctypes.Structure):
    """Py_buffer (object.h, the stable ABI)."""

    _fields_: ClassVar = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _address(buffer: memoryview) -> int:
    """Return the address of a read-only buffer; ctypes' ``from_buffer`` takes writable ones."""
    found = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(found), 0)
    address = found.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
    assert address is not None
    return int(address)


class Residency:
    """The pages of one map, which ``view`` keeps alive."""

    __slots__ = ("_answer", "_answer_address", "_base", "_mincore", "_view")

    def __init__(self, view: memoryview) -> None:
        # PyDLL keeps the interpreter's lock: the call never waits.
        self._mincore = ctypes.PyDLL(None).mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._view = view
        self._base = _address(view)
        self._answer = bytearray(PAGES_MAX)
        self._answer_address = ctypes.addressof(
            (ctypes.c_char * PAGES_MAX).from_buffer(self._answer)
        )

    def has(self, start: int, stop: int) -> bool:
        """Return whether the page cache has all bytes from ``start`` to ``stop`` of the map.

        False also if the system does not say, and for more than 4 MiB.
        """
        first = start & _PAGE_MASK
        size = stop - first
        if (
            not 0 < size <= _SPAN_MAX
            or stop > len(self._view)
            or self._mincore(self._base + first, size, self._answer_address)
        ):
            return False
        return self._answer.find(0, 0, -(-size // mmap.PAGESIZE)) < 0
