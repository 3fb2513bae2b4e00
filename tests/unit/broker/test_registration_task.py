"""Registration with name servers that are there, are not there, come back, or forget us."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from serving import until

from triomq.broker.services import registration as registration_module
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.registration import NameServer, Registration, RegistrationSettings
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.broker.services.versions import Version
from triomq.remoting.errors import ConnectFailed
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.registration import decode_registration
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.route import QueryDataVersionResponseHeader, RegisterBrokerHeader


class NameServers:
    """What the connector would reach: each address is up or down, and remembers what it was told."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.calls: list[tuple[float, str, int, list[str]]] = []
        self.body = b""
        self.code = 0
        self.changed = True
        self.begin = trio.current_time()

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        topics: list[str] = []
        if command.code == RequestCode.REGISTER_BROKER:
            body, header = bytes(command.body), command.header(RegisterBrokerHeader)
            assert header.compressed == (body[:1] == b"\x78")
            assert header.body_crc == zlib.crc32(body) & 0x7FFFFFFF
            topics = list(decode_registration(body, command.version).table.topic_config_table)
        self.calls.append((round(trio.current_time() - self.begin, 3), address, int(command.code), topics))
        if address in self.down:
            raise ConnectFailed(address, "refused")
        if command.code == RequestCode.QUERY_DATA_VERSION:
            return response_to(command, header=QueryDataVersionResponseHeader(self.changed))
        return response_to(command, code=self.code, body=self.body, remark="no" if self.code else None)

    def times(self, address: str) -> list[float]:
        return [time for time, where, code, _ in self.calls if where == address and code == RequestCode.REGISTER_BROKER]

    def topics(self, address: str) -> list[list[str]]:
        return [topics for _, where, code, topics in self.calls if where == address and code == RequestCode.REGISTER_BROKER]


def make(tmp_path: Path, servers: NameServers, *addresses: str, **settings: object) -> Registration:
    live = LiveSettings()
    topics = open_topics(tmp_path, TopicSettings(cluster_name="C", broker_name="b"), live, Version(lambda: 1))
    values = {"cluster_name": "C", "broker_name": "b", "broker_id": 0, "broker_address": "h:1", "ha_address": "h:2", **settings}
    registration = Registration(
        RegistrationSettings(**values),  # type: ignore[arg-type]
        topics,
        live,
        {address: NameServer(address) for address in addresses},
    )
    registration.connector = servers
    topics.on_change = registration.topics_changed
    return registration


@asynccontextmanager
async def running(registration: Registration) -> AsyncIterator[Callable[[], None]]:
    async with trio.open_nursery() as nursery:
        await nursery.start(registration.run)
        yield nursery.cancel_scope.cancel
        nursery.cancel_scope.cancel()


