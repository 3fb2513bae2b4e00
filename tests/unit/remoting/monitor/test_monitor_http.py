"""The HTTP words of probes and scrapers, and the text format of figures: pure parts."""

from __future__ import annotations

import gzip
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from triomq.remoting.monitor.http import (
    HEAD_BYTES_MAX,
    BadRequest,
    HttpAnswer,
    HttpRequest,
    read_request,
)
from triomq.remoting.monitor.http_server import Monitor
from triomq.remoting.monitor.metrics import (
    DECLARED,
    Family,
    Histogram,
    Sample,
    page_pieces,
    with_left_out,
)

ROOT = Path(__file__).parents[4]
METRICS_FILE = ROOT / "remoting" / "monitor" / "metrics.txt"


def test_a_request_may_come_in_pieces() -> None:
    whole = b"GET /ready?verbose HTTP/1.1\r\nHost: x\r\n\r\n"
    assert [read_request(whole[:cut]) for cut in range(len(whole))] == [None] * len(whole)
    assert read_request(whole) == HttpRequest("/ready")
    assert read_request(b"HEAD /live HTTP/1.0\r\n\r\n") == HttpRequest("/live", head=True)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip;q=0.0", False),
        (b"identity", False),
        (b"", False),
    ],
)
def test_a_scraper_says_whether_it_takes_gzip(value: bytes, taken: bool) -> None:
    request = read_request(b"GET /metrics HTTP/1.1\r\nAccept-Encoding: " + value + b"\r\n\r\n")
    assert request == HttpRequest("/metrics", gzip=taken)


async def test_the_page_is_compressed_for_those_that_take_it() -> None:
    monitor = Monitor("mqbroker")
    plain = await monitor.answer(HttpRequest("/metrics"))
    packed = await monitor.answer(HttpRequest("/metrics", gzip=True))
    assert b"Content-Encoding" not in plain.encode(head=True)
    head, _, body = packed.encode().partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert f"Content-Length: {len(body)}".encode() in head
    names = [
        line.split()[2] for line in gzip.decompress(body).decode().splitlines() if "# T" in line
    ]
    assert names == [
        line.split()[2] for line in b"".join(plain.rest).decode().splitlines() if "# T" in line
    ]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x75\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /live\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\xff HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"PRI * HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"POST /live HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"x" * (HEAD_BYTES_MAX + 4), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: HTTPStatus) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(data)
    assert caught.value.status is status


def test_answers() -> None:
    head, body = HttpAnswer(HTTPStatus.OK, b"live\n").encode().split(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Length: 5" in head.splitlines()
    assert body == b"live\n"
    assert HttpAnswer(HTTPStatus.OK, b"live\n").encode(head=True).endswith(b"close\r\n\r\n")


def test_the_page_is_what_prometheus_reads() -> None:
    nasty = 'a"b\\c\nd'
    families = [
        Family(
            "x_total",
            "counter",
            "Has \\ and\nmore.",
            [Sample(3, {"topic": nasty}), Sample(2.5, {"topic": "é"})],
        ),
        Family("y", "gauge", "A gauge.", [Sample(1e-7)]),
        Family("empty", "gauge", "Nothing.", []),
        Family(
            "z_seconds",
            "histogram",
            "Times.",
            [Histogram({"code": "10"}, [0.001, 0.01], [4, 2, 1], 0.5)],
        ),
    ]
    page = "".join(page_pieces(families, {"cluster": "C"}, lambda: 0.0))
    read = {family.name: family for family in text_string_to_metric_families(page)}
    assert set(read) == {"x", "y", "z_seconds"}
    assert [(sample.labels, sample.value) for sample in read["x"].samples] == [
        ({"cluster": "C", "topic": nasty}, 3),
        ({"cluster": "C", "topic": "é"}, 2.5),
    ]
    assert read["y"].samples[0].value == 1e-7
    assert [
        (sample.name, sample.labels.get("le"), sample.value) for sample in read["z_seconds"].samples
    ] == [
        ("z_seconds_bucket", "0.001", 4),
        ("z_seconds_bucket", "0.01", 6),
        ("z_seconds_bucket", "+Inf", 7),
        ("z_seconds_sum", None, 0.5),
        ("z_seconds_count", None, 7),
    ]


def test_the_longest_head_is_the_same_in_pieces_as_in_one_piece() -> None:
    longest = b"GET / HTTP/1.1\r\nx: ".ljust(HEAD_BYTES_MAX, b"y") + b"\r\n\r\n"
    assert [read_request(longest[: len(longest) - missing]) for missing in (3, 2, 1, 0)] == [
        None,
        None,
        None,
        HttpRequest("/"),
    ]
    with pytest.raises(BadRequest):
        read_request(longest.replace(b"x", b"xx", 1))


def test_every_metric_is_declared_once_and_has_a_user() -> None:
    text = METRICS_FILE.read_text(encoding="utf-8")
    names = [line.split(" ")[0] for line in text.splitlines() if line and line[0] != "#"]
    assert len(names) == len(set(names)) == len(DECLARED)
    assert {kind for kind, _ in DECLARED.values()} == {"counter", "gauge", "histogram"}
    product = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("broker", "client", "namesrv", "remoting")
        for path in (ROOT / folder).rglob("*.py")
    )
    made = {"triomq_consumer", "rocketmq_timer"}  # names with a part that a loop fills in
    unused = [name for name in names if f'"{name}"' not in product]
    assert {"_".join(name.split("_")[:2]) for name in unused} <= made


ONE = Family("one", "gauge", "One.", [Sample(1)])


def many(count: int) -> Family:
    made = (Sample(number, {"topic": f"T{number}"}) for number in range(count))
    return Family("many", "gauge", "Many.", made, count)


def test_a_page_has_a_bounded_number_of_series_and_says_what_is_missing() -> None:
    families = with_left_out([many(10), ONE, many(3)], 4)
    page = "".join(page_pieces(families, {}, lambda: 0.0))
    assert page.count("many{") == 4 + 3
    assert 'triomq_metric_series_left_out{metric="many"} 6' in page
    whole = "".join(page_pieces(with_left_out([many(4)], 4), {}, lambda: 0.0))
    assert "triomq_metric_series_left_out{} 0" in whole


def test_a_page_comes_in_pieces_of_a_few_milliseconds() -> None:
    ticks = iter(number * 0.001 for number in range(10_000))
    pieces = list(page_pieces([many(100), ONE], {}, lambda: next(ticks)))
    assert len(pieces) > 10
    assert "".join(pieces) == "".join(page_pieces([many(100), ONE], {}, lambda: 0.0))
