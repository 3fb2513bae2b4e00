"""The format of Java's properties: read as Java reads it, and written so that both can read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.core.properties_file import (
    Entry,
    PropertiesError,
    decode_text,
    format_properties,
    parse_entries,
    parse_properties,
)

JAVA_READS = json.loads(
    (Path(__file__).parents[3] / "golden" / "properties" / "java-17.json").read_text()
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_there_are_enough_examples() -> None:
    assert len(JAVA_READS) == 206
    assert sum(expected is None for _, expected in JAVA_READS) >= 2


@pytest.mark.parametrize(("text", "expected"), JAVA_READS, ids=range(len(JAVA_READS)))
def test_reads_what_java_reads(text: str, expected: dict[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(PropertiesError):
            parse_properties(text)
    else:
        assert parse_properties(text) == expected


@given(st.dictionaries(TEXT.filter(bool), TEXT))
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values)) == values


def test_written_text_is_plain_ascii() -> None:
    assert (
        format_properties({"a b": " 中\n", "p": "C:\\x=y"}) == "a\\ b=\\ \\u4E2D\\n\np=C:\\\\x=y\n"
    )


def test_entries_know_their_lines_and_repetitions() -> None:
    assert parse_entries("# one\n\na = 1\nb = 2 \\\n   3\na=4\n") == [
        Entry("a", "1", 3),
        Entry("b", "2 3", 4),
        Entry("a", "4", 6),
    ]


def test_broken_escape_names_its_line() -> None:
    with pytest.raises(PropertiesError, match=r"line 2: malformed escape \\u12zz"):
        parse_entries("a=1\nb=\\u12zz\n")


def test_bytes_are_utf8_or_latin1() -> None:
    assert decode_text("\ufeffa=中".encode()) == "a=中"
    assert decode_text(b"a=\xe9") == "a=é"