async def test_every_name_server_is_told_at_once_and_every_30_s(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1", "y:1")
    async with running(registration):
        assert servers.times("x:1") == [0.0], "started means registered"
        assert servers.times("y:1") == [0.0]
        await trio.sleep(65)
    assert servers.times("x:1") == [0.0, 30.0, 60.0]
    assert all(len(topics) == len(registration.topics.configs) for topics in servers.topics("y:1"))


async def test_one_that_is_down_is_tried_more_and_more_rarely_and_delays_nobody(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    servers.down.add("x:1")
    registration = make(tmp_path, servers, "x:1", "y:1")
    async with running(registration):
        assert servers.times("y:1") == [0.0]
        await trio.sleep(94)
        servers.down.clear()
        await trio.sleep(40)
    assert servers.times("x:1") == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0, 121.0]
    assert "name server x:1: cannot register (cannot connect to x:1: refused)" in caplog.text
    assert "name server y:1: cannot" not in caplog.text


async def test_a_new_topic_is_announced_at_once_and_alone(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1")
    async with running(registration):
        await trio.sleep(5)
        registration.topics.put(new_topic("T", 4))
        registration.topics.put(new_topic("U", 4))
        with trio.fail_after(1):
            await registration.wait_announced()
        assert servers.times("x:1") == [0.0, 5.0]
        assert sorted(servers.topics("x:1")[-1]) == ["T", "U"]


async def test_waiting_for_the_announcement_does_not_wait_for_the_dead(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    servers.down.add("x:1")
    registration = make(tmp_path, servers, "x:1", "y:1")
    async with running(registration):
        registration.topics.put(new_topic("T", 4))
        with trio.fail_after(0.5):
            await registration.wait_announced()
        assert servers.topics("y:1")[-1] == ["T"]


async def test_a_lost_connection_makes_it_register_again_with_everything(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1")
    async with running(registration):
        await trio.sleep(3)
        registration.connection_lost("x:1", "reset")
        registration.connection_lost("unknown:1", "reset")
        await trio.sleep(0.5)
    assert servers.times("x:1") == [0.0, 3.0]
    assert len(servers.topics("x:1")[-1]) == len(registration.topics.configs)


async def test_a_refusal_counts_as_not_registered(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    servers.code = 1
    registration = make(tmp_path, servers, "x:1")
    async with running(registration):
        await trio.sleep(2)
    assert servers.times("x:1") == [0.0, 1.0]
    assert "it answered 1 no" in caplog.text


async def test_without_force_it_asks_first(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1", send_always=False)
    async with running(registration):
        servers.changed = False
        await trio.sleep(31)
        servers.changed = True
        await trio.sleep(30)
    codes = [(time, code) for time, _, code, _ in servers.calls]
    assert codes == [(0.0, 103), (30.0, 322), (60.0, 322), (60.0, 103)]


async def test_the_broker_s_permission_masks_that_of_its_topics(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1")
    registration.live.broker_permission = 4
    table = registration._body(registration.topics.configs).table.topic_config_table
    assert table["BenchmarkTest"].perm == 4
    assert registration.topics.configs["BenchmarkTest"].perm == 6


async def test_ordered_topics_come_with_the_answer(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    servers = NameServers()
    servers.body = KvTable({"T": "b:4", "elsewhere": "c:4"}).encode()
    registration = make(tmp_path, servers, "x:1")
    registration.topics.put(new_topic("T", 4))
    async with running(registration):
        assert registration.topics.configs["T"].order


async def test_goodbye_goes_to_those_that_know_us_and_takes_no_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    servers.down.add("x:1")
    registration = make(tmp_path, servers, "x:1", "y:1", "z:1")
    async with running(registration):
        pass
    servers.down.add("z:1")
    await registration.unregister()
    goodbyes = sorted(address for _, address, code, _ in servers.calls if code == RequestCode.UNREGISTER_BROKER)
    assert goodbyes == ["y:1", "z:1"]



async def test_all_topics_go_deflated_or_in_pieces_if_the_settings_say_so(tmp_path: Path) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1", deflated=True, split_count=3)
    names = list(registration.topics.configs)
    async with running(registration):
        assert servers.topics("x:1") == [names[start : start + 3] for start in range(0, len(names), 3)]
        registration.topics.put(new_topic("T", 4))
        await until(lambda: servers.topics("x:1")[-1] == ["T"])  # what changes goes alone, as before


async def test_a_long_registration_is_deflated_and_one_that_no_frame_holds_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = NameServers()
    registration = make(tmp_path, servers, "x:1")
    monkeypatch.setattr(registration_module, "PLAIN_BYTES_MAX", 1000)
    sent: list[bool] = []
    require_room = registration_module.Piece.require_room

    def note(piece: registration_module.Piece) -> None:
        sent.append(piece.deflated)
        require_room(piece)

    monkeypatch.setattr(registration_module.Piece, "require_room", note)
    async with running(registration):
        assert sent == [True]
        assert servers.topics("x:1") == [list(registration.topics.configs)]
        monkeypatch.setattr(registration_module, "BODY_BYTES_MAX", 100)
        registration.topics.put(new_topic("T", 4))
        count = len(registration.topics.configs)
        await until(lambda: f"the registration of {count} topics has " in caplog.text)
    assert "bytes, and a name server takes 100; delete topics that nothing uses, or set enableSplitRegistration=true" in caplog.text
    assert "TLS" not in caplog.text
