"""What may be stored and what may not: the same sends at a Java broker and at ours, at the edge of
every limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import access_run
import processes
import pytest
import trio
from brokers import BrokerPeer
from processes import (
    java_command,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

VERSION = "5.5.0"
BODY_MAX = 100_000
ADDED = "UNIQ_KEY.U.a..MSG_REGION.DefaultRegion.TRACE_ON.true.CLUSTER.TestCluster."
ROOM = 32_767 - len(ADDED)
"""What the value of property a may have, after all that stands beside it in the record."""
BATCH = {"code": Code.SEND_BATCH_MESSAGE, "batch": True, "properties": {"UNIQ_KEY": "B"}}
ELEMENT_BYTES = 22
BATCH_CASES = ("a batch of one byte too much", "an empty batch", "a broken batch")
"""Java answers these with the text of an exception (code 1); here they are illegal messages like
any other (code 13).
"""


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "the largest body", {"body": b"x" * BODY_MAX}
    yield "a body of one byte too much", {"body": b"x" * (BODY_MAX + 1)}
    for extra, name in (
        (0, "the longest properties"),
        (1, "properties of one byte too much"),
        (2, "properties of two bytes too much"),
    ):
        yield name, {"body": b"x", "properties": {"UNIQ_KEY": "U", "a": "y" * (ROOM + extra)}}
    for extra, name in ((0, "the largest batch"), (1, BATCH_CASES[0])):
        sizes = (40_000, BODY_MAX - 40_000 - 2 * ELEMENT_BYTES + extra)
        yield name, {"body": encode_batch((0, b"x" * size, b"") for size in sizes), **BATCH}
    yield BATCH_CASES[1], {"body": b"", **BATCH}
    yield BATCH_CASES[2], {"body": b"x" * 32, **BATCH}
    yield (
        "a delayed batch",
        {"body": encode_batch([(0, b"x", b"")]), **BATCH, "properties": {"DELAY": "1"}},
    )
    yield "a message that calls itself an inner batch", {"body": b"x", "sys_flag": 0x80}
    yield "a message that counts itself", {"body": b"x", "properties": {"INNER_NUM": "2"}}
    yield "a message to be unwrapped", {"body": b"x", "sys_flag": 0x40}
    yield "any queue", {"body": b"x", "queue_id": -1}
    yield "a queue that is not there", {"body": b"x", "queue_id": 4}
    yield "the longest topic", {"topic": "t" * 127, "body": b"x"}
    yield "a topic that is too long", {"topic": "t" * 128, "body": b"x"}
    yield "no properties", {"body": b"x", "properties": {}}


def expected(found: dict[str, int]) -> int:
    """Return how many messages of a topic the codes say that it has."""
    accepted = {name for name, code in found.items() if code == 0} - {"the longest topic"}
    return len(accepted | {"one more in the largest batch"})


async def count(peer: BrokerPeer) -> int:
    ends = [
        await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader("T", queue)) for queue in range(4)
    ]
    return sum(end.header(OffsetResponseHeader).offset for end in ends)


def answers(address: str) -> tuple[dict[str, int], int]:
    """Case -> code of the answer; and how many messages the topic has in the end."""

    async def ask() -> tuple[dict[str, int], int]:
        found = {}
        async with Connector(ConnectorConfig(hooks=access_run.HOOKS)) as connector:
            peer = BrokerPeer(connector, address)
            await peer.create_topic("T", 4)
            for name, case in cases():
                found[name] = (await peer.send_raw(**{"topic": "T", **case})).code
            with trio.move_on_after(60):
                while await count(peer) < expected(found):  # Java's queues are built a moment later
                    await trio.sleep(0.1)
            await trio.sleep(0.5)  # so that one too many is seen
            return found, await count(peer)

    return trio.run(ask)


@pytest.mark.loss
@pytest.mark.compatible("limits", peer="java-server-5.5.0")
def test_the_same_messages_are_stored_and_refused(tmp_path: Path) -> None:
    if processes.java_home(VERSION) is None:
        pytest.skip(f"the Java peers {VERSION} are not installed: run `make peers`")
    home, port = tmp_path / "java", processes.free_port(span=2)
    write_logback(home)
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        conf = write_java_conf(home, "broker-java", namesrv, port, maxMessageSize=BODY_MAX)
        with (
            our_broker(tmp_path / "ours", "broker-ours", namesrv, maxMessageSize=BODY_MAX) as (
                address,
                _,
            ),
            running(
                java_command(
                    VERSION, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=home
                ),
                home / "broker.log",
                port=port,
            ),
        ):
            wait_registered(namesrv, "broker-ours")
            wait_registered(namesrv, "broker-java")
            (java, stored), (ours, stored_here) = answers(f"127.0.0.1:{port}"), answers(address)
    assert {name: java[name] for name in BATCH_CASES} == dict.fromkeys(BATCH_CASES, 1)
    assert {name: ours[name] for name in BATCH_CASES} == dict.fromkeys(BATCH_CASES, 13)
    assert {name: code for name, code in ours.items() if name not in BATCH_CASES} == {
        name: code for name, code in java.items() if name not in BATCH_CASES
    }
    assert set(ours.values()) == {0, 13, 29}
    assert stored == stored_here == expected(ours)
