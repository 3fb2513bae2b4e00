"""A controller in the name server, over real sockets: what brokers and tools ask, what happens when
a master goes away, and what is on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from frames import FrameClient
from header_catalogue import HEADERS
from processes import free_port

from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.controller import liveness
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.bodies.controller import ElectMasterBody, SyncStateData, SyncStateSet
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    CleanBrokerDataHeader,
    ControllerMetadataHeader,
    ElectMasterHeader,
    ElectMasterResponseHeader,
    NextBrokerIdHeader,
    NextBrokerIdResponseHeader,
    RegisterToControllerHeader,
    RegisterToControllerResponseHeader,
    ReplicaInfoHeader,
    ReplicaInfoResponseHeader,
    RoleChangedHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.signing import Credentials

NAME = "broker-a"


def settings(folder: Path, port: int, **more: Any) -> ControllerSettings:
    return ControllerSettings(
        enabled=True,
        group_name="group1",
        peers=f"n0-127.0.0.1:{port}",
        self_id="n0",
        store_path=folder,
        **more,
    )


@asynccontextmanager
async def controller(
    folder: Path, access: WriterSettings | None = None, **more: Any
) -> AsyncIterator[int]:
    """A name server with a controller; the controller's port."""
    port = free_port()
    config = NamesrvConfig(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_path=folder / "kv.json",
        controller=settings(folder, port, **more),
        access=access or WriterSettings(),
    )
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(run_namesrv, config)
        try:
            yield port
        finally:
            ready.stop()


@attrs.define(eq=False)
class Played:
    """A broker as its controller sees it: a connection, and a port that takes notices."""

    client: FrameClient
    address: str
    broker_id: int
    notices: list[Command] = attrs.field(factory=list)

    async def heartbeat(self, max_offset: int = 0, timeout_ms: int = 10_000) -> Command:
        header = BrokerHeartbeatHeader(
            cluster_name="C",
            broker_addr=self.address,
            broker_name=NAME,
            broker_id=self.broker_id,
            heartbeat_timeout_ms=timeout_ms,
            epoch=1,
            max_offset=max_offset,
        )
        return await self.client.call(Code.BROKER_HEARTBEAT, header)

    async def register(self) -> RegisterToControllerResponseHeader:
        header = RegisterToControllerHeader("C", NAME, self.broker_id, self.address)
        answer = await self.client.call(Code.CONTROLLER_REGISTER_BROKER, header)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer.header(RegisterToControllerResponseHeader)

    async def elect(self, *, designated: bool = False) -> Command:
        header = ElectMasterHeader("C", NAME, self.broker_id, designated)
        return await self.client.call(Code.CONTROLLER_ELECT_MASTER, header)

    async def alter(self, ids: set[int], set_epoch: int, epoch: int = 1) -> Command:
        header = AlterSyncStateSetHeader(NAME, self.broker_id, epoch)
        body = SyncStateSet(frozenset(ids), set_epoch).encode()
        return await self.client.call(Code.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    async def told(self) -> RoleChangedHeader:
        with trio.fail_after(60):
            while not self.notices:
                await trio.sleep(0.01)
        return self.notices.pop(0).header(RoleChangedHeader)


@asynccontextmanager
async def broker(port: int, broker_id: int = 0) -> AsyncIterator[Played]:
    """Start a broker; it applies for an id if it has none, and registers."""
    async with FrameClient(port) as client, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        if not broker_id:
            answer = await client.call(
                Code.CONTROLLER_GET_NEXT_BROKER_ID, NextBrokerIdHeader("C", NAME)
            )
            broker_id = answer.header(NextBrokerIdResponseHeader).next_broker_id or 0
            asked = ApplyBrokerIdHeader("C", NAME, broker_id, f"{address};1")
            applied = await client.call(Code.CONTROLLER_APPLY_BROKER_ID, asked)
            assert applied.code == ResponseCode.SUCCESS
        played = Played(client, address, broker_id)

        async def take(stream: trio.SocketStream) -> None:
            frames = FrameBuffer()
            async for data in stream:
                played.notices += [decode_frame(bytes(frame)) for frame in frames.feed(data)]

        nursery.start_soon(trio.serve_listeners, take, [listener])
        await played.register()
        yield played
        nursery.cancel_scope.cancel()


async def info(client: FrameClient) -> tuple[ReplicaInfoResponseHeader, SyncStateSet]:
    answer = await client.call(Code.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader(NAME))
    assert answer.code == ResponseCode.SUCCESS
    return answer.header(ReplicaInfoResponseHeader), SyncStateSet.decode(answer.body)


async def master_is(client: FrameClient, broker_id: int | None) -> ReplicaInfoResponseHeader:
    with trio.fail_after(60):
        while (await info(client))[0].master_broker_id != broker_id:
            await trio.sleep(0.01)
    return (await info(client))[0]


@asynccontextmanager
async def pair(folder: Path, **more: Any) -> AsyncIterator[tuple[int, Played, Played]]:
    """Two brokers, both in the set; the first is the master."""
    async with controller(folder, **more) as port, broker(port) as one, broker(port) as two:
        first = await one.elect()
        assert first.header(ElectMasterResponseHeader).master_broker_id == 1
        await one.heartbeat()
        await two.heartbeat()
        assert (await one.alter({1, 2}, 1)).code == ResponseCode.SUCCESS
        yield port, one, two


async def test_start_of_a_group(tmp_path: Path) -> None:
    async with controller(tmp_path) as port, FrameClient(port) as tool:
        header = (await tool.call(Code.CONTROLLER_GET_METADATA_INFO)).header(
            ControllerMetadataHeader
        )
        address = f"127.0.0.1:{port}"
        assert header == ControllerMetadataHeader("group1", "n0", address, True, f"n0:{address};")
        answer = await tool.call(Code.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader(NAME))
        assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        async with broker(port) as one, broker(port) as two:
            assert (one.broker_id, two.broker_id) == (1, 2)
            assert (await one.register()).master_broker_id is None
            elected = await one.elect()
            assert elected.header(ElectMasterResponseHeader) == ElectMasterResponseHeader(
                1, one.address, 1, 1
            )
            body = ElectMasterBody.decode(elected.body)
            assert body.sync_state_set == {1}
            assert body.broker_member_group is not None
            assert body.broker_member_group.broker_addrs == {1: one.address, 2: two.address}
            assert b'{"1":' in elected.body  # unquoted, Java's electMaster prints an exception
            assert (await one.told()).master_broker_id == 1
            known = await two.register()
            assert (known.master_broker_id, known.master_address) == (1, one.address)
            still = await two.elect()
            assert still.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            assert still.header(ElectMasterResponseHeader).master_broker_id == 1
            # A broker that was not heard of for a moment is no new member.
            assert (await one.alter({1, 2}, 1)).code == ResponseCode.SUCCESS
            answer = await tool.call(
                Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a","x",7]'
            )
            table = SyncStateData.decode(answer.body).replicas_info_table
            assert table.keys() == {NAME}
            assert [each.broker_id for each in table[NAME].in_sync_replicas] == [1, 2]


async def test_a_master_whose_connection_ends_is_replaced_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, one, two):
        two.notices.clear()
        await one.client.stream.aclose()
        told = await two.told()
        assert (told.master_broker_id, told.master_epoch) == (2, 2)
        assert (await info(two.client))[1] == SyncStateSet(frozenset({2}), 3)


