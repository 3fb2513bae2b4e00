"""The output of mqadmin: plain columns, rich tables on a terminal, JSON, CSV."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pytest

from triomq.client.mqadmin.core.output import plain, print_result
from triomq.client.mqadmin.core.result import Result, Table
from triomq.client.mqadmin.execution import report
from triomq.remoting.core.interrupt import interrupted

TABLE = Table(("Broker Name", ">QID", "Body"), [["broker-a", "0", "one"], ["b", "12", ""]])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
            blocks=[Table(("Broker Name", "Body"), [["broker-a", "[red]x\x1b[0m"]]), "a line"],
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


def on_terminal(monkeypatch: pytest.MonkeyPatch, table: Table, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    print_result(Result(document={}, blocks=[table]), stream, as_json=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


WIDE = Table(
    ("Group", ">Count", "Version", "Model", ">Diff"),
    [["billing" * 3, 2, "V5_3_3", "CLUSTERING", 12], ["audit", 0, "", "CLUSTERING", 0]],
    spare=("Version", "Model"),
)


@pytest.mark.parametrize(
    ("columns", "left_out"), [(70, []), (50, ["Version"]), (40, ["Version", "Model"])]
)
def test_a_narrow_terminal_goes_without_spare_columns(
    monkeypatch: pytest.MonkeyPatch, columns: int, left_out: list[str]
) -> None:
    lines = on_terminal(monkeypatch, WIDE, columns)
    assert all(len(line) <= columns for line in lines[:4])
    assert [title for title in ("Version", "Model") if title not in lines[0]] == left_out
    end = f"(no room for {', '.join(left_out)}: use a wider terminal or --json)"
    assert lines[4:] == ([end] if left_out else [])


def test_a_table_that_cannot_fit_is_stacked_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert on_terminal(monkeypatch, WIDE, 30) == [
        "Group    billingbillingbilling",
        "Count    2",
        "Version  V5_3_3",
        "Model    CLUSTERING",
        "Diff     12",
        "",
        "Group    audit",
        "Count    0",
        "Model    CLUSTERING",
        "Diff     0",
    ]


@pytest.mark.parametrize(("columns", "folded"), [(80, True), (200, False)])
def test_a_terminal_folds_only_the_last_column(
    monkeypatch: pytest.MonkeyPatch, columns: int, folded: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    table = Table(
        ("MsgId", ">QID", "Body"), [["F" * 40, "7", "a message " * 6], ["0" * 40, "12", "短"]]
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
        "triomq.client.core.config",
        "triomq.client.core.session",
        "triomq.client.sending",
        "triomq.client.receiving",
    }
    code = (
        "import sys, triomq.client.mqadmin.execution, triomq.client.mqadmin.commands.topic;"
        " print(*sys.modules)"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert {"trio", "triomq.client.admin.admin"} <= loaded
    assert loaded & unneeded == set()


FAILED = {"broker-b": "it did not answer\nin time", "broker-a": "shown"}


def test_a_server_that_failed_has_a_row_unless_the_table_has_one() -> None:
    stream = io.StringIO()
    tables: list[Table | str] = [
        Table(("Topic", "Broker Name"), [["orders", "broker-a"]]),
        "a line",
    ]
    print_result(Result(document={}, blocks=tables, failures=FAILED), stream, as_json=False)
    assert stream.getvalue() == (
        "#Topic  #Broker Name\norders  broker-a\n-  broker-b  failed: it did not answer in time\n"
        "a line\n"
    )


def test_a_server_that_failed_has_a_line_below_lines() -> None:
    stream = io.StringIO()
    print_result(Result(document={}, blocks=["a line"], failures=FAILED), stream, as_json=False)
    assert stream.getvalue().splitlines() == [
        "a line",
        "broker-b  failed: it did not answer in time",
        "broker-a  failed: shown",
    ]


@pytest.mark.parametrize(
    ("notation", "document", "expected"),
    [
        ('{"topics": [name]}', {"topics": ["a", 'b"']}, 'topics\na\n"b"""\n'),
        ('{"rows": [{"n", "x"}], "sum"}', {"rows": [{"n": 1, "x": None}], "sum": 1}, "n,x\n1,\n"),
        ('{"rows": [{"n", "x"}], "sum"}', {"rows": [], "sum": 0}, "n,x\n"),
        ('{"by": {address: {key: value}}}', {"by": {"h": {"k": 1}}}, "address,key,value\nh,k,1\n"),
        (
            '{"by": {address: {"n", "l": []}}}',
            {"by": {"h": {"n": 0, "l": [2]}}},
            "address,n,l\nh,0,[2]\n",
        ),
        ('{"by": {group: [{"id"}]}}', {"by": {"g": [{"id": 7}], "e": []}}, "group,id\ng,7\n"),
        ('{"by": {address: number of topics}}', {"by": {"h": 3}}, "address,value\nh,3\n"),
        ('{"a", "b", "failures": {x: y}}', {"a": True, "b": "\x1b[2J"}, "a,b\ntrue,\\x1b[2J\n"),
        (
            '{"l": [k]}',
            {"l": ['=HYPERLINK("x")', "@a", "-1"]},
            'l\n"\'=HYPERLINK(""x"")"\n\'@a\n\'-1\n',
        ),
        ('{"l": [n]}', {"l": [-1]}, "l\n-1\n"),
        ('{"l": [n]}; with -c {"l": [{"n", "m"}]}', {"l": [{"n": 1, "m": 2}]}, "n,m\n1,2\n"),
    ],
)
def test_csv_has_the_rows_of_the_main_part(
    notation: str, document: dict[str, object], expected: str
) -> None:
    stream = io.StringIO()
    print_result(Result(document=document, blocks=[]), stream, as_json=False, csv_shape=notation)
    assert stream.getvalue() == expected


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
