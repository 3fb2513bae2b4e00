"""Captured requests of real brokers, clients and tools to Java's name servers, sent again: same
code, same fields, same bodies.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from frames import FrameClient

from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, decode_frame
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import TopicHeader

WIRE = Path(__file__).parents[2] / "golden" / "wire"
CAPTURES = {
    "r550-JSON": 12,
    "r550-ROCKETMQ": 4,
    "r550-POP": 4,
    "r550-ADMIN": 20,
    "r494-JSON": 10,
    "r494-ROCKETMQ": 4,
}


def exchanges(capture: str) -> list[dict[str, Any]]:
    """Return the answered requests to the name server, in order of time."""
    rows = map(json.loads, (WIRE / f"{capture}.jsonl").read_text().splitlines())
    return [row for row in rows if row["server"] == "namesrv" and row["response"] is not None]


def frame(text: str) -> bytes:
    return bytes.fromhex(text)


def decoded(text: str) -> Command:
    return decode_frame(frame(text)[4:])


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[NamesrvReady]:
    async with trio.open_nursery() as nursery:
        ready: NamesrvReady = await nursery.start(
            run_namesrv,
            NamesrvConfig(
                listen_host="127.0.0.1", listen_port=0, kv_path=tmp_path / "kvConfig.json"
            ),
        )
        yield ready
        ready.stop()


async def replay_registrations(release: str, master: FrameClient, slave: FrameClient) -> None:
    """Let the captured master and slave register, each on its own connection."""
    for row in exchanges(f"{release}-JSON"):
        if row["code"] == Code.REGISTER_BROKER:
            request, expected = decoded(row["request"]), decoded(row["response"])
            assert request.ext is not None
            answer = await (master if request.ext["brokerId"] == "0" else slave).exchange(
                frame(row["request"])
            )
            assert (answer.code, answer.ext, answer.remark) == (
                expected.code,
                expected.ext,
                expected.remark,
            )


def comparable(body: bytes | memoryview, release: str) -> Any:
    """Return a body with sorted lists, and without the member that 4.9.4 does not know."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: plain(member)
                for key, member in value.items()
                if release != "r494" or key != "enableActingMaster"
            }
        if isinstance(value, list):
            return sorted((plain(member) for member in value), key=repr)
        return value

    return plain(loads(bytes(body))) if body else None


@pytest.mark.feature("2a", "2b")
@pytest.mark.parametrize("capture", CAPTURES)
async def test_captured_requests_get_the_captured_answers(
    capture: str, namesrv: NamesrvReady
) -> None:
    release = capture.split("-")[0]
    replayed = 0
    async with (
        FrameClient(namesrv.port) as master,
        FrameClient(namesrv.port) as slave,
        FrameClient(namesrv.port) as client,
    ):
        await replay_registrations(release, master, slave)
        for row in exchanges(capture):
            replayed += 1
            request, expected = decoded(row["request"]), decoded(row["response"])
            if row["code"] == Code.REGISTER_BROKER:
                continue
            if row["code"] == Code.GET_ROUTEINFO_BY_TOPIC and expected.code == 0:
                await know_topic(client, request, expected)
            answer = await client.exchange(frame(row["request"]))
            assert answer.code == expected.code, row
            if row["code"] in (Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER):
                assert set(answer.ext or {}) == set(expected.ext or {})
            else:
                assert (answer.ext or {}) == (expected.ext or {}), row
            if release == "r550":
                assert answer.remark == expected.remark
            # 5.5.0 answers in its default form; 4.9.4 and this server answer in the form of the
            # request
            assert answer.serialize is request.serialize
            if row["code"] in (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO):
                assert comparable(answer.body, release) == comparable(expected.body, release)
    assert replayed == CAPTURES[capture]


async def know_topic(client: FrameClient, request: Command, expected: Command) -> None:
    """Captures have at most two requests of each kind, so some topics are not registered: store
    their captured queues.
    """
    topic = (request.ext or {})["topic"]
    route = TopicRoute.decode(expected.body)
    answer = await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic))
    if answer.code != 0 or TopicRoute.decode(answer.body).queue_datas != route.queue_datas:
        assert topic != "TBW102"
        assert (
            await client.call(
                Code.REGISTER_TOPIC_IN_NAMESRV, TopicHeader(topic), bytes(expected.body)
            )
        ).code == 0


async def test_topics_of_a_captured_master_are_those_it_registered(namesrv: NamesrvReady) -> None:
    async with FrameClient(namesrv.port) as master, FrameClient(namesrv.port) as slave:
        await replay_registrations("r550", master, slave)
        listed = loads(bytes((await master.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body))[
            "topicList"
        ]
        registered = {
            name
            for row in exchanges("r550-JSON")
            if row["code"] == Code.REGISTER_BROKER
            and (decoded(row["request"]).ext or {})["brokerId"] == "0"
            for name in loads(bytes(decoded(row["request"]).body))["topicConfigSerializeWrapper"][
                "topicConfigTable"
            ]
        }
        assert len(registered) >= 16
        assert set(listed) == registered


async def test_a_one_way_registration_is_accepted_without_an_answer(namesrv: NamesrvReady) -> None:
    rows = [json.loads(line) for line in (WIRE / "r494-JSON.jsonl").read_text().splitlines()]
    oneway = next(
        row
        for row in rows
        if row["server"] == "namesrv" and row["code"] == Code.REGISTER_BROKER and row["oneway"]
    )
    async with FrameClient(namesrv.port) as master, FrameClient(namesrv.port) as slave:
        await replay_registrations("r494", master, slave)
        await master.stream.send_all(frame(oneway["request"]))
        assert (await master.call(Code.GET_BROKER_CLUSTER_INFO)).serialize is SerializeType.JSON
        assert master.received == []
