"""Which pages of a memory map the page cache has: ``mincore``, one call for a whole span of scattered records.

A read through the map waits for the disk where a page is missing, and so does the loop with it; to ask for each record by itself costs more than to read it.
Source: mincore(2). The kernel tells the truth only to those who may write to the file, as the owner of a store may.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import ClassVar

PAGES_MAX = 1024
"""Farther than this nobody looks: for a page that is not in the process's own table the kernel searches that of the file."""
_SPAN_MAX = (PAGES_MAX - 1) * mmap.PAGESIZE
_PAGE_MASK = -mmap.PAGESIZE


def can_tell() -> bool:
    """Whether this system has ``mincore`` as Linux has it."""
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
    """Where a buffer's memory begins: ``from_buffer`` of ctypes takes writable ones only."""
    found = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(found), 0)
    address = found.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
    assert address is not None
    return int(address)


class Residency:
    """Of one map, which ``view`` keeps alive."""

    __slots__ = ("_answer", "_answer_address", "_base", "_mincore", "_view")

    def __init__(self, view: memoryview) -> None:
        self._mincore = ctypes.PyDLL(None).mincore  # it never waits, so the lock of the interpreter is kept
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._view = view
        self._base = _address(view)
        self._answer = bytearray(PAGES_MAX)
        self._answer_address = ctypes.addressof((ctypes.c_char * PAGES_MAX).from_buffer(self._answer))

    def has(self, start: int, stop: int) -> bool:
        """Whether the page cache has all bytes from ``start`` to ``stop`` of the map; False, too, where that cannot be told, and for more than 4 MiB."""
        first = start & _PAGE_MASK
        size = stop - first
        if not 0 < size <= _SPAN_MAX or stop > len(self._view) or self._mincore(self._base + first, size, self._answer_address):
            return False
        return self._answer.find(0, 0, -(-size // mmap.PAGESIZE)) < 0
