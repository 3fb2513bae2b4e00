"""Java clients with the VIP channel (the default of old releases): they send to the broker's fast
port, and pull from the main one.
"""

from __future__ import annotations

import access_run
import pytest
from processes import java_peer, our_broker, our_name_server, wait_registered

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

VIP = ("com.rocketmq.sendMessageWithVIPChannel=true",)
COUNT = 20


def runtime(address: str) -> dict[str, str]:
    with BlockingConnection(address, hooks=access_run.HOOKS) as connection:
        return KvTable.decode(
            bytes(connection.invoke(request(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        ).table


@pytest.mark.loss
@pytest.mark.compatible("VIP channel", peer="java-client-{java_version}")
def test_java_sends_to_the_fast_port_and_consumes(
    tmp_path_factory: pytest.TempPathFactory, java_version: str
) -> None:
    folder = tmp_path_factory.mktemp("vip")
    with (
        our_name_server(folder) as namesrv,
        our_broker(folder, "broker-vip", namesrv) as (address, _process),
    ):
        wait_registered(namesrv, "broker-vip")
        sent = [
            line
            for line in java_peer(
                java_version, "send", namesrv, "Vip", str(COUNT), "TagA", "sync", define=VIP
            )
            if line[0] == "SENT"
        ]
        assert [line[1] for line in sent] == ["SEND_OK"] * COUNT
        after_sends = int(runtime(address)["connectionsAccepted_fast"])
        assert after_sends >= 1
        got = [
            line
            for line in java_peer(
                java_version,
                "consume",
                namesrv,
                "Vip",
                "vip-group",
                "*",
                str(COUNT),
                "60",
                define=VIP,
            )
            if line[0] == "GOT"
        ]
        assert {line[1] for line in got} == {line[2] for line in sent}
        assert (
            int(runtime(address)["connectionsAccepted_fast"]) > after_sends
        )  # offsets go there, too
        without = int(runtime(address)["connectionsAccepted_fast"])
        java_peer(
            java_version,
            "send",
            namesrv,
            "Vip",
            "3",
            "TagA",
            "sync",
            define=("com.rocketmq.sendMessageWithVIPChannel=false",),
        )
        assert int(runtime(address)["connectionsAccepted_fast"]) == without
