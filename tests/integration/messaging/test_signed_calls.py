"""A hook of the broker verifies the signatures of gRPC clients as it does those of others."""

from __future__ import annotations

from pathlib import Path

from grpc_broker import grpc_broker

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.request_hooks import VerifySignature
from triomq.remoting.server.requests import Request

Code = pb.Code
VERIFY = VerifySignature({"shop": "secret"}.get)


def verify_calls(request: Request) -> None:
    """Verify what looks like a gRPC client's request; the test's own peer does not sign."""
    if request.code != 17:
        VERIFY(request)


async def test_signed_calls_are_served_and_others_are_refused(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, hooks=(verify_calls,)) as broker:
        known = broker.client(credentials=("shop", "secret"))
        sent = await known.send(known.message(b"one"))
        assert sent.status.code == Code.OK, sent
        status, (message,) = await known.receive()
        assert status.code == Code.OK
        assert (await known.acknowledge(message)).status.code == Code.OK
        for credentials in (None, ("shop", "wrong"), ("stranger", "secret")):
            client = broker.client(credentials=credentials)
            sent = await client.send(client.message(b"two"))
            assert sent.status.code == Code.UNAUTHORIZED, (credentials, sent)
            status, _ = await client.receive()
            assert status.code == Code.UNAUTHORIZED, credentials


async def test_a_client_that_changes_its_keys_is_known_by_the_new_ones(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, hooks=(verify_calls,)) as broker:
        client = broker.client(credentials=("shop", "wrong"))
        assert (await client.send(client.message(b"x"))).status.code == Code.UNAUTHORIZED
        client.credentials = ("shop", "secret")
        assert (await client.send(client.message(b"x"))).status.code == Code.OK


async def test_a_hook_sees_the_address_of_each_call(tmp_path: Path) -> None:
    """Also of the second connection of a client, which is how a stranger with its id comes."""
    seen: list[tuple[str, int]] = []

    def note(request: Request) -> None:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            seen.append(request.connection.peer)

    async with grpc_broker(tmp_path, hooks=(note,)) as broker:
        first = broker.client("one")
        second = broker.client("one")
        for client in (first, second, first):
            assert (await client.send(client.message(b"x"))).status.code == Code.OK
    assert len(set(seen)) == 2
    assert seen[0] == seen[2]
