"""SQL92 filters: what they select, what they refuse, and that hostile ones end in an error."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.filters.tokens import FilterInvalid
from triomq.broker.filters.values import compare_doubles

SELECTED = [
    ("a = 3 AND b <> 4 AND c > 5 AND d <= 4", {"a": "3", "b": "5", "c": "6", "d": "1"}),
    ("a IS NULL OR a = 'hello'", {}),
    ("a IS NULL OR a = 'hello'", {"a": "hello"}),
    ("a = TRUE OR b = FALSE", {"a": "true", "b": "false"}),
    ("a = TRUE", {"a": "True"}),
    ("a > 3.1E10", {"a": "3.2E10"}),
    ("TAGS = '''''tag'''''", {"TAGS": "''tag''"}),
    ("value CONTAINS 'x' and value STARTSWITH 'a' AND value endswith 'b'", {"value": "axb"}),
    ("Region IS NOT NULL AND Region = 'Hangzhou'", {"Region": "Hangzhou"}),
    (
        "Region IS NOT NULL AND price IS NOT NULL AND Region = 'Hangzhou' AND price > 30",
        {"Region": "Hangzhou", "price": "35"},
    ),
    ("True", {}),
    ("'x' <> a", {}),
    ("NOT (a = 1)", {"a": "2"}),
    ("a NOT IN ('x', 'y')", {"a": "z"}),
    ("a BETWEEN -1 AND 1 /* around nought */", {"a": "0"}),
    ("a NOT BETWEEN 0 AND 1 -- outside\n", {"a": "2"}),
    ("a > 1", {"a": "+2"}),
    ("a >= b", {"a": " 1e3f", "b": "0x1p3"}),
    ("a = 2147483648", {"a": "2147483648"}),
]
NOT_SELECTED = [
    ("a = TRUE OR b = FALSE", {"a": "false", "b": "true"}),
    ("a IS NULL OR a = 'hello'", {"a": "abc"}),
    ("a IS NOT NULL AND a = 'hello'", {}),
    ("a BETWEEN 0 AND 100", {"a": "abc"}),
    ("value CONTAINS ''", {"value": "x"}),
    ("value NOT CONTAINS 'x'", {}),
    ("price > 30", {"price": "35.5"}),
    ("a <> 'x'", {}),
    ("a", {"a": "true"}),
    ("TRUE = a", {"a": "true"}),
    ("a > 1", {"a": "1_000"}),
    ("a = 1", {"a": "2147483648"}),
    ("a > 3", {"a": "abc"}),
    ("a > 3 OR TRUE", {"a": "abc"}),
    ("-a = 1", {"a": "-1"}),
    ("NULL", {}),
]
REFUSED = [
    ("a BETWEEN 10 AND 0", "lower value"),
    ("a = NULL", "IS NULL"),
    ("a > 'x'", "only properties and numbers"),
    ("a > TRUE", "only properties and numbers"),
    ("3", "neither true nor false"),
    ("a IN (1)", "a text in single quotes"),
    ("'a' IN ('a')", "only a property"),
    ("a = 9223372036854775808", "64 bits"),
    ("a = 0.0", "write 0"),
    ("a = 1e400", "write 0"),
    ("a = 'x", "closing quote"),
    ("a != 1", "'!' at character 3"),
    ("a = 1 b", "'b' stands at character 7"),
    ("a = 007", "'00' at character 5 is not a number"),
    ("a = 1.5.5", "'1.5.' at character 5 is not a number"),
    ("a = " + "9" * 5000, "64 bits"),
    ("a = --1 -- 2", "'-' stands at character 9"),
    ("a IS 1", "NULL or NOT NULL"),
    ("(a = 1", "a closing parenthesis"),
    ("", "the expression ends"),
    ("TRUE = 1", "TRUE and FALSE"),
    ("a-b = 1", "'-' stands at character 2"),
]


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Interrupt code that runs longer than ``seconds``, even inside a loop; a regular expression is
    interrupted when it ends.
    """

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"it ran for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("expression", "properties"), SELECTED)
def test_selected(expression: str, properties: dict[str, str]) -> None:
    assert compile_filter(expression)(properties) is True


@pytest.mark.parametrize(("expression", "properties"), NOT_SELECTED)
def test_not_selected(expression: str, properties: dict[str, str]) -> None:
    assert compile_filter(expression)(properties) is False


@pytest.mark.parametrize(("expression", "words"), REFUSED)
def test_refused_with_the_cause(expression: str, words: str) -> None:
    with pytest.raises(FilterInvalid) as caught:
        compile_filter(expression)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "TRUE" + ")" * 5000,
        "NOT " * 5000 + "TRUE",
        "a = " + "-" * 5000 + "1",
        "a" + " = a" * 5000,
        "x" * 70_000,
    ],
    ids=["parentheses", "not", "signs", "equals", "long"],
)
def test_expressions_that_nest_without_end_are_refused(expression: str) -> None:
    with pytest.raises(FilterInvalid):
        compile_filter(expression)


def test_a_long_chain_is_no_nesting() -> None:
    chain = " OR ".join(f"a = {number}" for number in range(400))
    assert compile_filter(chain)({"a": "399"})
    assert not compile_filter(chain)({"a": "400"})


HOSTILE = [
    "a = " + "0" * 16_000,
    "-" * 16_000,
    "a = -" + "- " * 8_000,
    "/*" + "*" * 16_000,
    "'" * 15_999,
    "a = 1 OR " * 1_700,
    "1" * 16_000,
    "." * 16_000,
]


@pytest.mark.parametrize("expression", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_expressions_are_refused_in_one_pass(expression: str) -> None:
    """Each of these takes milliseconds; looking at the rest again at each character would take
    seconds, and be stopped.
    """
    with stopped_after(2), pytest.raises(FilterInvalid):
        compile_filter(expression)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 32_000 + "x",
        "0x" + "1" * 32_000,
        " " * 32_000,
        "." + "1" * 32_000 + "e",
        "1" * 16_000 + "." + "1" * 16_000 + "e+",
    ],
)
def test_hostile_properties_are_read_in_one_pass(text: str) -> None:
    with stopped_after(2):
        assert not compile_filter("a > 3.5")({"a": text})
        assert not compile_filter("a > b")({"a": text, "b": text})


def test_the_stop_watch_stops() -> None:
    def for_ever() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError), stopped_after(0.05):
        for_ever()


def test_doubles_compare_as_in_java() -> None:
    nan = float("nan")
    assert compare_doubles(nan, nan) == 0
    assert compare_doubles(nan, float("inf")) > 0
    assert compare_doubles(-0.0, 0.0) < 0
    assert compare_doubles(0.0, -0.0) > 0
    assert compare_doubles(0.0, 0.0) == 0
