"""mqlocal's options: the page lists them, they determine the ports, and the folder follows the XDG
rules.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from triomq import local_options
from triomq import local_processes as local
from triomq.client.admin.arguments import parse
from triomq.local import main

PAGE = Path(__file__).resolve().parents[4] / "docs" / "testing.md"


def test_the_page_lists_every_option() -> None:
    page = PAGE.read_text()
    assert [
        option.name
        for option in local_options.OPTIONS
        if option.name not in ("help", "version") and f"`--{option.name}" not in page
    ] == []


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: mqlocal")
    assert all(f"--{option.name}" in out for option in local_options.OPTIONS)


def test_replicas_need_controllers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replicas", "2"]) == 2
    assert "--controllers" in capsys.readouterr().err


def test_port_0_means_free_ports_everywhere() -> None:
    namesrvs, brokers = local.ports_of(
        parse(local_options.OPTIONS, ["--port", "0", "--namesrvs", "3", "--brokers", "3"])
    )
    beside = (
        port + distance
        for port in brokers
        for distance in (-local.FAST_PORT_BELOW, local.HA_PORT_ABOVE)
    )
    assert len({*namesrvs, *brokers, *beside}) == 12


def test_free_ports_are_outside_of_the_range_for_outgoing_connections() -> None:
    """Otherwise a connection of another program could take a port between the choice and
    the start.
    """
    lowest, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if lowest < local.FREE_PORTS.stop:
        pytest.skip(
            f"this machine gives ports from {lowest} to outgoing connections; Linux begins at 32768"
        )
    assert all(port + local.HA_PORT_ABOVE < lowest for port in local.free_ports(50))


def test_a_port_with_a_neighbour_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = local.free_ports(1, (1, 2))
    monkeypatch.setattr(local, "FREE_PORTS", range(first, first + 2))
    with socket.create_server((local.HOST, first + 1)):
        with pytest.raises(
            local.LocalError, match=rf"no free ports from {first} to {first + 1}"
        ) as caught:
            local.free_ports(1, (local.HA_PORT_ABOVE,))
        assert caught.value.exit_code == local_options.EXIT_PORT_IN_USE
        assert local.free_ports(1) == [first]


def test_given_ports_follow_each_other() -> None:
    (first,) = local.free_ports(1)
    (broker,) = local.free_ports(1, (-local.FAST_PORT_BELOW,))
    namesrvs, brokers = local.ports_of(
        parse(
            local_options.OPTIONS,
            ["--port", str(first), "--broker-port", str(broker), "--brokers", "1"],
        )
    )
    assert (namesrvs, brokers) == ([first], [broker])


def test_a_port_in_use_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            local.LocalError,
            match=rf"port {port} cannot be used .* choose other ports with --broker-port",
        ) as caught:
            local.check_free(port, "--broker-port")
    assert caught.value.exit_code == local_options.EXIT_PORT_IN_USE


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.default_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/triomq/local")
    monkeypatch.setenv("HOME", "/home/me")
    assert local.default_folder({}) == Path("/home/me/.local/state/triomq/local")


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    with (
        local.hold(tmp_path),
        pytest.raises(
            local.LocalError, match=r"is in use by another mqlocal \(process \d+\)"
        ) as caught,
    ):
        local.hold(tmp_path)
    assert caught.value.exit_code == local_options.EXIT_IN_USE
    local.hold(tmp_path).close()


def test_the_last_log_line_is_found(tmp_path: Path) -> None:
    child = local.Child(
        "broker-a", "broker", "127.0.0.1:1", tmp_path / "a.conf", tmp_path / "a.log"
    )
    assert child.last_line() == ""
    child.log.write_text("first\nthe last words\n\n")
    assert child.last_line() == "the last words"


def test_a_taken_fast_port_is_found_before_anything_starts() -> None:
    with socket.socket() as probe:
        probe.bind((local.HOST, 0))
        taken: int = probe.getsockname()[1]
        options = parse(
            local_options.OPTIONS,
            ["--port", "0", "--broker-port", str(taken + local.FAST_PORT_BELOW)],
        )
        with pytest.raises(
            local.LocalError,
            match=rf"port {taken} cannot be used .* choose other ports with --broker-port",
        ):
            local.ports_of(options)
