"""The advertised address: Java's rule, and the check by a connection."""

from __future__ import annotations

import socket

import pytest
import trio

from triomq.broker.config import advertise


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        ([], None),
        (["127.0.0.1"], None),
        (["127.0.0.1", "10.1.2.3"], "10.1.2.3"),
        # what Java 17 chose on an interface with three and one with two private addresses, then
        # with two public ones added
        (
            ["127.0.0.1", "10.1.2.3", "10.9.9.9", "10.1.2.4", "192.168.7.7", "192.168.8.8"],
            "10.1.2.3",
        ),
        (
            ["127.0.0.1", "10.1.2.3", "10.9.9.9", "8.8.4.4", "10.1.2.4", "192.168.7.7", "9.8.4.4"],
            "9.8.4.4",
        ),
        (["192.168.0.4", "172.31.255.1", "172.32.0.1"], "172.32.0.1"),
    ],
)
def test_ipv4_choice(addresses: list[str], chosen: str | None) -> None:
    assert advertise.choose_ipv4(addresses) == chosen


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        ([], None),
        (["::1"], None),
        (["fe80::1"], "fe80::1"),
        (["2001:db8::1", "fe80::1"], "2001:db8::1"),
        (["2001:db8::1", "fec0::1", "fe80::1", "::1"], "2001:db8::1"),
    ],
)
def test_ipv6_choice(addresses: list[str], chosen: str | None) -> None:
    assert advertise.choose_ipv6(addresses) == chosen


def test_this_machine_has_an_address() -> None:
    address = advertise.local_address().strip("[]")
    assert socket.getaddrinfo(address, 0)


def test_bridges_and_point_to_point_links_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        advertise,
        "_ipv4_addresses",
        lambda: [("tun0", "10.0.0.1"), ("eth0", "192.168.1.5"), ("docker0", "8.8.8.8")],
    )
    monkeypatch.setattr(advertise, "_usable", lambda name: name == "eth0")
    assert advertise.local_address() == "192.168.1.5"


def test_only_ipv6_gives_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertise, "_ipv4_addresses", list)
    monkeypatch.setattr(advertise, "_ipv6_addresses", lambda: [("eth0", "2001:db8::7")])
    monkeypatch.setattr(advertise, "_usable", lambda name: True)
    assert advertise.local_address() == "[2001:db8::7]"


def test_other_systems_ask_for_the_outgoing_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> list[tuple[str, str]]:
        raise OSError("no such call")

    monkeypatch.setattr(advertise, "_ipv4_addresses", unknown)
    assert advertise.local_address() == advertise.outgoing_address()


async def test_reachable_address_needs_no_warning() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lambda stream: stream.aclose(), 0)
        port = listeners[0].socket.getsockname()[1]
        assert await advertise.check_advertised("127.0.0.1", port) is None
        assert await advertise.check_advertised("localhost", port) is None
        nursery.cancel_scope.cancel()


async def test_unreachable_address_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        await advertise.warn_if_unreachable("127.0.0.1", port)
    assert (
        f"clients are told to connect to 127.0.0.1:{port} (brokerIP1), but this machine itself"
        " cannot: connection refused; set brokerIP1" in caplog.text
    )


async def test_unknown_host_name_is_explained() -> None:
    warning = await advertise.check_advertised("no-such-host.invalid", 1)
    assert warning is not None
    assert "no-such-host.invalid:1 (brokerIP1)" in warning


async def test_silent_address_is_given_up(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(host: str, port: int) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", silent)
    warning = await advertise.check_advertised("192.0.2.1", 10911)
    assert warning is not None
    assert "no answer within 3 s" in warning
