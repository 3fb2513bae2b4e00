"""Our brokers in controller mode with RocketMQ 5.5.0: under its controller, and in one group with
its brokers, in both roles. No acknowledged message is lost.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from controlled_group import ControlledGroup, brokers_of, controlled_group
from processes import free_port, java_name_server

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "TopicTest"


async def play(group: ControlledGroup) -> None:
    """Two brokers in the set: the master is killed, comes back, and its successor is killed."""
    sent = [b"%d" % number for number in range(30)]
    for body in sent:
        await group.send_until_ok(1, TOPIC, body)
    await group.brokers[1].end(signal.SIGKILL)
    await group.settled(2, {2})
    await group.send_until_ok(2, TOPIC, b"second")
    await group.brokers[1].start()
    await group.settled(2, {1, 2})
    await group.send_until_ok(2, TOPIC, b"both")
    await group.brokers[2].end(signal.SIGKILL)
    await group.settled(1, {1})
    await group.send_until_ok(1, TOPIC, b"third")
    await group.brokers[2].start()
    await group.settled(1, {1, 2})
    found = await group.bodies(1, TOPIC, 33)
    # A message whose first answer got lost may come twice.
    assert list(dict.fromkeys(found)) == [*sent, b"second", b"both", b"third"]


@pytest.mark.loss
async def test_ours_under_java_s_controller(tmp_path: Path) -> None:
    port = free_port()
    with java_name_server(
        "5.5.0",
        tmp_path / "namesrv",
        enableControllerInNamesrv="true",
        controllerDLegerGroup="g",
        controllerDLegerPeers=f"n0-127.0.0.1:{port}",
        controllerDLegerSelfId="n0",
        controllerStorePath=tmp_path / "controller",
    ) as namesrv:
        async with brokers_of(tmp_path, namesrv, f"127.0.0.1:{port}") as group:
            for number in (1, 2):
                await group.add(number, minInSyncReplicas=1).start()
                await group.settled(1, set(range(1, number + 1)))
            await play(group)


@pytest.mark.loss
@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_mixed_pair(tmp_path: Path, first: str) -> None:
    async with controlled_group(tmp_path, 0) as group:
        ours, theirs = (1, 2) if first == "ours" else (2, 1)
        group.add(ours, minInSyncReplicas=1)
        group.add_java(theirs)
        for number in (1, 2):
            await group.brokers[number].start()
            await group.settled(1, set(range(1, number + 1)))
        await play(group)
