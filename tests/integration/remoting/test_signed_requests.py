"""Signed requests through real sockets: both kinds of clients, both serialisations, a hook that
verifies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from hooked_cluster import hooked_cluster
from mqadmin_calls import failed, mqadmin
from serving import BOTH_FORMS, ECHO, RawPeer, serving

from triomq import Credentials, Producer, ProducerSettings, PullConsumer
from triomq.client import ClientSettings, ConsumeFrom, ConsumerSettings
from triomq.client.core.errors import SendFailed
from triomq.remoting.client.access import Access, read_credentials
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.rpc_hooks import Signing
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode, SerializeType
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.request_hooks import VerifySignature
from triomq.remoting.server.requests import Request, Response

ME = Credentials(access_key="rocketmq2", secret_key="12345678")
VERIFY = VerifySignature({"rocketmq2": "12345678"}.get)


@pytest.mark.parametrize("serialize", BOTH_FORMS)
async def test_signed_requests_pass_and_others_are_refused(serialize: SerializeType) -> None:
    async with serving(request_hooks=[VERIFY]) as server:
        address = f"127.0.0.1:{server.port}"

        def command() -> Command:
            return Command(
                ECHO, body=b"body", ext={"topic": "Café", "queueId": "3"}, serialize=serialize
            )

        cases = {
            None: "No accessKey is configured",
            ME: None,
            Credentials(
                access_key="rocketmq2", secret_key="wrong"
            ): "Check signature failed for accessKey=rocketmq2",
            Credentials(
                access_key="stranger", secret_key="12345678"
            ): "No acl config for accessKey=stranger",
        }
        for credentials, remark in cases.items():
            access = Access(credentials=credentials)
            async with Connector(ConnectorConfig(**access.options())) as connector:
                answer = await connector.invoke(address, command())
                await connector.oneway(address, command())

            def blocking(access: Access = access) -> Command:
                with BlockingConnection(address, **access.options()) as connection:
                    return connection.invoke(command())

            for got in (answer, await trio.to_thread.run_sync(blocking)):
                assert got.serialize == serialize
                if remark is None:
                    assert (got.code, bytes(got.body)) == (0, b"body")
                else:
                    assert got.code == ResponseCode.NO_PERMISSION
                    assert remark in (got.remark or "")


async def test_hooks_run_in_order_before_the_pool_and_a_failing_hook_lets_nothing_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []

    def first(request: Request) -> None:
        seen.append(f"first {request.code}")
        if request.body == b"refuse":
            raise Rejected(ResponseCode.NO_PERMISSION, "not you")

    def second(request: Request) -> None:
        seen.append("second")
        if request.body == b"crash":
            raise ZeroDivisionError("a bug")

    def handler(request: Request) -> Response:
        seen.append("handler")
        return Response(0)

    async with (
        serving([Handler(9801, handler)], request_hooks=[first, second]) as server,
        await RawPeer.open(server) as peer,
    ):
        assert (await peer.call(9801)).code == 0
        assert seen == ["first 9801", "second", "handler"]
        seen.clear()
        refused = await peer.call(9801, b"refuse")
        assert (refused.code, refused.remark, seen) == (
            ResponseCode.NO_PERMISSION,
            "not you",
            ["first 9801"],
        )
        crashed = [await peer.call(9801, b"crash") for _ in range(3)]
        assert {answer.code for answer in crashed} == {ResponseCode.SYSTEM_ERROR}
        assert "handler" not in seen
        # A batch of several: only admitted requests reach the pool, and each gets its answer.
        frames = [peer.frame(9801, body) for body in (b"", b"refuse", b"", b"refuse")]
        await peer.send(b"".join(frame for _, frame in frames))
        codes = [(await peer.answer(opaque)).code for opaque, _ in frames]
        assert codes == [0, ResponseCode.NO_PERMISSION, 0, ResponseCode.NO_PERMISSION]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_hooks_of_a_client_see_requests_and_answers() -> None:
    seen: list[tuple[str, int]] = []

    class Watch:
        def before_request(self, address: str, command: Command) -> None:
            seen.append(("before", command.code))

        def after_response(self, address: str, command: Command, answer: Command) -> None:
            seen.append(("after", answer.opaque - command.opaque))

    async with serving() as server:
        address = f"127.0.0.1:{server.port}"
        async with Connector(ConnectorConfig(hooks=[Watch()])) as connector:
            await connector.invoke(address, Command(ECHO))
            await connector.oneway(address, Command(ECHO))
        assert seen == [("before", ECHO), ("after", 0), ("before", ECHO)]
        seen.clear()

        def blocking() -> None:
            with BlockingConnection(address, hooks=[Watch(), Signing(ME)]) as connection:
                first, second = connection.send(Command(ECHO)), connection.send(Command(ECHO))
                connection.receive(second)
                connection.receive(first)

        await trio.to_thread.run_sync(blocking)
        assert seen == [("before", ECHO), ("before", ECHO), ("after", 0), ("after", 0)]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a name server whose broker requires signatures."""
    async with hooked_cluster(tmp_path / "cluster", [VERIFY]) as address:
        yield address


async def test_the_sdk_and_mqadmin_sign(
    tmp_path: Path, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesrv = guarded
    file = tmp_path / "tools.yml"
    file.write_text('accessKey: rocketmq2\nsecretKey: "12345678"\n')
    assert failed(
        await mqadmin("updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", "Signed"),
        1,
        "No accessKey is configured",
    )
    done = await mqadmin(
        "updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", "Signed", "--credentials", file
    )
    assert done.code == 0, done
    client = ClientSettings(credentials=ME)
    async with Producer(
        namesrv, group="signers", settings=ProducerSettings(client=client)
    ) as producer:
        await producer.send("Signed", b"hello")
    settings = ConsumerSettings(client=client)
    async with PullConsumer(
        namesrv,
        group="readers",
        subscriptions="Signed",
        consume_from=ConsumeFrom.FIRST,
        settings=settings,
    ) as consumer:
        with trio.fail_after(20):
            while not (messages := await consumer.poll()):
                pass
    assert [bytes(message.body) for message in messages] == [b"hello"]
    with pytest.raises(SendFailed, match="No accessKey"):
        async with Producer(namesrv, group="nobody") as producer:
            await producer.send("Signed", b"hello")
    monkeypatch.setenv("TRIOMQ_CREDENTIALS", str(file))
    async with Producer(namesrv, group="environment") as producer:
        await producer.send("Signed", b"hello")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accessKey: me\n", "write the lines accessKey: NAME and secretKey: SECRET"),
        ("accessKey: \\u12\n", "malformed escape"),
        (None, "cannot be read"),
    ],
)
def test_an_unusable_credentials_file_is_named(
    tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "tools.yml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_credentials(file)
    assert str(file) in str(caught.value)
