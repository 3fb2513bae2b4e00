"""Registration with name servers that are up, are down, come back, or forget this broker."""

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
from triomq.broker.services.name_servers import NameServerTable
from triomq.broker.services.persisted import Version
from triomq.broker.services.registration import Registrar, RegistrationSettings
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.registration import decode_registration
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.registration import (
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
)


class NameServers:
    """Stands in for the connector: each address is up or down, and remembers its requests."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.calls: list[tuple[float, str, int, list[str]]] = []
        self.versions: list[DataVersion] = []
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
            table = decode_registration(body, command.version).table
            topics = list(table.topic_config_table)
            self.versions.append(table.data_version)
        self.calls.append(
            (round(trio.current_time() - self.begin, 3), address, int(command.code), topics)
        )
        if address in self.down:
            raise ConnectFailed(address, "refused")
        if command.code == RequestCode.QUERY_DATA_VERSION:
            return response_to(command, header=QueryDataVersionResponseHeader(self.changed))
        return response_to(
            command, code=self.code, body=self.body, remark="no" if self.code else None
        )

    def times(self, address: str) -> list[float]:
        return [
            time
            for time, where, code, _ in self.calls
            if where == address and code == RequestCode.REGISTER_BROKER
        ]

    def topics(self, address: str) -> list[list[str]]:
        return [
            topics
            for _, where, code, topics in self.calls
            if where == address and code == RequestCode.REGISTER_BROKER
        ]


def make(tmp_path: Path, servers: NameServers, *addresses: str, **settings: object) -> Registrar:
    live, table = LiveSettings(), NameServerTable.of(addresses)
    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        live,
        Version(lambda: 1),
        on_change=table.topics_changed,
    )
    values = {
        "cluster_name": "C",
        "broker_name": "b",
        "broker_id": 0,
        "broker_address": "h:1",
        "ha_address": "h:2",
        **settings,
    }
    return Registrar(
        RegistrationSettings(**values),  # type: ignore[arg-type]
        topics,
        live,
        table,
        servers,
    )


@asynccontextmanager
async def running(registrar: Registrar) -> AsyncIterator[Callable[[], None]]:
    async with trio.open_nursery() as nursery:
        await nursery.start(registrar.keep_registered)
        yield nursery.cancel_scope.cancel
        nursery.cancel_scope.cancel()


async def test_the_broker_registers_with_every_name_server_at_once_and_every_30_s(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1", "y:1")
    async with running(registrar):
        assert servers.times("x:1") == [0.0], "started means registered"
        assert servers.times("y:1") == [0.0]
        await trio.sleep(65)
    assert servers.times("x:1") == [0.0, 30.0, 60.0]
    assert all(len(topics) == len(registrar.topics.configs) for topics in servers.topics("y:1"))


async def test_a_name_server_that_is_down_is_tried_with_back_off_and_delays_no_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    servers.down.add("x:1")
    registrar = make(tmp_path, servers, "x:1", "y:1")
    async with running(registrar):
        assert servers.times("y:1") == [0.0]
        await trio.sleep(94)
        servers.down.clear()
        await trio.sleep(40)
    assert servers.times("x:1") == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0, 121.0]
    assert "name server x:1: cannot register (cannot connect to x:1: refused)" in caplog.text
    assert "name server y:1: cannot" not in caplog.text


async def test_after_a_lost_connection_the_broker_registers_all_topics_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1")
    async with running(registrar):
        await trio.sleep(3)
        registrar.servers.connection_lost("x:1", "reset")
        registrar.servers.connection_lost("unknown:1", "reset")
        await trio.sleep(0.5)
    assert servers.times("x:1") == [0.0, 3.0]
    assert len(servers.topics("x:1")[-1]) == len(registrar.topics.configs)


async def test_a_refusal_counts_as_not_registered(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    servers.code = 1
    registrar = make(tmp_path, servers, "x:1")
    async with running(registrar):
        await trio.sleep(2)
    assert servers.times("x:1") == [0.0, 1.0]
    assert "it answered 1 no" in caplog.text


async def test_without_force_register_the_broker_asks_first(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1", send_always=False)
    async with running(registrar):
        servers.changed = False
        await trio.sleep(31)
        servers.changed = True
        await trio.sleep(30)
    codes = [(time, code) for time, _, code, _ in servers.calls]
    assert codes == [(0.0, 103), (30.0, 322), (60.0, 322), (60.0, 103)]


async def test_the_answer_names_ordered_topics(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    servers.body = KvTable({"T": "b:4", "elsewhere": "c:4"}).encode()
    registrar = make(tmp_path, servers, "x:1")
    registrar.topics.put(new_topic("T", 4))
    async with running(registrar):
        assert registrar.topics.configs["T"].order


async def test_unregistration_goes_to_name_servers_that_know_the_broker_and_takes_no_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    servers.down.add("x:1")
    registrar = make(tmp_path, servers, "x:1", "y:1", "z:1")
    async with running(registrar):
        pass
    servers.down.add("z:1")
    await registrar.unregister()
    unregistered = sorted(
        address for _, address, code, _ in servers.calls if code == RequestCode.UNREGISTER_BROKER
    )
    assert unregistered == ["y:1", "z:1"]


async def test_topics_are_sent_deflated_or_in_parts_if_the_settings_say_so(tmp_path: Path) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1", deflated=True, split_count=3)
    names = list(registrar.topics.configs)
    async with running(registrar):
        assert servers.topics("x:1") == [
            names[start : start + 3] for start in range(0, len(names), 3)
        ]
        versions = set(map(repr, servers.versions))
        assert len(versions) == len(servers.versions), "a name server compares versions"
        assert servers.versions[-1] == registrar.topics.version.current
        registrar.topics.put(new_topic("T", 4))
        await until(
            lambda: servers.topics("x:1")[-1] == ["T"]
        )  # a changed topic is sent alone, as before


async def test_a_registration_that_no_frame_holds_is_deflated_and_a_longer_one_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1")
    monkeypatch.setattr(registration_module, "BODY_BYTES_MAX", 1000)
    sent: list[bool] = []
    require_room = registration_module.TopicsPart.require_room

    def note(part: registration_module.TopicsPart) -> None:
        sent.append(part.deflated)
        require_room(part)

    monkeypatch.setattr(registration_module.TopicsPart, "require_room", note)
    async with running(registrar):
        assert sent == [True]
        assert servers.topics("x:1") == [list(registrar.topics.configs)]
        monkeypatch.setattr(registration_module, "BODY_BYTES_MAX", 100)
        registrar.topics.put(new_topic("T", 4))
        count = len(registrar.topics.configs)
        await until(lambda: f"the registration of {count} topics has " in caplog.text)
    assert (
        "bytes, and a name server takes 100; delete topics that nothing uses, or set"
        " enableSplitRegistration=true" in caplog.text
    )
    assert "TLS" not in caplog.text


async def test_each_change_is_announced_once_and_a_deletion_by_all_other_topics(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1")
    topics = registrar.topics
    async with running(registrar):
        for name in ("T", "U"):
            topics.put(new_topic(name, 4))
            with trio.fail_after(1):
                await registrar.wait_announced()
            assert servers.topics("x:1")[-1] == [name]
        topics.put(new_topic("V", 4))
        topics.put(new_topic("T", 8))
        topics.delete("V")
        with trio.fail_after(1):
            await registrar.wait_announced()
        assert servers.topics("x:1")[-1] == list(topics.configs)
        topics.put(new_topic("T", 9))
        with trio.fail_after(1):
            await registrar.wait_announced()
        assert servers.topics("x:1")[-1] == ["T"]


async def test_a_second_outage_begins_with_short_pauses_and_ends_with_all_topics(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It is not known which announcements arrived during the outage, so the first registration
    afterwards has all topics.
    """
    servers = NameServers()
    registrar = make(tmp_path, servers, "x:1")
    async with running(registrar):
        for begin in (10.0, 50.0):
            await trio.sleep_until(servers.begin + begin)
            servers.down.add("x:1")
            registrar.topics.put(new_topic(f"T{begin:g}", 4))
            await trio.sleep(0.5)
            with trio.fail_after(0.1):
                await registrar.wait_announced()  # no wait for a name server that is away
            await trio.sleep(5.5)
            servers.down.clear()
            await trio.sleep(4)
            assert [time for time in servers.times("x:1") if time >= begin] == [
                begin,
                begin + 1,
                begin + 3,
                begin + 7,
            ]
            assert servers.topics("x:1")[-1] == list(registrar.topics.configs)
            assert registrar.servers["x:1"].generation == registrar.topics.generation


