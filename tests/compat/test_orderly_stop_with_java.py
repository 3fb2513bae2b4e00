"""A broker is stopped in order while Java clients send: they go on with the other one, and no send fails."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import processes
import pytest

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]


COUNT = 3_000


# Not 4.9.4 with asynchronous sends: it gives up those whose broker refuses connections, whatever the broker did before.
@pytest.mark.compatible("broker stops", peer="java-client-{java_version}")
@pytest.mark.parametrize(("java_version", "mode"), [("5.5.0", "sync"), ("5.5.0", "async"), ("4.9.4", "sync")], indirect=["java_version"])
def test_no_send_fails(tmp_path: Path, java_version: str, mode: str) -> None:
    with (
        processes.our_name_server(tmp_path) as namesrv,
        processes.our_broker(tmp_path / "a", "broker-a", namesrv) as (stays, _),
        processes.our_broker(tmp_path / "b", "broker-b", namesrv) as (leaves, leaving),
    ):
        for name, address in (("broker-a", stays), ("broker-b", leaves)):
            processes.wait_registered(namesrv, name)
            with BlockingConnection(address) as connection:
                topic = CreateTopicHeader("Stopping", "TBW102", 4, 4, 6)
                assert connection.invoke(request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
        time.sleep(0.5)  # until the name server has the topic of both
        command = processes.java_command(java_version, "Peer", "send", namesrv, "Stopping", str(COUNT), "TagA", mode)
        brokers: dict[str, int] = {}
        with (tmp_path / "errors.log").open("wb") as errors:
            peer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert peer.stdout is not None
            with peer.stdout as lines:
                for line in lines:
                    fields = line.split("\t")
                    if fields[0] != "SENT":
                        continue
                    assert fields[1] == "SEND_OK", line
                    brokers[fields[4]] = brokers.get(fields[4], 0) + 1
                    if sum(brokers.values()) == 500:
                        leaving.terminate()
            code = peer.wait(60)
        assert code == 0, (tmp_path / "errors.log").read_text()[-3000:]
        assert sum(brokers.values()) == COUNT
        assert leaving.wait(30) == 0
        assert min(brokers.values()) > 0
        with BlockingConnection(stays) as connection:
            ends = [connection.invoke(request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("Stopping", queue))) for queue in range(4)]
        assert sum(end.header(OffsetResponseHeader).offset for end in ends) >= brokers["broker-a"], "what was acknowledged is stored"
