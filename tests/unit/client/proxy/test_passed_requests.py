"""Which client gets a request of a broker."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from stored_records import properties_text

from triomq.client.proxy.joined_clients import JoinedClients
from triomq.client.proxy.passed_requests import PassedRequests
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader
from triomq.remoting.protocol.headers.transaction import CheckTransactionHeader
from triomq.remoting.protocol.record import encode_host, encode_record

HOST = encode_host(bytes([127, 0, 0, 1]), 10911)


@attrs.define(eq=False)
class Service:
    """Clients by id, with or without a stream, and what they were asked."""

    streams: dict[str, object | None]
    taken: list[tuple[str, Command]] = attrs.field(factory=list)

    @property
    def clients(self) -> Any:
        known = {
            name: SimpleNamespace(client_id=name, commands=commands)
            for name, commands in self.streams.items()
        }
        return SimpleNamespace(by_id=known)

    @property
    def telemetry(self) -> Any:
        def take_request(client: Any, command: Command) -> None:
            self.taken.append((client.client_id, command))

        return SimpleNamespace(take_request=take_request)


def passed_to(service: Service) -> PassedRequests:
    joined = JoinedClients()
    for name in service.streams:
        data = HeartbeatData(
            client_id=name, producers=[ProducerData("Pay")], consumers=[ConsumerData(group="G")]
        )
        joined.put(data, 1)
    joined.put(HeartbeatData(client_id="gone", producers=[ProducerData("Pay")]), 1)
    anything: Any = service
    return PassedRequests(anything, joined, {"a:1": "broker-a"}.get)


def check(broker_name: str | None, group: str = "Pay") -> Command:
    half = encode_record(
        topic="Pay",
        queue_id=0,
        queue_offset=1,
        log_offset=2,
        body=b"half",
        properties=properties_text({"PGROUP": group, "UNIQ_KEY": "01"}),
        born_timestamp=3,
        born_host=HOST,
        store_timestamp=4,
        store_host=HOST,
    )
    header = CheckTransactionHeader(1, 2, "01", "01", broker_name=broker_name)
    return new_request(RequestCode.CHECK_TRANSACTION_STATE, header, half, oneway=True)


def asked(service: Service) -> list[tuple[str, str | None]]:
    return [
        (name, command.header(CheckTransactionHeader).broker_name)
        for name, command in service.taken
    ]


@pytest.mark.parametrize("given", [None, ""])
def test_a_check_without_the_broker_s_name_gets_that_of_the_connection(given: str | None) -> None:
    service = Service({"1": object()})
    passed = passed_to(service)
    passed.check("a:1", check(given))
    passed.check("elsewhere:1", check(given))
    passed.check("elsewhere:1", check("broker-b"))
    assert asked(service) == [("1", "broker-a"), ("1", ""), ("1", "broker-b")]


def test_clients_with_a_stream_take_turns_and_others_are_not_asked() -> None:
    service = Service({"1": object(), "2": None, "3": object()})
    passed = passed_to(service)
    for _ in range(100):
        passed.check("a:1", check("broker-a"))
    assert set(Counter(name for name, _ in service.taken)) == {"1", "3"}
    service.taken.clear()
    passed.check("a:1", check("broker-a", group="Other"))
    service.streams = {"1": None, "2": None, "3": None}
    passed.check("a:1", check("broker-a"))
    assert service.taken == []


async def test_a_question_that_no_consumer_can_answer_is_refused() -> None:
    passed = passed_to(Service({"1": None}))
    command = new_request(
        RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningHeader("G", "proxy")
    )
    with pytest.raises(Rejected) as caught:
        await passed.running("a:1", command)
    assert caught.value.code == ResponseCode.CONSUMER_NOT_ONLINE
    await trio.lowlevel.checkpoint()
