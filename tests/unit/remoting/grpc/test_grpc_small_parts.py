"""Liveness, frame budgets, the table of methods, metrics."""

from __future__ import annotations

import pytest
from hpack import Decoder
from http2_pair import Pair

from triomq.remoting.grpc.call_statistics import (
    UNKNOWN_PATH,
    CallCounters,
    GrpcStatistics,
    grpc_figures,
)
from triomq.remoting.grpc.frame_budgets import FrameBudget
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.header_encoder import HeaderEncoder
from triomq.remoting.grpc.liveness import LifeSign, Liveness
from triomq.remoting.grpc.methods import CallContext, MethodTable, unary
from triomq.remoting.grpc.status import GrpcStatus
from triomq.remoting.monitor.metrics import page_pieces
from triomq.remoting.protocol.limits import Limits


def test_a_budget_takes_bursts_and_then_its_rate() -> None:
    budget = FrameBudget(10)
    assert sum(budget.spend(100.0) for _ in range(150)) == 100
    assert not budget.spend(100.05)
    budget = FrameBudget(10)
    assert all(budget.spend(second / 10) for second in range(1000))
    budget = FrameBudget(10)
    assert sum(budget.spend(0.0) for _ in range(100)) == 100
    budget.earn(5)
    assert [budget.spend(0.0) for _ in range(6)] == [True] * 5 + [False]


def test_a_budget_is_never_larger_than_its_burst() -> None:
    budget = FrameBudget(10)
    budget.earn(1_000_000)
    assert sum(budget.spend(0.0) for _ in range(150)) == 100
    assert sum(budget.spend(1_000_000.0) for _ in range(150)) <= 101


SETTINGS = GrpcSettings(
    handshake_ms=10_000, idle_ms=120_000, keepalive_ms=60_000, keepalive_timeout_ms=20_000
)


def test_a_connection_must_begin() -> None:
    life = Liveness(SETTINGS, 100.0)
    life.heard(109.0)  # half a TLS handshake is no beginning
    assert life.check(109.9, began=False, calls=0) is LifeSign.FINE
    assert life.check(110.0, began=False, calls=0) is LifeSign.TOO_SLOW


def test_a_connection_without_calls_is_idle_although_it_pings() -> None:
    life = Liveness(SETTINGS, 0.0)
    for second in range(1, 120):
        life.heard(second)
        assert life.check(second, began=True, calls=0) is LifeSign.FINE
    assert life.check(120, began=True, calls=0) is LifeSign.IDLE


def test_a_connection_is_idle_from_the_end_of_its_last_call_on() -> None:
    life = Liveness(SETTINGS, 0.0)
    life.heard(100)
    assert life.check(100, began=True, calls=1) is LifeSign.FINE
    assert life.check(219.9, began=True, calls=0) is LifeSign.FINE
    assert life.check(220, began=True, calls=0) is LifeSign.IDLE


def test_a_silent_connection_with_calls_is_asked() -> None:
    life = Liveness(SETTINGS, 0.0)
    assert life.check(59, began=True, calls=1) is LifeSign.FINE
    assert life.check(60, began=True, calls=1) is LifeSign.ASK
    assert life.check(61, began=True, calls=1) is LifeSign.FINE
    life.heard(62)
    assert life.check(121, began=True, calls=1) is LifeSign.FINE
    assert life.check(122, began=True, calls=1) is LifeSign.ASK
    assert life.check(141.9, began=True, calls=1) is LifeSign.FINE
    assert life.check(142, began=True, calls=1) is LifeSign.SILENT


async def _nothing(request: bytes, call: CallContext) -> bytes:
    return request


def test_a_path_has_one_method() -> None:
    line = unary("/a.B/C", bytes, bytes, _nothing)
    assert set(MethodTable([line]).methods) == {"/a.B/C"}
    with pytest.raises(ValueError, match="two methods"):
        MethodTable([line, line])


def test_every_limit_has_a_setting() -> None:
    limits = Limits(GrpcSettings(), "grpc")
    for sign in LifeSign:
        if sign not in {LifeSign.FINE, LifeSign.ASK}:
            assert limits.name(sign.value).startswith("grpc")


def test_figures_are_metrics() -> None:
    counters = CallCounters()
    counters.note_end("/a.B/C", GrpcStatus.OK, 0.001)
    counters.note_end("/a.B/C", GrpcStatus.NOT_FOUND, 0.1)
    counters.note_end(UNKNOWN_PATH, GrpcStatus.UNIMPLEMENTED, 0.0)
    figures = GrpcStatistics(
        connections=1,
        calls=2,
        kept_bytes=3,
        accepted=4,
        turned_away=5,
        closed=6,
        broken=7,
        received_bytes=8,
        sent_bytes=9,
        refused={"grpcStallMs": 10},
        statuses=counters.statuses,
        latency=counters.latency,
    )
    page = "".join(page_pieces(grpc_figures(figures), {}, lambda: 0.0))
    assert 'triomq_grpc_calls_total{method="/a.B/C",status="NOT_FOUND"} 1\n' in page
    assert 'triomq_grpc_calls_total{method="unknown",status="UNIMPLEMENTED"} 1\n' in page
    assert 'triomq_grpc_call_seconds_count{method="/a.B/C"} 2\n' in page
    assert 'triomq_grpc_refused_total{limit="grpcStallMs"} 10\n' in page
    assert "triomq_grpc_kept_bytes{} 3\n" in page


HEADERS = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b":status", b"415"),
    (b"grpc-message", b"long " * 100),
    (b"x" * 127, b"y" * 126),
    (b"z" * 128, b""),
)


def test_headers_are_read_by_hpack() -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    encoder.remember(HEADERS[:2])
    for headers in (HEADERS, HEADERS[:2], list(HEADERS), HEADERS[:2], ()):
        assert tuple(decoder.decode(encoder.encode(headers), raw=True)) == tuple(headers)
    assert decoder.header_table.maxsize == 4096
    assert encoder.encode(HEADERS[:2]) == b"\x88\x0f\x10\x10application/grpc"


@pytest.mark.parametrize("size", [0, 100, 4095])
def test_a_smaller_table_of_the_client_is_announced_once(size: int) -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    encoder.header_table_size = size
    decoder.max_allowed_table_size = size
    for _ in range(2):
        assert tuple(decoder.decode(encoder.encode(HEADERS), raw=True)) == HEADERS
    decoder.max_allowed_table_size = 4096
    encoder.header_table_size = 4096
    assert encoder.encode(()) == b""
    assert tuple(decoder.decode(encoder.encode(HEADERS), raw=True)) == HEADERS


def test_clients_may_change_their_table() -> None:
    """A huge one costs nothing, since it is not used; a small one is respected."""
    header_table_size = 1
    for size in (0, 10, 2**31 - 1):
        pair = Pair({header_table_size: size})
        for _ in range(2):
            stream = pair.call(b"x")
            pair.session.send_message(stream, b"y")
            pair.session.finish(stream, None)
            pair.exchange()
            assert (pair.answers[stream].messages, pair.answers[stream].status) == ([b"y"], 0)
