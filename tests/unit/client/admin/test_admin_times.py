"""Times on mqadmin's command line, and as it prints them."""

from __future__ import annotations

import re
import time

import pytest

from triomq.client.admin import times
from triomq.client.admin.times import instant_ms, milliseconds_text, now_ms, seconds_text


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("0", 0),
        ("-1", -1),
        ("2023-11-14#22:13:20:123", 1_700_000_000_123),
        ("2023-11-14#22:13:20:5", 1_700_000_000_005),
        ("2023-11-14#22:13:20", 1_700_000_000_000),
        ("2023-11-14 22:13:20:123", 1_700_000_000_123),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("2023-11-14 22:13", 1_699_999_980_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20.005", 1_700_000_000_005),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-15T06:13:20+08:00", 1_700_000_000_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_instants(text: str, expected: int) -> None:
    assert instant_ms(text) == expected


def test_a_time_without_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    assert instant_ms("2023-11-15 06:13:20") == 1_700_000_000_000
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("now", 0),
        (" NOW ", 0),
        ("-90s", 90_000),
        ("-1h", 3_600_000),
        ("now-15m", 900_000),
        ("-2d12h", 216_000_000),
        ("-1w", 604_800_000),
        ("-250ms", 250),
    ],
)
def test_times_ago(monkeypatch: pytest.MonkeyPatch, text: str, ago: int) -> None:
    monkeypatch.setattr(times, "now_ms", lambda: 1_700_000_000_000)
    assert instant_ms(text) == 1_700_000_000_000 - ago


def test_long_ago_is_the_beginning_and_not_the_mark_for_the_end() -> None:
    assert instant_ms("-9999w") == 0


def test_now_is_an_instant() -> None:
    before = now_ms()
    assert before <= instant_ms("now") <= now_ms()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1h",
        "-1x",
        "-1h30",
        "yesterday",
        "2023-W46",
        "2023-13-14#22:13:20",
        "2023-11-14#22:13:20:xyz",
        "2023-11-14#22:13:20-000",
        "2023-11-14T22:13:20+99:00",
        "\u0663",
    ],
)
def test_other_texts_are_not_instants(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("use now, a time ago (-90s, -1h")):
        instant_ms(text)


@pytest.mark.usefixtures("utc")
def test_times_as_java_prints_them() -> None:
    assert seconds_text(1_700_000_000_123) == "2023-11-14 22:13:20"
    assert milliseconds_text(1_700_000_000_007) == "2023-11-14 22:13:20,007"
    assert (seconds_text(0), milliseconds_text(0)) == ("N/A", "")
