"""Patterns of addresses in white lists of ACL 1.0."""

from __future__ import annotations

import pytest

from triomq.remoting.access.address_patterns import AddressPatterns


@pytest.mark.parametrize(
    ("pattern", "named", "others"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["127.0.0.1"], ["::1"]),
        ("*:*:*:*:*:*:*:*", ["::1"], ["127.0.0.1"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"], ["10.0.0.3"]),
        ("192.168.1.{4,5}", ["192.168.1.4", "192.168.1.5"], ["192.168.1.6", "192.168.2.4"]),
        ("192.168.1-9.*", ["192.168.1.0", "192.168.9.255"], ["192.168.10.1", "192.169.1.1"]),
        ("192.168.0.*", ["192.168.0.77"], ["192.168.1.77"]),
        ("1050:0:0:0:5:600:300c:326b", ["1050::5:600:300C:326B"], ["1050::5:600:300c:326c"]),
        ("1050:0:0:0:5:600:300c:1-f", ["1050::5:600:300c:a"], ["1050::5:600:300c:10"]),
        ("10.0.0.1", [], ["localhost", "10.0.0.10", ""]),
    ],
)
def test_patterns(pattern: str, named: list[str], others: list[str]) -> None:
    patterns = AddressPatterns.parse([pattern])
    assert [each for each in (*named, *others) if patterns.has(each)] == named


@pytest.mark.parametrize(
    "text", ["foo", "10.0.0", "10.0.0.256", "10.0.0.{1", "10.0.0.1_0", "1:2", "-1.0.0.0", "10.0.*"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no pattern of addresses"):
        AddressPatterns.parse([text])
