"""The staged server through real sockets, with one task a stage and with several."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from serving import BOTH_FORMS, ECHO, ECHO_LATER, ECHO_ONE, FAIL, STAGES, RawPeer, serving, until

from triomq.remoting.core.errors import ConnectionLost, Rejected, RequestTimeout
from triomq.remoting.protocol.codes import LanguageCode, SerializeType
from triomq.remoting.protocol.command import Command, encode_command, response_to
from triomq.remoting.protocol.fields import header, wire
from triomq.remoting.server import selector
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.mailbox import Mailbox
from triomq.remoting.server.pool import BATCH_REQUESTS_MAX
from triomq.remoting.server.requests import Deferred, Request, Response

pytestmark = pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
"""The whole module runs with one and with several selectors and codecs; tests that do not use it
would be wrong here.
"""

Stages = tuple[int, int]


def make_header() -> type:
    class PlaceHeader:
        topic: str = wire("topic")
        queue_id: int = wire("queueId")

    PlaceHeader.__annotations__ = {"topic": str, "queue_id": int}
    return header(PlaceHeader)


PlaceHeader = make_header()


@pytest.mark.feature("16c")
async def test_both_header_forms_mix_on_one_connection(stages: Stages) -> None:
    async with serving(stages=stages) as server, await RawPeer.open(server) as peer:
        frames = [
            peer.frame(
                ECHO, b"%d" % number, serialize=BOTH_FORMS[number % 2], ext={"n": str(number)}
            )
            for number in range(40)
        ]
        await peer.send(b"".join(data for _, data in frames))
        for number, (opaque, _) in enumerate(frames):
            answer = await peer.answer(opaque)
            assert (answer.body, answer.serialize, answer.ext) == (
                b"%d" % number,
                BOTH_FORMS[number % 2],
                {"n": str(number)},
            )
            assert (answer.code, answer.flag, answer.version, answer.remark) == (0, 1, 479, None)


@pytest.mark.feature(18)
async def test_64_pipelined_requests_answered_in_reverse(stages: Stages) -> None:
    waiting: list[Deferred] = []

    def hold(request: Request) -> Deferred:
        waiting.append(Deferred((request,)))
        if len(waiting) == 64:
            for held in reversed(waiting):
                held.finish(partial(Response, body=held.requests[0].body))
        return waiting[-1]

    async with (
        serving([Handler(9100, hold, "held")], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(9100, b"%d" % number) for number in range(64)]
        await peer.send(b"".join(data for _, data in frames))
        await peer.answer(frames[0][0])  # the answer to the first request comes last
        assert [command.body for command in peer.received] == [
            b"%d" % number for number in range(63, 0, -1)
        ]


@pytest.mark.feature("19c")
async def test_oneway_requests_are_never_answered(stages: Stages) -> None:
    seen: list[bytes] = []

    def note(request: Request) -> Response:
        seen.append(request.body)
        return Response(0)

    def refuse(request: Request) -> Response:
        raise Rejected(17, "no such topic")

    never = PoolConfig(workers=1, queue_requests_max=1)
    handlers = [
        Handler(9101, note, "echo"),
        Handler(9102, refuse, "echo"),
        Handler(9103, note, "never", reject=lambda: True),
        Handler(9104, note, "echo", header=PlaceHeader),
    ]
    async with (
        serving(handlers, stages=stages, pools={"never": never}) as server,
        await RawPeer.open(server) as peer,
    ):
        for code in (9101, 9102, 9103, 9104, FAIL, 7):
            await peer.send(peer.frame(code, b"%d" % code, flag=2)[1])
        assert (await peer.call(ECHO, b"last")).body == b"last"
        assert peer.received == []
        assert seen == [b"9101"]


async def test_the_server_sends_requests_too(stages: Stages) -> None:
    connections: list[Connection] = []

    def keep(request: Request) -> Response:
        connections.append(request.connection)
        return Response(0)

    async with (
        serving([Handler(9105, keep, "echo")], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        await peer.call(9105)
        connections[0].oneway(Command(40, ext={"consumerGroup": "G"}))
        notice = await peer.request()
        assert (notice.code, notice.is_oneway, notice.ext) == (40, True, {"consumerGroup": "G"})

        answers: dict[int, Command] = {}

        async def ask(number: int) -> None:
            answers[number] = await connections[0].invoke(Command(307, body=b"%d" % number), 10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1)
            nursery.start_soon(ask, 2)
            asked = [await peer.request(), await peer.request()]
            # A request of the client may carry the same number at the same time; only the flag
            # tells them apart.
            await peer.send(encode_command(Command(ECHO, asked[1].opaque, body=b"mine")))
            assert (await peer.answer(asked[1].opaque)).body == b"mine"
            for question in reversed(asked):
                await peer.send(
                    encode_command(response_to(question, 0, body=b"re " + bytes(question.body)))
                )
        assert {number: answer.body for number, answer in answers.items()} == {
            1: b"re 1",
            2: b"re 2",
        }


async def test_a_request_of_the_server_times_out_or_fails_with_the_connection(
    stages: Stages,
) -> None:
    connections: list[Connection] = []

    def keep(request: Request) -> Response:
        connections.append(request.connection)
        return Response(0)

    async with (
        serving([Handler(9105, keep, "echo")], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        await peer.call(9105)
        requester = connections[0]._requester()
        with pytest.raises(RequestTimeout):
            await connections[0].invoke(Command(307), 0.02)
        assert requester.pending_count == 0
        with trio.move_on_after(0.02) as scope:
            await connections[0].invoke(Command(307), 60)
        assert scope.cancelled_caught
        assert requester.pending_count == 0, "it would be kept for the life of the connection"
        for number in (1, 2):
            await peer.send(encode_command(response_to(await peer.request())))  # late: dropped
            assert (await peer.call(ECHO, b"fine")).body == b"fine"
            assert requester.statistics().late_replies == number
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ConnectionLost):
                    await connections[0].invoke(Command(307), 60)

            nursery.start_soon(ask)
            await peer.request()
            await peer.stream.aclose()
        with pytest.raises(ConnectionLost):
            await connections[0].invoke(Command(307), 60)
        connections[0].oneway(Command(40))  # nothing happens


async def test_unknown_code(stages: Stages) -> None:
    async with serving(stages=stages) as server, await RawPeer.open(server) as peer:
        for form in BOTH_FORMS:
            answer = await peer.call(31_000, serialize=form)
            assert (answer.code, answer.remark) == (3, " request type 31000 not supported")
        assert (await peer.call(ECHO, b"x")).body == b"x"
        assert server.statistics().unknown_requests == 2


async def test_an_error_in_a_handler_becomes_an_answer(
    stages: Stages, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_later(requests: list[Request]) -> list[Response | None]:
        await trio.lowlevel.checkpoint()
        raise ArithmeticError("too much")

    def wrong(requests: list[Request]) -> list[Response | None]:
        return []

    def refuse(requests: list[Request]) -> list[Response | None]:
        raise Rejected(17, "topic[T] not exist")

    handlers = [
        Handler(9106, fail_later, "later", batch=True),
        Handler(9107, wrong, "echo", batch=True),
        Handler(9108, refuse, "echo", batch=True),
        Handler(9109, lambda request: 5, "echo"),  # type: ignore[arg-type, return-value]
        Handler(9110, lambda request: Response(0, object()), "echo"),
    ]
    async with serving(handlers, stages=stages) as server, await RawPeer.open(server) as peer:
        answer = await peer.call(FAIL, b"key")
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith("LookupError: no such thing: key, serving.py:")
        later = await peer.call(9106)
        assert later.code == 1
        assert (later.remark or "").startswith("ArithmeticError: too much")
        assert (await peer.call(9107)).code == 1
        refused = await peer.call(9108)
        assert (refused.code, refused.remark) == (17, "topic[T] not exist")
        assert (await peer.call(9109)).code == 1
        assert (await peer.call(9110)).code == 1
        assert (await peer.call(ECHO, b"alive")).body == b"alive"
        statistics = server.statistics()
    assert [record.levelname for record in caplog.records if record.name.startswith("triomq")] == [
        "ERROR"
    ] * 5
    assert caplog.records[0].getMessage().startswith(f"request {FAIL} from 127.0.0.1:")
    assert (
        statistics.codes[FAIL].requests,
        statistics.codes[FAIL].failed,
        statistics.codes[9108].failed,
    ) == (1, 1, 0)


async def test_a_missing_header_field_ends_the_request_only(stages: Stages) -> None:
    def place(request: Request) -> Response:
        return Response(0, remark=f"{request.header.topic}/{request.header.queue_id}")

    async with (
        serving([Handler(9111, place, "echo", header=PlaceHeader)], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        for form in BOTH_FORMS:
            good = await peer.call(
                9111, ext={"topic": "T", "queueId": "3", "unknown": "?"}, serialize=form
            )
            assert (good.code, good.remark, good.serialize) == (0, "T/3", form)
            bad = await peer.call(9111, ext={"topic": "T"}, serialize=form)
            assert (bad.code, bad.serialize) == (1, form)
            assert "queueId" in (bad.remark or "") or "queue" in (bad.remark or "")
            worse = await peer.call(9111, ext={"topic": "T", "queueId": "three"}, serialize=form)
            assert worse.code == 1


async def test_effects_happen_in_order_of_arrival(stages: Stages) -> None:
    """The work of handlers before their first checkpoint keeps the order of one connection,
    whatever answers later.
    """
    effects: list[int] = []

    async def single(request: Request) -> Response:
        effects.append(int(request.body))
        for _ in range(int(request.body) % 3):
            await trio.lowlevel.checkpoint()
        return Response(0)

    def sometimes(requests: list[Request]):
        effects.extend(int(request.body) for request in requests)
        answers: list[Response | None] = [Response(0) for _ in requests]
        if len(requests) % 2:
            return answers

        async def later() -> list[Response | None]:
            await trio.lowlevel.checkpoint()
            return answers

        return later()

    handlers = [Handler(9112, single, "effects"), Handler(9113, sometimes, "effects", batch=True)]
    async with serving(handlers, stages=stages) as server, await RawPeer.open(server) as peer:
        frames = [
            peer.frame(9112 if number % 7 < 3 else 9113, b"%d" % number) for number in range(1000)
        ]
        data = b"".join(data for _, data in frames)
        for start in range(0, len(data), 7777):  # cuts anywhere
            await peer.send(data[start : start + 7777])
        for opaque, _ in frames:
            await peer.answer(opaque)
        assert effects == list(range(1000))


@pytest.mark.feature("22a")
async def test_a_full_pool_delays_no_other(stages: Stages) -> None:
    release = trio.Event()

    async def slow(request: Request) -> Response:
        await release.wait()
        return Response(0, body=b"slow")

    one = PoolConfig(workers=1, queue_requests_max=2)
    async with (
        serving([Handler(9114, slow, "slow")], stages=stages, pools={"slow": one}) as server,
        await RawPeer.open(server) as peer,
    ):
        slow_ones = [peer.frame(9114) for _ in range(5)]
        await peer.send(b"".join(data for _, data in slow_ones))
        for number in range(20):
            for code in (ECHO, ECHO_ONE, ECHO_LATER):
                assert (await peer.call(code, b"%d" % number)).body == b"%d" % number
        release.set()
        codes = [(await peer.answer(opaque)).code for opaque, _ in slow_ones]
        assert codes == [0, 0, 0, 2, 2]  # one runs, two wait, the others do not fit


async def test_batches_are_formed_and_bounded(stages: Stages) -> None:
    sizes: list[int] = []

    def count(requests: list[Request]) -> list[Response | None]:
        sizes.append(len(requests))
        return [Response(0) for _ in requests]

    async with (
        serving([Handler(9115, count, "count", batch=True)], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        frames = [peer.frame(9115) for _ in range(2000)]
        await peer.send(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            await peer.answer(opaque)
        assert sum(sizes) == 2000
        assert max(sizes) == BATCH_REQUESTS_MAX
        pool = server.statistics().pools["count"]
        assert pool.requests_in_place + pool.requests_queued == 2000
        assert pool.requests_in_place > 0
        assert pool.requests_queued > 0


async def test_two_codes_with_one_batch_handler_share_batches(stages: Stages) -> None:
    seen: list[list[int]] = []

    def note(requests: list[Request]) -> list[Response | None]:
        seen.append([request.code for request in requests])
        return [Response(0) for _ in requests]

    handlers = [Handler(9116, note, "echo", batch=True), Handler(9117, note, "echo", batch=True)]
    async with serving(handlers, stages=stages) as server, await RawPeer.open(server) as peer:
        frames = [peer.frame(code) for code in (9116, 9117, 9116, ECHO, 9117)]
        await peer.send(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            await peer.answer(opaque)
        assert [code for codes in seen for code in codes] == [9116, 9117, 9116, 9117]
        assert len(seen) <= 3
        assert {code: server.statistics().codes[code].requests for code in (9116, 9117)} == {
            9116: 2,
            9117: 2,
        }


@pytest.mark.feature("21b")
async def test_many_connections(stages: Stages) -> None:
    async with serving(stages=stages) as server:
        peers = [await RawPeer.open(server) for _ in range(150)]
        for turn in range(3):
            sent = []
            for number, peer in enumerate(peers):
                opaque, data = peer.frame(ECHO, b"%d %d" % (turn, number))
                await peer.send(data)
                sent.append(opaque)
            for number, (peer, opaque) in enumerate(zip(peers, sent, strict=True)):
                assert (await peer.answer(opaque)).body == b"%d %d" % (turn, number)
        assert server.statistics().connections == 150
        assert {len(selector.connections) for selector in server._selectors} == {150 // stages[0]}
        for peer in peers:
            await peer.stream.aclose()
        await until(lambda: not server.statistics().connections)
        assert server.statistics().closed == 150


async def test_a_selector_reads_on_when_its_codec_has_nothing_left(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise small batches would accumulate in the mailbox, one more for each taken out."""
    queued: list[int] = []
    put = 0
    read, put_item = selector.Selector._read, Mailbox.put

    def noted(self: selector.Selector, ready: Iterator[tuple[int, int]], in_place: bool) -> bool:
        if in_place:  # the first of a turn
            queued.append(len(self.codec.mailbox))
        return read(self, ready, in_place)

    def counted(self: Mailbox[Any], item: object) -> None:
        nonlocal put
        put += 1
        put_item(self, item)

    monkeypatch.setattr(selector.Selector, "_read", noted)
    monkeypatch.setattr(Mailbox, "put", counted)
    monkeypatch.setattr(selector, "BATCH_SOCKETS_MAX", 2)
    async with serving(stages=stages) as server, trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            async with await RawPeer.open(server) as peer:
                for call in range(40):
                    body = b"%d %d" % (number, call)
                    assert (await peer.call(ECHO, body)).body == body

        for number in range(30):
            nursery.start_soon(ask, number)
    assert queued
    assert not any(queued), "nothing is read before it can be processed"
    assert put, "there was something to wait for"


