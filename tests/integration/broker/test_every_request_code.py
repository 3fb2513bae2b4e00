"""Every request code, with all fields and with none, with good, empty and senseless bodies: servers
answer and go on, no handler breaks.
"""

from __future__ import annotations

import logging

import pytest
import trio
from body_catalogue import BODIES
from header_catalogue import HEADERS
from java_bodies import filled
from serving import FAIL, serving

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.rpc_hooks import Serialisation
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.fields import codec_of
from triomq.testing import local_cluster

# Made-up brokers would stay in the routes of the cluster under test.
LEFT_OUT = {RequestCode.REGISTER_BROKER}


def questions(code: int) -> list[Command]:
    pair = HEADERS.get(code)
    body = BODIES[code].request if code in BODIES else None
    found = [
        Command(code),
        Command(code, ext={"topic": "", "queueId": "-1"}, body=b"\x00garbage"),
        Command(code, body=b"{}"),
        Command(code, body=b"[1]"),
    ]
    if pair is not None and pair.request is not None:
        for number in (0, 1, -1, 2**31 - 1):
            values = {
                field.attribute: {str: "x", bool: True, int: number}[field.kind]
                for field in codec_of(pair.request).fields
            }
            found.append(request(code, pair.request(**values), b""))
            found.append(request(code, pair.request(**values), b"\x01\x02"))
    if isinstance(body, type) and issubclass(body, JsonBody):
        found.append(Command(code, body=filled(body).encode()))
    return found


@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_every_request_code_is_answered(
    form: SerializeType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with local_cluster() as cluster:
        await cluster.create_topic("x", queues=2)

        def ask(address: str) -> int:
            count = 0
            with BlockingConnection(address, hooks=[Serialisation(form)]) as connection:
                for code in sorted(set(RequestCode) - LEFT_OUT):
                    for question in questions(code):
                        answer = connection.invoke(question, timeout=10)
                        assert answer.is_response
                        count += 1
            return count

        for address in (cluster.brokers[0].address, cluster.namesrvs[0].address):
            assert await trio.to_thread.run_sync(ask, address) > 800
    assert broken_handlers(caplog) == []


def broken_handlers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_handler_that_breaks_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:

        def ask() -> Command:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                return connection.invoke(Command(FAIL, body=b"x"))

        assert (await trio.to_thread.run_sync(ask)).code == ResponseCode.SYSTEM_ERROR
    assert len(broken_handlers(caplog)) == 1
