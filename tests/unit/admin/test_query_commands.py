"""What the commands that find messages do when the cluster changes under them."""

from __future__ import annotations

from typing import Any

from triomq.client.admin.arguments import Values
from triomq.client.admin.commands import query
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command


class Cluster:
    """Of two brokers one has left the route since it answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        return {"broker-a": "10.0.0.1:10911"}

    async def ask(self, address: str, code: RequestCode, header: Any) -> Command:
        self.asked.append(address)
        return Command(0, body=b'{"consumeResult":"CR_SUCCESS","spentTimeMills":3}')


async def test_a_broker_that_left_the_route_is_a_failure_and_no_crash() -> None:
    cluster, failures = Cluster(), dict[str, str]()
    found = [{"offsetMsgId": "id", "topic": "orders", "brokerName": name} for name in ("broker-b", "broker-a")]
    options = Values({"consumerGroup": "billing", "clientId": "one", "topic": "orders"})
    done = await query._given_to_client(cluster, options, found, failures)  # type: ignore[arg-type]
    assert list(failures) == ["broker-b"]
    assert "not in the route of topic orders any more" in failures["broker-b"]
    assert cluster.asked == ["10.0.0.1:10911"]
    assert "consumed" not in done[0]
    assert done[1]["consumed"]["consumeResult"] == "CR_SUCCESS"