async def test_large_bodies_in_small_pieces(stages: Stages) -> None:
    body = bytes(range(256)) * 12_000  # 3 MB: many reads, one frame
    async with serving(stages=stages) as server, await RawPeer.open(server) as peer:
        opaque, data = peer.frame(ECHO, body)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await peer.send(data[:5])
                for start in range(5, len(data), 100_000):
                    await peer.send(data[start : start + 100_000])

            nursery.start_soon(send)
            assert (await peer.answer(opaque)).body == body


async def test_bodies_in_pieces_and_later_submission(stages: Stages) -> None:
    """A pull's body is a list of pieces; a held request goes through its pool again, as if it
    arrived now.
    """
    held: list[Request] = []

    def pull(request: Request) -> Response | Deferred:
        if not held:
            held.append(request)
            return Deferred((request,))
        return Response(0, body=[b"one ", memoryview(b"two "), b"x" * 20_000, b"", b"y" * 20_000])

    async with (
        serving([Handler(9118, pull, "pull")], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        opaque, data = peer.frame(9118)
        await peer.send(data)
        assert (await peer.call(ECHO, b"between")).body == b"between"
        before = held[0].arrived
        held[0].resubmit()
        answer = await peer.answer(opaque)
        assert answer.body == b"one two " + b"x" * 20_000 + b"y" * 20_000
        assert held[0].arrived > before


@pytest.mark.feature("17a")
@pytest.mark.parametrize("form", BOTH_FORMS, ids=lambda form: form.name)
async def test_the_seven_fields_of_a_header_make_a_round_trip(
    stages: Stages, form: SerializeType
) -> None:
    seen: list[Request] = []

    def note(request: Request) -> Response:
        seen.append(request)
        return Response(77, remark="nö\n", ext={"answer": "ä"})

    async with (
        serving([Handler(9120, note, "echo")], stages=stages) as server,
        await RawPeer.open(server) as peer,
    ):
        command = Command(
            9120,
            1_234_567_890,
            0,
            LanguageCode.GO,
            437,
            "a remark",
            {"question": "ü", "empty": ""},
            serialize=form,
        )
        await peer.send(encode_command(command))
        answer = await peer.answer(1_234_567_890)
    (request,) = seen
    assert (request.code, request.opaque, request.oneway, request.language, request.version) == (
        9120,
        1_234_567_890,
        False,
        LanguageCode.GO,
        437,
    )
    assert request.ext() == {"question": "ü", "empty": ""}
    assert (answer.code, answer.flag, answer.language, answer.version) == (
        77,
        1,
        LanguageCode.PYTHON,
        479,
    )
    assert (answer.remark, answer.ext, answer.serialize) == ("nö\n", {"answer": "ä"}, form)
