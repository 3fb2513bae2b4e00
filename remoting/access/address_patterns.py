"""Patterns of addresses as ACL 1.0 writes its white lists. SANS-IO.

One or more of them, joined by commas: an address; ``*`` for all; four parts of IPv4 or all eight of
IPv6, each of them a number, ``*``, a range ``1-9`` or a set ``{4,5}``.

Source: acl/…/plain/RemoteAddressStrategyFactory.java.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

import attrs

Parts: TypeAlias = tuple[Container[int], ...]
"""What each part of an address may be."""

_COMMA = re.compile(r",(?![^{]*\})")
_ALL: tuple[Parts, ...] = ((range(256),) * 4, (range(65_536),) * 8)


@attrs.frozen
class AddressPatterns:
    """Which addresses these patterns name."""

    parts: tuple[Parts, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> AddressPatterns:
        """Read patterns; a blank one names no address. Raises: ValueError."""
        found: list[Parts] = []
        for text in texts:
            for pattern in _COMMA.split(text):
                found += _parse(pattern.strip())
        return cls(tuple(found))

    def has(self, address: str) -> bool:
        """Return whether they name *address*; IPv4 in IPv6's form is IPv4."""
        if not self.parts:
            return False
        try:
            numbers = _numbers(ip_address(address.partition("%")[0].strip("[]")))
        except ValueError:
            return False
        return any(
            len(parts) == len(numbers)
            and all(number in part for number, part in zip(numbers, parts, strict=True))
            for parts in self.parts
        )

    def __bool__(self) -> bool:
        return bool(self.parts)


def _numbers(address: IPv4Address | IPv6Address) -> tuple[int, ...]:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return tuple(int(part, 16) for part in address.exploded.split(":"))
        address = address.ipv4_mapped
    return tuple(address.packed)


def _parse(text: str) -> Iterable[Parts]:
    if not text:
        return ()
    if text == "*":
        return _ALL
    try:
        return [tuple((number,) for number in _numbers(ip_address(text)))]
    except ValueError:
        pass
    for separator, count, base, most in ((".", 4, 10, 255), (":", 8, 16, 65_535)):
        words = text.split(separator)
        if len(words) == count:
            try:
                return [tuple(_part(word, base, most) for word in words)]
            except ValueError:
                break
    raise ValueError(
        f"{text!r} is no pattern of addresses: write an address, *, 192.168.1-9.*, or"
        " 192.168.1.{4,5}"
    )


def _part(word: str, base: int, most: int) -> Container[int]:
    if word == "*":
        return range(most + 1)
    if word.startswith("{") and word.endswith("}"):
        return frozenset(_number(each.strip(), base, most) for each in word[1:-1].split(","))
    first, dash, last = word.partition("-")
    low = _number(first, base, most)
    return range(low, (_number(last, base, most) if dash else low) + 1)


def _number(text: str, base: int, most: int) -> int:
    number = int(text, base)
    if not text.isalnum() or not 0 <= number <= most:
        raise ValueError(text)
    return number
