"""Heartbeats of the second form (a fingerprint in place of subscriptions that the broker has) from
Java 5.5.0's client.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hooked_cluster import hooked_cluster
from processes import java_home, java_peer

from triomq.client.sdk.producer import Producer
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.requests import Request

pytestmark = pytest.mark.compat
COUNT = 20


@pytest.mark.loss
@pytest.mark.compatible("heartbeat V2", "tag filter", peer="java-client-5.5.0")
async def test_java_clients_send_their_subscriptions_once(tmp_path: Path) -> None:
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    beats: list[HeartbeatData] = []

    def note(request: Request) -> None:
        if request.code == RequestCode.HEART_BEAT:
            beats.append(HeartbeatData.decode(request.body))

    async with hooked_cluster(tmp_path, [note]) as namesrv:
        got: list[list[str]] = []

        async def consume() -> None:
            define = ["com.rocketmq.heartbeat.v2=true", "peer.heartbeatMillis=200"]
            lines = await trio.to_thread.run_sync(
                lambda: java_peer(
                    "5.5.0",
                    "consume",
                    namesrv,
                    "V2",
                    "second",
                    "TagA",
                    str(COUNT),
                    "60",
                    define=define,
                )
            )
            got.extend(line for line in lines if line[0] == "GOT")

        async with Producer(namesrv, group="p") as producer, trio.open_nursery() as nursery:
            await producer.send("V2", b"0", tag="TagA")
            nursery.start_soon(consume)
            with trio.fail_after(60):
                while not any(beat.without_subscriptions for beat in beats):
                    await trio.sleep(0.02)
            # From here on the group is known by its fingerprint only; its filter still holds.
            for number in range(1, COUNT):
                await producer.send("V2", b"%d" % number, tag="TagA")
                await producer.send("V2", b"no", tag="TagB")
    assert {line[2] for line in got} == {"TagA"}
    assert {line[-1] for line in got} == {str(number) for number in range(COUNT)}
    full = [beat for beat in beats if beat.consumers and not beat.without_subscriptions]
    short = [beat for beat in beats if beat.without_subscriptions]
    assert {beat.fingerprint for beat in short} <= {beat.fingerprint for beat in full}
    assert 0 not in {beat.fingerprint for beat in short}