async def test_a_master_that_is_silent_is_replaced(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, one, two):
        await one.heartbeat(timeout_ms=1)
        assert (await master_is(two.client, 2)).master_epoch == 2
        await one.heartbeat()  # it wakes up: too late
        assert (await info(two.client))[0].master_broker_id == 2
        assert (await one.alter({1}, 3, epoch=1)).code == ResponseCode.CONTROLLER_INVALID_MASTER


async def test_a_master_that_starts_again_is_replaced(tmp_path: Path) -> None:
    """Even if its old connection still lives: it may have lost the end of its log."""
    async with pair(tmp_path) as (_, one, two):
        known = await one.register()
        assert (known.master_broker_id, known.master_epoch) == (2, 2)
        assert (await two.told()).master_epoch in (1, 2)


async def test_nobody_outside_the_set_takes_over_until_its_member_is_back(tmp_path: Path) -> None:
    async with pair(tmp_path) as (port, one, two):
        assert (await one.alter({1}, 2)).code == ResponseCode.SUCCESS
        await one.client.stream.aclose()
        header = await master_is(two.client, None)
        assert header == ReplicaInfoResponseHeader(None, None, 1)
        for _ in range(3):  # Java raises the epoch each time
            answer = await two.elect()
            assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert (await info(two.client))[0].master_epoch == 1
        async with broker(port, 1):
            assert (await master_is(two.client, 1)).master_epoch == 2


async def test_unclean_election_is_a_setting(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, one, two):
        assert (await one.alter({1}, 2)).code == ResponseCode.SUCCESS
        body = b"enableElectUncleanMaster=true\n"
        assert (await two.client.call(Code.UPDATE_CONTROLLER_CONFIG, body=body)).code == 0
        await one.client.stream.aclose()
        assert (await master_is(two.client, 2)).master_epoch == 2


async def test_the_state_survives_and_masters_are_not_deposed_by_a_start(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, one, _two):
        before = await info(one.client)
    async with controller(tmp_path) as port, FrameClient(port) as tool:
        header, found = await info(tool)
        assert (header.master_broker_id, header.master_epoch) == (1, 1)
        assert found == before[1]
        async with broker(port, 2) as two:  # alive, and in the set
            assert (await two.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


async def test_after_the_first_seconds_a_master_that_did_not_come_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path):
        pass
    monkeypatch.setattr(liveness, "TIMEOUT_SECONDS", 0.3)
    async with controller(tmp_path) as port, broker(port, 2) as two:
        assert (await master_is(two.client, 2)).master_epoch == 2


async def test_a_tool_names_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, one, two):
        answer = await two.elect(designated=True)
        assert answer.header(ElectMasterResponseHeader).master_broker_id == 2
        one.notices.clear()
        again = await two.elect(designated=True)
        assert again.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


