"""SOCKS5 as bytes in pieces of any size, with and without a password, and the choice of proxies."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.client.proxies import SocksProxies, SocksProxy
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.socks import SocksDialogue

ANSWERS = st.sampled_from([b"\x01\x0a\x00\x00\x01", b"\x04" + bytes(16), b"\x03\x05proxy"])


def talk(dialogue: SocksDialogue, replies: list[bytes], piece: int) -> list[bytes]:
    """Feed the proxy's replies in pieces of at most the wanted size; return the client's bytes."""
    said = [dialogue.start()]
    for reply in replies:
        while reply:
            size = min(piece, dialogue.wanted())
            assert size > 0
            out = dialogue.received(reply[:size])
            reply = reply[size:]
            if out:
                assert not reply
                said.append(out)
    return said


@given(answer=ANSWERS, piece=st.integers(1, 30), port=st.integers(1, 65_535))
def test_connect_without_and_with_password(answer: bytes, piece: int, port: int) -> None:
    connected = b"\x05\x00\x00" + answer + b"\x12\x34"
    dialogue = SocksDialogue("broker.example", port)
    said = talk(dialogue, [b"\x05\x00", connected], piece)
    assert said == [
        b"\x05\x01\x00",
        b"\x05\x01\x00\x03\x0ebroker.example" + port.to_bytes(2, "big"),
    ]
    assert dialogue.done
    dialogue = SocksDialogue("10.0.0.7", port, "me", "secret")
    said = talk(dialogue, [b"\x05\x02", b"\x01\x00", connected], piece)
    assert said == [
        b"\x05\x02\x00\x02",
        b"\x01\x02me\x06secret",
        b"\x05\x01\x00\x01\x0a\x00\x00\x07" + port.to_bytes(2, "big"),
    ]
    assert dialogue.done


def test_ipv6_targets() -> None:
    dialogue = SocksDialogue("::1", 1)
    assert talk(dialogue, [b"\x05\x00"], 1)[1] == b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x01"


@pytest.mark.parametrize(
    ("username", "replies", "words"),
    [
        ("", [b"\x04\x00"], "answers with version 4; name a proxy that speaks SOCKS5"),
        ("", [b"HT"], "answers with version 72"),
        (
            "",
            [b"\x05\x02"],
            "demands a user and a password; set username and password in socksProxyConfig",
        ),
        ("", [b"\x05\xff"], "demands"),
        ("me", [b"\x05\xff"], "an authentication other than user and password"),
        ("me", [b"\x05\x02", b"\x01\x01"], "does not accept user and password"),
        ("", [b"\x05\x00", b"\x05\x05\x00\x01\x00"], "the target refused the connection"),
        ("", [b"\x05\x00", b"\x05\x63\x00\x01\x00"], "cannot connect: code 99"),
        ("", [b"\x05\x00", b"\x05\x00\x00\x07\x00"], "address of kind 7"),
    ],
)
def test_refusals_are_named(username: str, replies: list[bytes], words: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        talk(SocksDialogue("h", 1, username, "x"), replies, 99)
    assert words in str(caught.value)


@given(data=st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    dialogue = SocksDialogue("h", 1, "me", "x")
    dialogue.start()
    with contextlib.suppress(RemoteProtocolError):
        while data and not dialogue.done:
            size = dialogue.wanted()
            dialogue.received(data[:size])
            data = data[size:]


def test_the_first_range_that_contains_the_server_counts() -> None:
    text = (
        '{"10.0.0.0/8":{"addr":"a:1080","username":"me","password":"secret"},'
        '"fd00::/8":{"addr":"b:1080"},"0.0.0.0/0":{"addr":"[::1]:1080"}}'
    )
    proxies = SocksProxies.parse(text)
    assert proxies.for_host("10.1.2.3") == SocksProxy("a:1080", "me", "secret")
    assert proxies.for_host("fd00::7") == SocksProxy("b:1080")
    for other in ("192.0.2.1", "2001:db8::1", "broker.example"):
        assert proxies.for_host(other) == SocksProxy("[::1]:1080")
    only = SocksProxies.parse('{"10.0.0.0/8":{"addr":"a:1080"}}')
    assert only.for_host("192.0.2.1") is None
    assert only.for_host("broker.example") is None
    assert SocksProxies.parse("{}") == SocksProxies.parse("") == SocksProxies()
    assert "secret" not in repr(proxies)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"10.0.0.0/8":{}}',
        '{"ten":{"addr":"a:1"}}',
        '{"0.0.0.0/0":{"addr":"a"}}',
        '{"0.0.0.0/0":"a:1"}',
    ],
)
def test_a_wrong_configuration_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"socksProxyConfig: .*write \{"):
        SocksProxies.parse(text)