async def test_a_wait_covers_changes_during_an_announcement(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    class Slow(NameServers):
        async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
            await trio.sleep(1)
            return await super().invoke(address, command, timeout=timeout)

    servers = Slow()
    registrar = make(tmp_path, servers, "x:1")
    async with running(registrar):
        registrar.topics.put(new_topic("T", 4))
        await trio.sleep(0.5)
        registrar.topics.put(new_topic("U", 4))
        await registrar.wait_announced()
        assert servers.topics("x:1")[1:] == [["T"], ["U"]]


async def test_a_change_of_the_broker_s_permission_encodes_all_topics_again(tmp_path: Path) -> None:
    registrar = make(tmp_path, NameServers(), "x:1")
    (before,) = await registrar._all_parts()
    assert await registrar._all_parts() == [before]
    registrar.live.broker_permission = 4
    (after,) = await registrar._all_parts()
    assert b'"perm":6' in before.body
    assert b'"perm":6' not in after.body
    assert registrar.topics.configs["BenchmarkTest"].perm == 6


async def test_delisted_name_servers_are_left_and_failed_lookups_are_logged(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers()
    registrar = make(tmp_path, servers)
    listed: list[str] | None = ["x:1", "y:1"]

    async def discover() -> list[str]:
        await trio.lowlevel.checkpoint()
        if listed is None:
            raise ConnectFailed("finder:80", "refused")
        return listed

    registrar.discover, registrar.discover_seconds = discover, 10.0
    async with running(registrar):
        await trio.sleep(5)
        listed = ["y:1", "z:1"]
        await trio.sleep(10)
        assert list(registrar.servers) == ["y:1", "z:1"]
        assert [
            address
            for _, address, code, _ in servers.calls
            if code == RequestCode.UNREGISTER_BROKER
        ] == ["x:1"]
        assert servers.times("z:1") == [10.0]
        for count in (1, 2):
            listed = None
            await trio.sleep(20)
            assert list(registrar.servers) == ["y:1", "z:1"]
            assert [
                record.levelname for record in caplog.records if "cannot find out" in record.message
            ].count("WARNING") == count
            listed = ["y:1", "z:1"]
            await trio.sleep(10)
