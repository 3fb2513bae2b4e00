"""SQL92 filters through a broker's socket: with the pull, with the heartbeat, refused, remembered
in consumerFilter.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import trio
from brokers import BrokerPeer, Pulled, peer_of, running_broker

from triomq.remoting.protocol.bodies.heartbeat import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode

PRICES = ["10", "31", "35.5", "abc", None, "300", "-5"]


def sql(expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(
        topic="T", sub_string=expression, sub_version=version, expression_type="SQL92"
    )


async def beat(peer: BrokerPeer, *subscriptions: SubscriptionData, group: str = "G") -> None:
    body = HeartbeatData(
        client_id="one", consumers=[ConsumerData(group=group, subscriptions=list(subscriptions))]
    )
    assert (await peer.call(Code.HEART_BEAT, None, body.encode())).code == 0


async def fill(peer: BrokerPeer) -> None:
    assert (await peer.create_topic("T", queues=1)).code == 0
    for price in PRICES:
        await peer.send(
            "T",
            b"%r" % price,
            properties={"Region": "Hangzhou"} | ({"price": price} if price is not None else {}),
        )


@pytest.mark.feature("120a", "120b", "121a", "121b", "121c")
async def test_a_pull_brings_its_filter(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enablePropertyFilter=True) as ready, peer_of(ready) as peer:
        await fill(peer)

        async def pulled(expression: str, **more: int) -> list[str]:
            answer = await peer.pull("T", expression=expression, expression_type="SQL92", **more)
            assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY)
            assert answer.header.next_begin_offset == len(PRICES)
            return [body.decode() for body in answer.bodies]

        assert await pulled("Region = 'Hangzhou' AND price > 30") == ["'31'", "'300'"]
        assert await pulled("price > 30.0") == ["'31'", "'35.5'", "'300'"]
        assert await pulled("price IS NULL") == ["None"]
        assert await pulled("True") == [repr(price) for price in PRICES]
        assert await pulled("Region = 'Berlin'") == []
        refused = await peer.pull_raw("T", expression="price >", expression_type="SQL92")
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "the expression ends where a property" in (refused.remark or "")
        unknown = await peer.pull_raw("T", expression="x", expression_type="XPATH")
        assert unknown.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_filters_are_refused_where_they_are_off_and_may_be_switched_on(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await fill(peer)
        words = "The broker does not support consumer to filter message by SQL92"
        asked = CheckClientBody(client_id="one", group="G", subscription=sql("price > 1"))
        check = await peer.call(Code.CHECK_CLIENT_CONFIG, None, asked.encode())
        assert (check.code, check.remark) == (ResponseCode.SYSTEM_ERROR, words)
        pull = await peer.pull_raw("T", expression="price > 1", expression_type="SQL92")
        assert (pull.code, pull.remark) == (ResponseCode.SYSTEM_ERROR, words)
        assert (
            await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n")
        ).code == 0
        assert (await peer.call(Code.CHECK_CLIENT_CONFIG, None, asked.encode())).code == 0
        wrong = attrs.evolve(asked, subscription=sql("price !"))
        check = await peer.call(Code.CHECK_CLIENT_CONFIG, None, wrong.encode())
        assert (check.code, check.remark) == (
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "'!' at character 7 does not begin a word of SQL92",
        )
        assert (
            len((await peer.pull("T", expression="price > 1", expression_type="SQL92")).bodies) == 3
        )


@pytest.mark.feature("120a")
async def test_a_heartbeat_brings_the_filter_of_a_group(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enablePropertyFilter=True) as ready, peer_of(ready) as peer:
        await fill(peer)
        await beat(peer, sql("price > 30", 5))
        assert [
            bytes(body) for body in (await peer.pull("T", expression=None, sub_version=5)).bodies
        ] == [b"'31'", b"'300'"]
        outdated = await peer.pull_raw("T", expression=None, sub_version=6)
        assert outdated.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await beat(peer, sql("price > 30 AND", 6))
        gone = await peer.pull_raw("T", expression=None, sub_version=6)
        assert (gone.code, gone.remark) == (
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
        await beat(peer, sql("price < 0", 7))
        assert [
            bytes(body) for body in (await peer.pull("T", expression=None, sub_version=7)).bodies
        ] == [b"'-5'"]


async def held_pull(folder: Path, prices: list[int], hold_ms: int) -> Pulled:
    """Pull what costs 7, from the end of the queue on, while messages with these prices come."""
    answers: list[Pulled] = []
    async with (
        running_broker(folder, enablePropertyFilter=True) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as sender,
    ):
        await fill(peer)
        wanted = {"expression": "price = 7", "expression_type": "SQL92", "hold_ms": hold_ms}

        async def pull() -> None:
            answers.append(await peer.pull("T", 0, len(PRICES), **wanted))  # type: ignore[arg-type]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            for price in prices:
                await sender.send("T", b"%d" % price, properties={"price": str(price)})
    return answers[0]


async def test_a_held_pull_with_a_filter_is_woken(tmp_path: Path) -> None:
    """Fifty others leave it asleep."""
    answer = await held_pull(tmp_path, [*range(100, 150), 7], hold_ms=30_000)
    assert [bytes(body) for body in answer.bodies] == [b"7"]
    assert answer.header.next_begin_offset == len(PRICES) + 51


async def test_a_held_pull_with_a_filter_ends_in_time(tmp_path: Path) -> None:
    answer = await held_pull(tmp_path, [8], hold_ms=400)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.header.next_begin_offset == len(PRICES) + 1


async def test_an_answer_with_a_filter_is_no_larger_than_one_without(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enablePropertyFilter=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        for number in range(8):
            await peer.send("T", b"x" * 200_000, properties={"n": str(number)})
        plain = await peer.pull("T")
        found = await peer.pull("T", expression="n >= 0", expression_type="SQL92", count=2**31 - 1)
        assert len(plain.bodies) == 1
        assert len(found.bodies) <= 2
        bodies: list[bytes] = []
        offset = 0
        while offset < 8:  # on a busy machine one pull does not look at all of them
            sparse = await peer.pull(
                "T", offset=offset, expression="n IN ('0', '7')", expression_type="SQL92"
            )
            bodies += sparse.bodies
            offset = sparse.header.next_begin_offset
        assert len(bodies) == 2


async def test_the_table_outlives_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "config" / "consumerFilter.json"
    async with running_broker(tmp_path, enablePropertyFilter=True) as ready, peer_of(ready) as peer:
        await fill(peer)
        await beat(peer, sql("price > 30", 5))
        await beat(peer, sql("price = 'x'", 5), group="Other")
        await beat(peer, group="Other")
    saved = json.loads(file.read_text())["filterDataByTopic"]["T"]
    assert saved["topic"] == "T"
    assert set(saved["groupFilterData"]) == {"G", "Other"}
    mine = saved["groupFilterData"]["G"]
    assert (mine["expression"], mine["expressionType"], mine["clientVersion"]) == (
        "price > 30",
        "SQL92",
        5,
    )
    assert mine["bloomFilterData"]["bitNum"] == 112
    assert len(mine["bloomFilterData"]["bitPos"]) == 3
    assert saved["groupFilterData"]["Other"]["dead"]
    async with running_broker(tmp_path, enablePropertyFilter=True) as ready, peer_of(ready) as peer:
        await beat(peer, sql("price > 30", 5))  # the same version: the stored filter lives again
        assert len((await peer.pull("T", expression=None, sub_version=5)).bodies) == 2
    again = json.loads(file.read_text())["filterDataByTopic"]["T"]["groupFilterData"]["G"]
    assert {**again, "deadTime": 0} == {**mine, "deadTime": 0}
