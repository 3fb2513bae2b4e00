"""Replies that a broker pushes to requesters (324, 325, 326), over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.app import BrokerReady
from triomq.broker.services import pushed_replies
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.send import ReplyMessageHeader
from triomq.remoting.protocol.message_properties import parse_properties

TOPIC = "TestCluster_REPLY_TOPIC"


@asynccontextmanager
async def requester(
    ready: BrokerReady, client_id: str, code: int | None = 0
) -> AsyncIterator[list[Command]]:
    """Run a producer that answers pushed replies with ``code``, or never; yield those replies."""
    pushed: list[Command] = []

    async def answer(address: str, command: Command) -> Command:
        pushed.append(command)
        if code is None:
            await trio.sleep_forever()
        return response_to(command, code or 0)

    handlers = {Code.PUSH_REPLY_MESSAGE_TO_CLIENT: answer}
    async with Connector(ConnectorConfig(), handlers=handlers) as connector:
        await BrokerPeer(connector, f"127.0.0.1:{ready.port}").heartbeat(
            client_id, producers=("P",)
        )
        yield pushed


async def reply(
    peer: BrokerPeer, client_id: str | None, body: bytes = b"pong", **more: object
) -> Command:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "id", "UNIQ_KEY": "7F" * 16}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    more.setdefault("code", Code.SEND_REPLY_MESSAGE_V2)
    return await peer.send_raw(TOPIC, body, properties=properties, **more)  # type: ignore[arg-type]


@pytest.mark.feature("162a")
@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_and_stored(tmp_path: Path, code: Code) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as replier:
        async with requester(ready, "one") as one, requester(ready, "two") as two:
            answer = await reply(replier, "two", code=code)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.ext is not None
            assert answer.ext["queueOffset"] == "0"
            assert (len(one), len(two)) == (0, 1)
            header = two[0].header(ReplyMessageHeader)
            assert bytes(two[0].body) == b"pong"
            properties = parse_properties(header.properties or "")
            assert properties.keys() == {
                *("MSG_TYPE", "CORRELATION_ID", "UNIQ_KEY", "REPLY_TO_CLIENT"),
                *("MSG_REGION", "TRACE_ON", "PUSH_REPLY_TIME"),
            }
        pulled = await replier.pull(TOPIC, 0, 0)
        (message,) = pulled.messages
        assert (message.body, message.offset_message_id) == (b"pong", answer.ext["msgId"])
        assert message.properties.keys() == properties.keys() - {"PUSH_REPLY_TIME"}


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, storeReplyMessageEnable=False) as ready,
        peer_of(ready) as replier,
        requester(ready, "one") as pushed,
    ):
        answer = await reply(replier, "one", queue_id=-1)
        assert answer.ext is not None
        assert [answer.ext[name] for name in ("msgId", "queueId", "queueOffset")] == ["0"] * 3
        assert len(pushed) == 1
        assert (await replier.pull(TOPIC, 0, 0)).messages == []


@pytest.mark.feature("162c")
async def test_what_is_not_delivered_is_refused_in_java_s_words_and_stored(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as replier,
        requester(ready, "refuses", code=1),
    ):
        for client_id, remark in (
            (None, "reply message properties[REPLY_TO_CLIENT] is null"),
            ("gone", "push reply message fail, channel of <gone> not found."),
            ("refuses", "push reply message to refusesfail."),
        ):
            answer = await reply(replier, client_id)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
            assert answer.ext is not None
            assert {"MSG_REGION", "TRACE_ON", "msgId"} <= answer.ext.keys()
        assert len((await replier.pull(TOPIC, 0, 0)).messages) == 3
        batch = await reply(replier, "refuses", batch=True)
        assert (batch.code, "one plain message" in (batch.remark or "")) == (
            ResponseCode.MESSAGE_ILLEGAL,
            True,
        )
        illegal = await replier.send_raw("no topic", code=Code.SEND_REPLY_MESSAGE_V2)
        assert illegal.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.feature("162c")
async def test_a_silent_requester_blocks_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed_replies, "PUSH_SECONDS", 1.0)
    answers: list[Command] = []
    async with (
        running_broker(tmp_path, repliesPerClientMax=3) as ready,
        peer_of(ready) as replier,
        requester(ready, "silent", code=None) as silent,
        requester(ready, "quick") as quick,
    ):

        async def ask() -> None:
            answers.append(await reply(replier, "silent"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            while len(silent) < 3:
                await trio.sleep(0.01)
            busy = await reply(replier, "silent")
            assert busy.code == ResponseCode.SYSTEM_BUSY
            assert "<silent> has left 3 replies unanswered" in (busy.remark or "")
            with trio.fail_after(0.5):  # before the silent one's time is over
                for _ in range(20):
                    assert (await reply(replier, "quick")).code == ResponseCode.SUCCESS
            assert (len(quick), answers) == (20, [])
        assert [(answer.code, answer.remark) for answer in answers] == [
            (ResponseCode.SYSTEM_ERROR, "push reply message to silentfail.")
        ] * 3
        assert (await reply(replier, "quick")).code == ResponseCode.SUCCESS


@pytest.mark.feature("162c")
async def test_the_sender_learns_at_once_that_the_requester_is_killed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as replier:
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await reply(replier, "killed"))

        with trio.fail_after(5):  # a push waits for up to 10 s
            async with trio.open_nursery() as nursery:
                async with requester(ready, "killed", code=None) as pushed:
                    nursery.start_soon(ask)
                    while not pushed:
                        await trio.sleep(0.01)
        (answer,) = answers
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "push reply message to killedfail.",
        )
