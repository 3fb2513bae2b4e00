"""Bloom filter bits of a group's filter.

When RocketMQ stores a message, it marks with them which filters the message matches. TrioMQ only
writes them to the file of filters, which Java reads. Source: filter/util/BloomFilter.java; the hash
is MurmurHash3, 128 bits for x64, seed 0, its first 64 bits (Guava's murmur3_128().asLong()).
"""

from __future__ import annotations

FUNCTIONS, BITS = 3, 112
"""What Java computes from maxErrorRateOfBloomFilter=20 and expectConsumerNumUseFilter=32, the
defaults. It ignores a file with other numbers.
"""
MASK = 2**64 - 1


def bloom_positions(key: str) -> list[int]:
    """Return the bits of a key, which is ``group#topic``."""
    found = murmur3_64(key.encode())
    low, high = found & 0xFFFFFFFF, found >> 32
    positions = []
    for number in range(1, FUNCTIONS + 1):
        combined = (low + number * high) & 0xFFFFFFFF
        if combined >> 31:
            combined = ~combined & 0xFFFFFFFF
        positions.append(combined % BITS)
    return positions


def murmur3_64(data: bytes) -> int:
    """Return the first half of MurmurHash3_x64_128 with seed 0."""
    first, second = 0x87C37B91114253D5, 0x4CF5AD432745937F
    one = two = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one ^= (
            _rotate(int.from_bytes(data[at : at + 8], "little") * first & MASK, 31) * second & MASK
        )
        one = ((_rotate(one, 27) + two) * 5 + 0x52DCE729) & MASK
        two ^= (
            _rotate(int.from_bytes(data[at + 8 : at + 16], "little") * second & MASK, 33) * first
            & MASK
        )
        two = ((_rotate(two, 31) + one) * 5 + 0x38495AB5) & MASK
    rest = data[whole:]
    two ^= _rotate(int.from_bytes(rest[8:], "little") * second & MASK, 33) * first & MASK
    one ^= _rotate(int.from_bytes(rest[:8], "little") * first & MASK, 31) * second & MASK
    one ^= len(data)
    two ^= len(data)
    one = (one + two) & MASK
    two = (two + one) & MASK
    return (_mix(one) + _mix(two)) & MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33
