"""CRC-32 with the polynomial of zlib, which RocketMQ stores with every body.

``crc32`` is that of zlib-ng, with vector instructions, if it is installed, otherwise zlib's.
Measured on CPython 3.11, 1 KiB: zlib 0.75 µs, zlib-ng 0.16 µs; every stored message pays it once,
and once more at its consumer.
"""

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no wheel for this machine, and nothing to build it with
    from zlib import crc32

__all__ = ["crc32"]
