"""The pure parts of pages: what is unknown stays unknown; tables, charts, bodies, forms."""

from __future__ import annotations

import re
import tracemalloc

import attrs
import pytest
from markupsafe import Markup

from triomq.client.admin.cluster_view import (
    BrokerRow,
    BrokerTables,
    ClusterView,
    group_rows,
    topic_rows,
)
from triomq.client.admin.message_preview import READ_BYTES_MAX, body_of, preview
from triomq.client.console.core.charts import line_chart, meter, scale_top
from triomq.client.console.core.forms import FormInvalid, fields_of
from triomq.client.console.core.message_text import (
    JSON_BYTES_MAX,
    SHOWN_BYTES_MAX,
    hex_dump,
    show_body,
)
from triomq.client.console.core.paging import ROWS_OF_A_PAGE, order_of, page_of
from triomq.client.console.core.rendering import UNKNOWN, clock, labelled, number, ratio, size
from triomq.client.console.pages.account import local_path
from triomq.client.console.pages.configuration import is_secret
from triomq.remoting.protocol.bodies.offsets import (
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import decode_records

ANSWERING = BrokerRow(
    cluster="c",
    name="a",
    id=0,
    address="a:1",
    status={"putTps": "0.0 0.0 0.0", "getTransferedTps": "7.5 1 2", "commitLogDiskRatio": "x"},
    seen_at=100.0,
)
SILENT = attrs.evolve(ANSWERING, name="b", address="b:1", failure="no answer within 4 s")


def test_a_silent_broker_has_no_rates_although_it_had() -> None:
    assert (ANSWERING.put_rate, ANSWERING.get_rate) == (0.0, 7.5)
    assert ANSWERING.disk_ratio is None, "a counter that is no number"
    assert (SILENT.put_rate, SILENT.get_rate) == (None, None)
    view = ClusterView(brokers=(ANSWERING, SILENT))
    assert view.put_rate == (0.0, False)
    assert ClusterView(brokers=(SILENT,)).put_rate == (None, False)
    assert ClusterView(brokers=(ANSWERING,)).put_rate == (0.0, True)


def tables(groups: tuple[str, ...], backlog: BrokerConsumeStats | None) -> BrokerTables:
    return BrokerTables(topics={}, groups=groups, backlog=backlog, taken_at=1.0)


def backlog_of(group: str, broker: str, end: int, at: int) -> BrokerConsumeStats:
    offset = ConsumeOffset(broker_offset=end, consumer_offset=at, pull_offset=at + 1)
    stats = ConsumeStats({MessageQueue("t", broker, 0): offset}, 2.0)
    return BrokerConsumeStats(consume_stats_list=[{group: [stats]}])


def test_the_lag_of_a_group_is_unknown_if_one_of_its_brokers_does_not_tell() -> None:
    one, two = backlog_of("g", "a", 10, 4), backlog_of("g", "b", 3, 3)
    both = group_rows({"a": tables(("g",), one), "b": tables(("g",), two)})["g"]
    assert (both.lag, both.in_flight, both.rate, both.topics) == (6, 2, 4.0, ("t",))
    half = group_rows({"a": tables(("g",), one), "b": tables(("g",), None)})["g"]
    assert (half.lag, half.rate, half.brokers) == (None, None, ("a", "b"))
    fresh = group_rows({"a": tables(("g", "new"), one)})
    assert fresh["new"].lag is None, "a group without offsets"
    negative = group_rows({"a": tables(("g",), backlog_of("g", "a", 0, 5))})["g"]
    assert negative.lag == 0


def test_the_sum_of_lags_says_whether_it_is_whole() -> None:
    row = group_rows({"a": tables(("g",), backlog_of("g", "a", 10, 4))})
    assert ClusterView().lag == (None, False)
    assert ClusterView(groups=row, tables_at=1.0).lag == (6, True)
    assert ClusterView(groups=row, tables_at=1.0, tables_missing={"b": "late"}).lag == (6, False)
    assert ClusterView(tables_at=1.0).lag == (0, True)
    silent = group_rows({"a": tables(("g",), None)})
    assert ClusterView(groups=silent, tables_at=1.0).lag == (None, False)
    fresh = group_rows({"a": tables(("g", "new"), backlog_of("g", "a", 10, 4))})
    assert ClusterView(groups=fresh, tables_at=1.0).lag == (6, True)


def test_topics_of_several_brokers_are_one_row() -> None:
    configs = {
        broker: BrokerTables(
            topics={
                "t": TopicConfig(
                    topic_name="t", read_queue_count=4, write_queue_count=2, perm=perm
                ),
                "%DLQ%g": TopicConfig(topic_name="%DLQ%g"),
                "rmq_sys_x": TopicConfig(topic_name="rmq_sys_x"),
                "%RETRY%g": TopicConfig(topic_name="%RETRY%g", attributes={"message.type": "FIFO"}),
            },
            groups=(),
            backlog=None,
            taken_at=1.0,
        )
        for broker, perm in (("a", 6), ("b", 4))
    }
    assert topic_rows(configs, {"t"})["t"].kind == "system", "the topic of a broker"
    rows = topic_rows(configs)
    assert (rows["t"].read_queues, rows["t"].write_queues, rows["t"].perm) == (8, 4, None)
    assert rows["t"].brokers == ("a", "b")
    assert [row.kind for row in rows.values()] == ["dead", "retry", "system", "normal"]
    assert rows["%RETRY%g"].message_type == "FIFO"


@pytest.mark.parametrize(
    ("wanted", "number_of_page", "rows"),
    [
        *(("1", 1, 25), ("3", 3, 10), ("99", 3, 10), ("0", 1, 25), ("-1", 1, 25)),
        *(("x", 1, 25), ("٣", 1, 25), ("", 1, 25)),
    ],
)
def test_pages_of_a_table(wanted: str, number_of_page: int, rows: int) -> None:
    page = page_of(range(60), wanted)
    assert (page.number, page.pages, page.found, len(page.rows)) == (number_of_page, 3, 60, rows)


def test_a_table_is_filtered_before_it_is_cut() -> None:
    names = [f"Topic-{number}" for number in range(100)]
    page = page_of(names, "1", search=" topic-9", text=str)
    assert (page.found, list(page.rows)[:2]) == (11, ["Topic-9", "Topic-90"])
    assert page_of([], "1").pages == 1
    assert ROWS_OF_A_PAGE == 25


@pytest.mark.parametrize(
    ("sort", "expected"),
    [("", "abcd"), ("-name", "dcba"), ("lag", "acbd"), ("-lag", "bcad"), ("x", "abcd")],
)
def test_a_table_is_sorted_with_what_is_unknown_last(sort: str, expected: str) -> None:
    lags: dict[str, float | None] = {"a": 0, "b": 30, "c": 4, "d": None}
    columns = {"name": str, "lag": lags.__getitem__}
    order = order_of(sort, columns)
    assert "".join(order.sorted("abcd", columns)) == expected
    assert order_of("lag", columns).following("lag", down_first=True) == "-lag"
    assert order_of("-lag", columns).following("lag", down_first=True) == "lag"
    assert order_of("lag", columns).following("name", down_first=False) == "name"


def test_cells_have_the_names_of_their_columns() -> None:
    head = '<thead><tr><td></td><th scope="col">A &amp; B</th><th><a href="?">C</a></th></tr>'
    rows = '<tr><td><b>0</b></td><th scope="row">1</th><td class="right">2</td></tr>'
    found = labelled(Markup(f"{head}</thead><tbody>{rows}</tbody>"))
    names = ["", "A &amp; B", "C"]
    assert re.findall('data-label="([^"]*)"', found) == names
    assert re.sub(' data-label="[^"]*"', "", found) == f"{head}</thead><tbody>{rows}</tbody>"


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.2, 2), (4.9, 5), (5.1, 10), (82.6, 100), (200, 200)]
)
def test_the_scale_of_a_chart_is_a_round_number(value: float, top: float) -> None:
    assert scale_top(value) == top


