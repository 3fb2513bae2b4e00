from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.core.address import (
    bare_host,
    format_address,
    parse_address,
    parse_address_list,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a.example:10911 ", ("broker-a.example", 10911)),
        ("name_server:0", ("name_server", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("[::ffff:10.0.0.1]:1", ("::ffff:10.0.0.1", 1)),
    ],
)
def test_good_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert parse_address(format_address(*expected)) == expected


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "has no port"),
        ("localhost", "has no port"),
        (":9876", "has no host; write host:port, for example 127.0.0.1:9876"),
        ("[::1]", "has no port"),
        ("::1:9876", "ambiguous"),
        ("[localhost]:1", "no IPv6 address between its brackets"),
        ("[]:1", "no IPv6 address between its brackets"),
        ("http://a:1", "ambiguous"),
        ("a b:1", "no valid host name"),
        ("a:b", "port 'b'"),
        ("a:", "port ''"),
        ("a:65536", "port '65536'"),
        ("a:-1", "port '-1'"),
        ("a:²", "port '²'"),
    ],
)
def test_bad_addresses_name_the_cause(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        parse_address(text)
    assert cause in str(caught.value)
    assert repr(text) in str(caught.value)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_survives(ip, port: int) -> None:
    assert parse_address(format_address(str(ip), port)) == (str(ip), port)


def test_lists() -> None:
    assert parse_address_list("a:1;b:2,[::1]:3  c:4;;a:1\n") == ["a:1", "b:2", "[::1]:3", "c:4"]
    assert parse_address_list(" ") == []
    with pytest.raises(ValueError, match="has no port"):
        parse_address_list("a:1;b")


def test_brackets_of_a_configuration_are_kept_once() -> None:
    assert format_address("[::1]", 5) == format_address("::1", 5) == "[::1]:5"
    assert (bare_host("[::1]"), bare_host("::1"), bare_host("host")) == ("::1", "::1", "host")
