"""The output of mqadmin: plain columns, rich tables on a terminal, JSON, times."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time

import pytest

from triomq.client.admin.command import Result, Table
from triomq.client.admin.execution import report
from triomq.client.admin.output import plain, print_result
from triomq.client.admin.times import instant_ms, milliseconds_text, now_ms, seconds_text
from triomq.remoting.interrupt import interrupted

TABLE = Table(
    ("Broker Name", ">QID", "Body"),
    [["broker-a", "0", "one"], ["b", "12", ""]],
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_plain_columns_can_be_counted_and_are_never_cut() -> None:
    assert (
        plain(TABLE)
        == "#Broker Name  #QID  #Body\nbroker-a         0  one\nb               12  -\n"
    )


def test_a_cell_stays_on_its_line() -> None:
    assert plain(Table(("Body",), [["one\ntwo\t\x1b[31m"]])) == "#Body\none\\ntwo\\t\\x1b[31m\n"


def test_a_table_without_rows_has_its_titles() -> None:
    assert plain(Table(("Topic",), [])) == "#Topic\n"


def test_a_terminal_gets_a_rich_table_without_control_characters() -> None:
    stream = Terminal()
    print_result(
        Result(
            document={},
            blocks=[
                Table(("Broker Name", "Body"), [["broker-a", "[red]x\x1b[0m"]]),
                "a line",
            ],
        ),
        stream,
        as_json=False,
    )
    text = stream.getvalue()
    assert "Broker Name" in text
    assert "#Broker" not in text
    assert "[red]x" in text
    assert "x\x1b[0m" not in text
    assert text.endswith("a line\n")


@pytest.mark.parametrize(("columns", "folded"), [(60, False), (80, True), (200, False)])
def test_a_terminal_folds_only_the_last_column(
    monkeypatch: pytest.MonkeyPatch, columns: int, folded: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    table = Table(
        ("MsgId", ">QID", "Body"),
        [["F" * 40, "7", "a message " * 6], ["0" * 40, "12", "短"]],
    )
    print_result(Result(document={}, blocks=[table]), stream, as_json=False)
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")] == [
        "F" * 40,
        "0" * 40,
    ], "an id is never broken"
    assert (len(lines) > 4) is folded


def test_wide_characters_keep_columns_straight() -> None:
    assert (
        plain(Table(("Tags", "Keys"), [["世界", "x"], ["abcdef", "y"]]))
        == "#Tags   #Keys\n世界    x\nabcdef  y\n"
    )


def test_json_is_one_line_with_unescaped_text() -> None:
    stream = io.StringIO()
    print_result(
        Result(document={"topics": ["größe"], "n": None}, blocks=["not shown"]),
        stream,
        as_json=True,
    )
    assert stream.getvalue() == '{"topics":["größe"],"n":null}\n'
    assert json.loads(stream.getvalue()) == {"topics": ["größe"], "n": None}


def test_a_command_loads_no_module_that_it_does_not_need() -> None:
    """Only a table on a terminal needs rich, only certificates need cryptography, only producers
    and consumers need settings and sessions.
    """
    unneeded = {
        "rich",
        "cryptography",
        "argparse",
        "asyncio",
        "triomq.client.config",
        "triomq.client.session",
        "triomq.client.producer",
        "triomq.client.consumer",
    }
    code = (
        "import sys, triomq.client.admin.execution, triomq.client.admin.commands.topic;"
        " print(*sys.modules)"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert {"trio", "triomq.client.admin.admin"} <= loaded
    assert loaded & unneeded == set()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("0", 0),
        ("-1", -1),
        ("2023-11-14#22:13:20:123", 1_700_000_000_123),
        ("2023-11-14#22:13:20", 1_700_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20.005", 1_700_000_000_005),
    ],
)
def test_instants(text: str, expected: int) -> None:
    assert instant_ms(text) == expected


def test_now_is_an_instant() -> None:
    before = now_ms()
    assert before <= instant_ms(" NOW ") <= now_ms()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2023-11-14",
        "2023-13-14#22:13:20",
        "2023-11-14#22:13:20:xyz",
        "2023-11-14#22:13:20-000",
    ],
)
def test_other_texts_are_not_instants(text: str) -> None:
    with pytest.raises(
        ValueError, match="use milliseconds since 1970, now, or yyyy-MM-dd#HH:mm:ss:SSS"
    ):
        instant_ms(text)


@pytest.mark.usefixtures("utc")
def test_times_as_java_prints_them() -> None:
    assert seconds_text(1_700_000_000_123) == "2023-11-14 22:13:20"
    assert milliseconds_text(1_700_000_000_007) == "2023-11-14 22:13:20,007"
    assert (seconds_text(0), milliseconds_text(0)) == ("N/A", "")


HOSTILE = "one\n\x1b[2J\x9b31m\u202etwo\ud800"


def test_json_stays_the_same_document_without_control_characters() -> None:
    stream = io.StringIO()
    print_result(Result(document={"body": HOSTILE}, blocks=[]), stream, as_json=True)
    assert all(letter.isprintable() for letter in stream.getvalue().rstrip("\n"))
    assert json.loads(stream.getvalue()) == {"body": HOSTILE}


def test_a_text_keeps_its_lines_and_loses_other_control_characters() -> None:
    stream = io.StringIO()
    print_result(Result(document={}, blocks=[HOSTILE]), stream, as_json=False)
    assert stream.getvalue() == "one\n\\x1b[2J\\x9b31m\\u202etwo\\ud800\n"


def test_a_warning_with_a_reason_of_a_server_is_one_printable_line() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    report(
        Result(document={}, blocks=[], notes=[HOSTILE], failures={"broker\x1b": HOSTILE}, asked=2),
        stdout,
        stderr,
        as_json=False,
    )
    assert len(stderr.getvalue().splitlines()) == 2
    assert all(letter.isprintable() for line in stderr.getvalue().splitlines() for letter in line)


def test_control_c_is_found_beside_other_errors() -> None:
    assert interrupted(KeyboardInterrupt())
    assert interrupted(
        BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [KeyboardInterrupt()])])
    )
    assert not interrupted(BaseExceptionGroup("", [ValueError()]))
    assert not interrupted(SystemExit())
