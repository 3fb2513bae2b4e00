"""The argument parser of mqadmin and mqlocal: getopt's rules, RocketMQ's names, one-line errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.admin.arguments import Option, UsageError, parse, truth, whole
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command_list import LIST

OPTIONS = (
    Option("-t, --topic VALUE", "name of the topic", required=True),
    Option("-b, --brokerAddr ADDRESS", "a broker"),
    Option("-c, --clusterName VALUE", "a cluster"),
    Option("-r, --readQueueNums VALUE", "queues", whole(1), default=8),
    Option("-l, --list", "a table"),
    Option("-m, --moreStats", "more"),
    Option("-o, --order VALUE", "ordered", truth),
    Option("-a, --attributes VALUE", "changes", str),
    Option("--json", "JSON"),
)


@pytest.mark.parametrize(
    "words",
    [
        ["-t", "orders"],
        ["-torders"],
        ["-t=orders"],
        ["--topic", "orders"],
        ["--topic=orders"],
        ["--TOPIC", "orders"],
        ["-t", "first", "-t", "orders"],
        ["-t", " orders "],
    ],
)
def test_every_way_to_write_a_value(words: list[str]) -> None:
    assert parse(OPTIONS, words).text("topic") == "orders"


def test_long_names_match_in_kebab_case() -> None:
    values = parse(OPTIONS, ["-t", "x", "--broker-addr", "a:1", "--read-queue-nums=3"])
    assert (values.text("brokerAddr"), values.number("readQueueNums")) == ("a:1", 3)


def test_letters_without_value_may_be_joined() -> None:
    values = parse(OPTIONS, ["-lmt", "x"])
    assert (
        values.flag("list"),
        values.flag("moreStats"),
        values.flag("json"),
        values.text("topic"),
    ) == (True, True, False, "x")


def test_a_value_may_look_like_an_option() -> None:
    assert parse(OPTIONS, ["-t", "x", "-a", "-message.type"]).text("attributes") == "-message.type"
    assert parse(OPTIONS, ["-t", "x", "-a", "--json"]).flag("json") is False


def test_defaults_and_what_was_not_given() -> None:
    values = parse(OPTIONS, ["-t", "x"])
    assert values.number("readQueueNums") == 8
    assert values.maybe_text("brokerAddr") is None
    assert values.maybe_flag("order") is None
    assert "brokerAddr" not in values
    with pytest.raises(KeyError):
        values.maybe_text("no such option")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "-t/--topic is missing: name of the topic"),
        (["-t"], "-t/--topic needs a value: name of the topic"),
        (["-t", " "], "-t/--topic cannot be ' ': it is empty"),
        (
            ["-t", "x", "-b", "broker-b"],
            (
                "-b/--brokerAddr cannot be 'broker-b': address 'broker-b' has no port; write"
                " host:port, for example 127.0.0.1:9876"
            ),
        ),
        (
            ["-t", "x", "-r", "many"],
            "-r/--readQueueNums cannot be 'many': use a whole number from 1 up",
        ),
        (["-t", "x", "-r", "0"], "-r/--readQueueNums cannot be '0': use a whole number from 1 up"),
        (["-t", "x", "-o", "yes"], "-o/--order cannot be 'yes': use true or false"),
        (["-t", "x", "--tpoic", "y"], "there is no option --tpoic; the nearest is -t/--topic"),
        (["-t", "x", "--zzz=1"], "there is no option --zzz; --help lists those that exist"),
        (["-t", "x", "-q"], "there is no option -q; --help lists those that exist"),
        (["-t", "x", "--list=1"], "-l/--list takes no value"),
        (
            ["-t", "hello", "world"],
            (
                "'world' does not belong to an option: put a text with blanks in quotes, and give"
                " each value right after its option"
            ),
        ),
    ],
)
def test_errors_are_one_line_with_cause_and_fix(words: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(OPTIONS, words)
    assert str(caught.value) == complaint


def test_exactly_one_of() -> None:
    one_of = (("brokerAddr", "clusterName"),)
    assert parse(OPTIONS, ["-t", "x", "-c", "c"], one_of).text("clusterName") == "c"
    with pytest.raises(UsageError, match="one of -b/--brokerAddr and -c/--clusterName is needed"):
        parse(OPTIONS, ["-t", "x"], one_of)
    with pytest.raises(UsageError, match="give only one of -b/--brokerAddr and -c/--clusterName"):
        parse(OPTIONS, ["-t", "x", "-b", "a:1", "-c", "c"], one_of)


def test_whole_numbers_have_two_limits() -> None:
    assert whole(0, 7)("7") == 7
    with pytest.raises(ValueError, match="from 0 to 7"):
        whole(0, 7)("8")


@given(st.lists(st.text(max_size=8), max_size=8))
def test_any_words_give_values_or_a_usage_error(words: list[str]) -> None:
    try:
        values = parse(OPTIONS, words)
    except UsageError as error:
        assert str(error)  # noqa: PT017 - one of two allowed ends
    else:
        assert values.text("topic")


@pytest.mark.parametrize(
    "words", [["orders"], ["orders", "-l"], ["-l", "orders"], ["-c", "c", "orders"]]
)
def test_a_subject_needs_no_option(words: list[str]) -> None:
    assert parse(OPTIONS, words, subject=OPTIONS[0]).text("topic") == "orders"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["orders", "refunds"], "'refunds' does not belong to an option"),
        (["-t", "orders", "refunds"], "'refunds' does not belong to an option"),
        (["orders", "-t", "refunds"], "-t/--topic is given twice"),
    ],
)
def test_a_subject_is_given_once(words: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse(OPTIONS, words, subject=OPTIONS[0])


def test_what_commands_are_about() -> None:
    found = {
        name: command.subject.name for name in LIST if (command := load(name)).subject is not None
    }
    assert found["consumerConnection"] == "consumerGroup"
    assert found["topicRoute"] == "topic"
    assert found["resetOffsetByTime"] == "group"
    assert found["queryMsgTraceById"] == "msgId"
    assert "groupWhy" not in found, "it has an argument"
    assert "cloneGroupOffset" not in found, "it has two groups"
    assert "sendMessage" not in found, "a body with blanks that is not quoted must be refused"
