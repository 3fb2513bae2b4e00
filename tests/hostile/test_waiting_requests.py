"""Requests that wait for a client or a name server delay no other request: locks, offsets and
statistics go on.
"""

from __future__ import annotations

from pathlib import Path

import trio
from brokers import BrokerPeer, peer_of, running_broker
from serving import make_server, until

from triomq.broker.processors.relays import UNANSWERED_MAX
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.bodies.locks import LockRequest
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader
from triomq.remoting.protocol.headers.topic import TopicHeader
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response

LOCK = LockRequest(
    consumer_group="G", client_id="one", queues=[MessageQueue("T", "broker-a", 0)]
).encode()


async def ask_what_consumers_need(peer: BrokerPeer, times: int) -> list[int]:
    """Locks, offsets and statistics in turns; the codes of the answers."""
    codes = []
    for _ in range(times):
        codes.append((await peer.call(Code.LOCK_BATCH_MQ, None, LOCK, timeout=2)).code)
        codes.append(
            (await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0), timeout=2)).code
        )
        codes.append((await peer.call(Code.GET_TOPIC_STATS_INFO, TopicHeader("T"), timeout=2)).code)
    return codes


async def test_a_consumer_that_never_answers_delays_no_lock_and_no_offset(tmp_path: Path) -> None:
    async def never(_address: str, _command: Command) -> Command:
        await trio.sleep_forever()

    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as admin,
        Connector(ConnectorConfig(), handlers={Code.GET_CONSUMER_RUNNING_INFO: never}) as silent,
    ):
        await peer.create_topic("T", 1)
        await BrokerPeer(silent, f"127.0.0.1:{ready.port}").heartbeat(
            "silent", group="G", subscriptions={"T": "*"}
        )
        refused: list[str] = []

        async def relay() -> None:
            answer = await admin.call(
                Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningHeader("G", "silent"), timeout=60
            )
            assert answer.code == ResponseCode.SYSTEM_BUSY
            refused.append(answer.remark or "")

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(relay)
            await until(lambda: len(refused) == 100 - UNANSWERED_MAX)
            assert await ask_what_consumers_need(peer, 50) == [0] * 150
            assert set(refused) == {
                (
                    f"consumer <G> <silent> has left {UNANSWERED_MAX} requests unanswered, the"
                    " maximum for one client: try again later, or restart the client"
                )
            }
            nursery.cancel_scope.cancel()


async def test_a_name_server_that_hangs_delays_changes_only(tmp_path: Path) -> None:
    """It takes the first registration and answers nothing after it; each creation waits up to three
    seconds for it.
    """
    registrations: list[Request] = []

    def register(request: Request) -> Response | Deferred:
        registrations.append(request)
        return Response() if len(registrations) == 1 else Deferred((request,))

    namesrv = make_server([Handler(Code.REGISTER_BROKER, register, header=RegisterBrokerHeader)])
    async with trio.open_nursery() as nursery:
        _, port = await nursery.start(namesrv.run)
        async with (
            running_broker(tmp_path, namesrvAddr=f"127.0.0.1:{port}") as ready,
            peer_of(ready) as peer,
            peer_of(ready) as admin,
        ):
            created: list[str] = []

            async def create(number: int) -> None:
                await admin.create_topic(f"T{number}" if number else "T", 1)
                created.append(f"T{number}")

            async with trio.open_nursery() as creating:
                for number in range(10):
                    creating.start_soon(create, number)
                await trio.sleep(0.2)
                assert created == []
                with trio.fail_after(2):
                    assert await ask_what_consumers_need(peer, 50) == [0] * 150
                assert created == []
                await until(lambda: len(created) == 10)  # they wait side by side
        nursery.cancel_scope.cancel()