def test_a_chart_has_the_times_of_its_first_middle_and_last_value() -> None:
    chart = line_chart("t", [("in", [1.0, 2.0, 3.0])], [0.0, 60.0, 120.0])
    assert re.findall(r"<span>\d\d:(\d\d:\d\d)</span>", chart) == ["00:00", "01:00", "02:00"]
    assert re.findall("<span>([0-9.]+)</span>", chart) == ["5", "2.5", "0"]


def test_a_chart_has_gaps_and_escapes() -> None:
    chart = str(line_chart("<t>", [("in", [1.0, 2.0, None, None, 4.0]), ("out", [None])]))
    assert chart.count("<polyline") == 2
    assert "&lt;t&gt;" in chart
    assert "style=" not in chart
    assert line_chart("t", []).count("<polyline") == 0
    assert meter(None, "d") == ""
    assert 'class="bad"' in meter(0.9, "d")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(None), UNKNOWN),
        (number(0), "0"),
        (number(1234567), "1,234,567"),
        (size(None), UNKNOWN),
        (size(3 << 30), "3.0 GiB"),
        (ratio(0.5), "50.0 %"),
        (clock(0), UNKNOWN),
    ],
)
def test_values_in_pages(shown: object, expected: object) -> None:
    assert shown == expected


def test_bodies_as_text_json_and_hex() -> None:
    assert show_body(b'{"b":1,"a":"\xc3\xa4"}', "").text == '{\n  "b": 1,\n  "a": "ä"\n}'
    assert show_body(b"{broken", "json").form == "json"
    assert show_body(b"{broken", "json").text == "{broken"
    binary = show_body(b"\xff\x00\x41", "")
    assert (binary.form, binary.binary) == ("hex", True)
    assert binary.text == f"00000000  {'ff 00 41':<47}  ..A"
    assert show_body(b"a\x1b[2Jb\r\nc", "text").text == "a\\x1b[2Jb\nc"
    long = show_body(b"x" * (SHOWN_BYTES_MAX + 1), "text")
    assert (long.cut, len(long.text), long.size) == (True, SHOWN_BYTES_MAX, SHOWN_BYTES_MAX + 1)
    assert show_body(b"[" * 100_000, "").form == "text", "nested too deeply for a parser"
    assert hex_dump(b"") == ""


