"""Commands that find messages in a cluster that changes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from triomq.client.admin.arguments import Values
from triomq.client.core.errors import BrokerError, RequestTimeout
from triomq.client.mqadmin.commands import query
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command


class Cluster:
    """An Admin with brokers by address → the error that a request raises; None: the broker
    answers.
    """

    def __init__(self, **brokers: Exception | None) -> None:
        self.brokers = {name.replace("_", "-"): error for name, error in brokers.items()}
        self.asked: list[str] = []

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        return {name: f"{name}:10911" for name in self.brokers}

    async def ask(self, address: str, code: RequestCode, header: Any) -> Command:
        self.asked.append(address)
        error = self.brokers[address.partition(":")[0]]
        if error is not None:
            raise error
        return Command(0, body=b'{"consumeResult":"CR_SUCCESS","spentTimeMills":3}')


OPTIONS = Values({"consumerGroup": "billing", "clientId": "one", "topic": "orders"})


def found() -> list[dict[str, Any]]:
    """Return a message of each broker."""
    return [
        {"offsetMsgId": "id", "topic": "orders", "brokerName": name}
        for name in ("broker-b", "broker-a")
    ]


async def test_a_broker_that_left_the_route_is_a_failure_not_a_crash() -> None:
    cluster, failures = Cluster(broker_a=None), dict[str, str]()
    done = found()
    await query._consumed_by_client(cluster, OPTIONS, done, failures)  # type: ignore[arg-type]
    assert list(failures) == ["broker-b"]
    assert "not in the route of topic orders any more" in failures["broker-b"]
    assert cluster.asked == ["broker-a:10911"]
    assert "consumed" not in done[0]
    assert done[1]["consumed"]["consumeResult"] == "CR_SUCCESS"


async def test_a_broker_that_does_not_answer_does_not_stop_the_others() -> None:
    cluster, failures = (
        Cluster(
            broker_a=None, broker_b=RequestTimeout("broker-b:10911", "CONSUME_MESSAGE_DIRECTLY", 5)
        ),
        dict[str, str](),
    )
    done = found()
    await query._consumed_by_client(cluster, OPTIONS, done, failures)  # type: ignore[arg-type]
    assert list(failures) == ["broker-b"]
    assert "consumed" not in done[0]
    assert done[1]["consumed"]["consumeResult"] == "CR_SUCCESS"


async def test_a_refusal_ends_the_command() -> None:
    """The broker does not know the client, so it would refuse the next message, too."""
    cluster = Cluster(
        broker_a=None,
        broker_b=BrokerError(1, "no such client", "broker-b:10911", "CONSUME_MESSAGE_DIRECTLY"),
    )
    with pytest.raises(BrokerError, match="no such client"):
        await query._consumed_by_client(cluster, OPTIONS, found(), {})  # type: ignore[arg-type]
    assert cluster.asked == ["broker-b:10911"]
