"""The service on the page about gRPC, called by grpcio."""

from __future__ import annotations

import grpc
import pytest
import trio
from grpc_serving import channel_to, in_thread
from pages import one

from triomq.remoting.grpc.grpc_server import GrpcServer


async def test_the_service_of_the_page() -> None:
    names: dict[str, object] = {}
    exec(one("docs/architecture/grpc.md", "Greeter"), names)
    server = names["server"]
    assert isinstance(server, GrpcServer)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async with channel_to(server) as channel:
            greet = channel.unary_unary("/demo.Greeter/Greet")
            answer, call = await in_thread(greet.with_call, b"Trio", timeout=20)
            assert answer == b"Hello, Trio"
            assert ("x-length", "4") in call.trailing_metadata()
            with pytest.raises(grpc.RpcError) as caught:
                await in_thread(greet, b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        nursery.cancel_scope.cancel()