async def test_brokers_are_forgotten_when_they_are_dead(tmp_path: Path) -> None:
    async with pair(tmp_path) as (port, one, two), FrameClient(port) as tool:

        async def clean(ids: str | None = None, *, living: bool = False) -> Command:
            header = CleanBrokerDataHeader(NAME, "C", ids, living)
            return await tool.call(Code.CLEAN_BROKER_DATA, header)

        refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        assert (await clean()).code == refused
        assert (await clean("2")).remark == f"Broker [{NAME},  2] is still alive, clean up failure"
        assert (await clean("two")).code == ResponseCode.CONTROLLER_INVALID_REQUEST
        await two.client.stream.aclose()
        with trio.fail_after(60):
            while (await clean("2")).code != ResponseCode.SUCCESS:
                await trio.sleep(0.01)
        assert (await info(one.client))[1] == SyncStateSet(frozenset({1}), 3)
        assert (await clean(living=True)).code == ResponseCode.SUCCESS
        assert (await clean()).code == refused


async def test_requests_that_are_refused(tmp_path: Path) -> None:
    async with pair(tmp_path, replicas_max=2) as (_, one, _two):
        header = ApplyBrokerIdHeader("C", NAME, 3, "a:1;1")
        answer = await one.client.call(Code.CONTROLLER_APPLY_BROKER_ID, header)
        assert "controllerReplicasMax" in (answer.remark or "")
        body = b"[" + b" " * 40_000
        large = await one.client.call(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        assert large.code == ResponseCode.INVALID_PARAMETER
        lacking = await one.client.command(
            Code.BROKER_HEARTBEAT,
            {"clusterName": "C", "brokerName": NAME, "brokerAddr": one.address},
        )
        assert lacking.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert (await one.alter({1, 2, 9}, 2)).code == ResponseCode.CONTROLLER_INVALID_REPLICAS


async def test_a_new_member_of_a_set_was_seen_alive(tmp_path: Path) -> None:
    async with pair(tmp_path):
        pass
    async with controller(tmp_path) as port, broker(port, 1) as one:
        assert (await master_is(one.client, 1)).master_epoch == 2
        answer = await one.alter({1, 2}, 3, epoch=2)
        assert answer.code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
        async with broker(port, 2):
            assert (await one.alter({1, 2}, 3, epoch=2)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("peers", "self_id", "said"),
    [
        ("", "n0", "without controllerDLegerPeers"),
        ("n0-a:1;n0-b:2", "n0", "there twice"),
        ("n0-a:1;n1-a:1", "n0", "there twice"),
        (";".join(f"n{n}-a:{n + 1}" for n in range(10)), "n0", "9 are allowed"),
        ("n0-a:1;n1-b:2", "n2", "the id of this controller"),
        ("n0-a:1", "n1", "controllerDLegerSelfId=n0"),
        ("127.0.0.1:9878", "n0", "not id-host:port"),
        ("n0-a", "n0", "not id-host:port"),
    ],
)
def test_settings_that_name_no_controller(peers: str, self_id: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ControllerSettings(enabled=True, peers=peers, self_id=self_id).own_peer()


async def test_who_may_ask_where_there_are_users(tmp_path: Path) -> None:
    access = WriterSettings(
        authentication=True, inner=Credentials(access_key="broker", secret_key="12345678")
    )
    async with controller(tmp_path, access) as port, FrameClient(port) as tool:
        refused = []
        for code, pair in HEADERS.items():
            if not (1001 <= code <= 1013 and code not in (1007, 1008)) or pair.request is None:
                continue
            fields = codec_of(pair.request).fields
            ext = {field.name: "1" if field.kind is not bool else "true" for field in fields}
            if (await tool.command(code, ext)).code == ResponseCode.NO_PERMISSION:
                refused.append(code)
        assert refused == [1001, 1002, 1003, 1011, 1012, 1013]
        assert (await tool.call(Code.CONTROLLER_GET_METADATA_INFO)).code == ResponseCode.SUCCESS
        changed = await tool.call(Code.UPDATE_CONTROLLER_CONFIG, body=b"enableTopicList=false\n")
        assert changed.code == ResponseCode.NO_PERMISSION


async def test_a_damaged_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text("{")
    with pytest.RaisesGroup(ConfigError, allow_unwrapped=True, flatten_subgroups=True):
        async with controller(tmp_path):
            pass


async def test_senseless_requests_are_answered_and_break_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path) as port, FrameClient(port) as tool:
        for code, pair in HEADERS.items():
            for number in (0, 1, -1, 2**31 - 1):
                ext = {}
                for field in codec_of(pair.request).fields if pair.request is not None else ():
                    ext[field.name] = {str: "x", bool: "true", int: str(number)}[field.kind]
                for body in (b"", b"{}", b"[1]", b"\x00garbage"):
                    opaque = await tool.send(code, None, body) if not ext else None
                    if opaque is None:
                        command = Command(code=code, opaque=number & 0xFFFF, ext=ext, body=body)
                        answer = await tool.exchange(encode_command(command))
                    else:
                        answer = await tool.answer(opaque)
                    assert answer.is_response
    assert [line for line in caplog.records if line.levelno >= logging.ERROR] == []
