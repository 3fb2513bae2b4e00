"""The tables of what requests and calls need are complete."""

from __future__ import annotations

from unittest.mock import MagicMock

from triomq.broker.processors.handler_table import handler_table
from triomq.remoting.access.needs import BODY_NEEDS, HEADER_NEEDS, STRICTER
from triomq.remoting.messaging.call_access import CALL_NEEDS
from triomq.remoting.messaging.service import GrpcMessaging


def test_every_request_code_of_a_broker_says_what_it_needs_and_no_other_does() -> None:
    codes = set(handler_table(MagicMock()).handlers)
    assert codes == {int(code) for code in (*HEADER_NEEDS, *BODY_NEEDS)}
    assert not HEADER_NEEDS.keys() & BODY_NEEDS.keys()
    assert codes >= set(STRICTER)


async def test_every_method_of_the_grpc_service_says_what_it_needs() -> None:
    paths = GrpcMessaging(MagicMock()).table().methods
    assert {path.rpartition("/")[2] for path in paths} == set(CALL_NEEDS)
