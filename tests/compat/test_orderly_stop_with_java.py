"""A broker is stopped in order while Java and Go clients send: they go on with the other one, and
no send fails.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import access_run
import attrs
import processes
import pytest
from foreign_clients import foreign_client

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

COUNT = 3_000
TOPIC = "Stopping"


@attrs.frozen
class Pair:
    """Two brokers of ours with one topic: broker-a, which stays, and broker-b, which leaves."""

    namesrv: str
    stays: str
    leaves: str
    leaving: subprocess.Popen[bytes]

    def check(self, brokers: Counter[str]) -> None:
        """Check how many sends each of them has acknowledged."""
        assert brokers.total() == COUNT
        assert self.leaving.wait(30) == 0
        assert min(brokers["broker-a"], brokers["broker-b"]) > 0
        assert stored(self.stays) >= brokers["broker-a"], "what was acknowledged is stored"


def stored(broker: str) -> int:
    with BlockingConnection(broker, hooks=access_run.HOOKS) as connection:
        ends = [
            connection.invoke(request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, queue)))
            for queue in range(4)
        ]
    return sum(end.header(OffsetResponseHeader).offset for end in ends)


def brokers_of(namesrv: str) -> int:
    with BlockingConnection(namesrv) as connection:
        answer = connection.invoke(
            request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(TOPIC))
        )
    return len(TopicRoute.decode(answer.body).broker_datas) if answer.code == 0 else 0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    # On a busy machine sends wait longer than 200 ms, and Java's give up what is refused for that.
    patient = {"waitTimeMillsInSendQueue": 10_000}
    with (
        processes.our_name_server(tmp_path) as namesrv,
        processes.our_broker(tmp_path / "a", "broker-a", namesrv, **patient) as (stays, _),
        processes.our_broker(tmp_path / "b", "broker-b", namesrv, **patient) as (leaves, leaving),
    ):
        for name, address in (("broker-a", stays), ("broker-b", leaves)):
            processes.wait_registered(namesrv, name)
            with BlockingConnection(address, hooks=access_run.HOOKS) as connection:
                topic = CreateTopicHeader(TOPIC, "TBW102", 4, 4, 6)
                assert (
                    connection.invoke(request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
                )
        deadline = time.monotonic() + 60
        while brokers_of(namesrv) < 2:
            assert time.monotonic() < deadline, "the name server has the topic of both"
            time.sleep(0.05)
        yield Pair(namesrv, stays, leaves, leaving)


# Not 4.9.4 with asynchronous sends: it gives up those whose broker refuses connections, whatever
# the broker did before.
@pytest.mark.loss
@pytest.mark.compatible("broker stops", peer="java-client-{java_version}")
@pytest.mark.parametrize(
    ("java_version", "mode"),
    [("5.5.0", "sync"), ("5.5.0", "async"), ("4.9.4", "sync")],
    indirect=["java_version"],
)
def test_no_send_fails(tmp_path: Path, pair: Pair, java_version: str, mode: str) -> None:
    command = processes.java_command(
        java_version, "Peer", "send", pair.namesrv, TOPIC, str(COUNT), "TagA", mode
    )
    brokers: Counter[str] = Counter()
    with (tmp_path / "errors.log").open("wb") as errors:
        peer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert peer.stdout is not None
        with peer.stdout as lines:
            for line in lines:
                fields = line.split("\t")
                if fields[0] != "SENT":
                    continue
                assert fields[1] == "SEND_OK", line
                brokers[fields[4]] += 1
                if brokers.total() == 500:
                    pair.leaving.terminate()
        code = peer.wait(60)
    assert code == 0, (tmp_path / "errors.log").read_text()[-3000:]
    pair.check(brokers)


@pytest.mark.loss
@pytest.mark.compatible("broker stops", peer="go-client")
def test_no_send_of_the_go_client_fails(tmp_path: Path, pair: Pair) -> None:
    if not (processes.PEERS / "go" / "peer").exists():
        pytest.skip("the Go client is not installed: run `make peers`")
    with (
        foreign_client("go-client", pair.namesrv, tmp_path) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        sending = thread.submit(client.send, TOPIC, "retrying", COUNT)
        while stored(pair.leaves) < 250 and not sending.done():
            time.sleep(0.02)
        pair.leaving.terminate()
        sent = sending.result()
    assert {one.status for one in sent} == {"SEND_OK"}
    pair.check(Counter(one.broker for one in sent))