def test_what_a_body_costs_is_what_is_shown_of_it() -> None:
    """64 KiB of nested brackets cost 14.8 s and 2.2 GB."""
    depth = 400
    nested = b"[" + b",".join([b"[" * depth + b"]" * depth] * 80) + b"]"
    assert len(nested) > 60_000
    tracemalloc.start()
    shown = show_body(nested, "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (shown.form, len(shown.text)) == ("json", SHOWN_BYTES_MAX)
    assert peak < 32 * 1024 * 1024
    assert show_body(b"[1]" + b" " * JSON_BYTES_MAX, "").form == "text", "too long for a parser"


def test_a_body_that_inflates_to_much_is_read_to_what_is_shown() -> None:
    body, flag = compress_body(b"x" * 40_000_000, level=9)
    record = encode_record(
        topic="T", queue_id=0, queue_offset=0, log_offset=0, body=body, properties=b"",
        born_timestamp=1, born_host=bytes(8), store_timestamp=2, store_host=bytes(8), sys_flag=flag,
    )  # fmt: skip
    (message,) = decode_records(record)
    tracemalloc.start()
    assert preview(message) == "x" * 80 + "\N{HORIZONTAL ELLIPSIS}"
    assert len(body_of(message)) == READ_BYTES_MAX
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/topics?page=2", "/topics?page=2"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
    ],
)
def test_the_way_back_stays_here(text: str, path: str) -> None:
    assert local_path(text) == path


def test_fields_of_forms() -> None:
    form = fields_of("a=+1+&b=&c=x&c=y&t=2026-01-31T08:00")
    assert (form.whole("a", 0, 5), form.text("b"), list(form.all("c"))) == (1, "", ["x", "y"])
    assert form.moment_ms("t") % 60_000 == 0
    assert form.moment_ms("none", 5) == 5
    for name in ("a", "c"):
        with pytest.raises(FormInvalid, match="whole number"):
            form.whole(name, 3, 5)
    with pytest.raises(FormInvalid, match="Fill this field"):
        form.needed("b")
    with pytest.raises(FormInvalid, match="local time"):
        form.moment_ms("c")
    with pytest.raises(FormInvalid, match="fields"):
        fields_of("a=1&" * 501)


def test_secrets_of_configurations() -> None:
    assert is_secret("tls.server.keyPassword")
    assert is_secret("innerClientAuthenticationCredentials")
    assert is_secret("initAuthenticationUser")
    assert not is_secret("brokerName")
