"""SQL92 filters: ours beside RocketMQ's own filter classes on the same expressions, and Java
consumers that filter on our broker.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping

import pytest
import trio
from mqadmin_calls import mqadmin
from processes import java_command, java_home, java_peer

from triomq.broker.filters.bloom import BITS, bloom_positions
from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.filters.tokens import FilterInvalid

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

NAMES = ["a", "b", "c", "Region", "$x", "_y9"]
TEXTS = ["'x'", "'3'", "''", "'hello'", "'it''s'", "'TRUE'", "'3.0'", "'-5'"]
GOOD_NUMBERS = ["0", "1", "3", "42", "2147483647", "2147483648", "9223372036854775807", "3l"]
NUMBERS = [
    *GOOD_NUMBERS,
    "9223372036854775808",
    "0l",
    "007",
    "5.",
    "5.5",
    ".5",
    "3.1E10",
    "1e400",
    "0.0",
    "1E-400",
    "3e0",
]
VALUES = [
    "3",
    "3.0",
    "abc",
    "true",
    "TRUE",
    "false",
    "-5",
    "",
    "hello",
    "x",
    "3.1E10",
    "NaN",
    "-0.0",
    "0.0",
    "Infinity",
    "2147483648",
    "9223372036854775808",
]
VALUES += [" 3 ", "\u0663", "0x1p3", "1_0", "5f", "+7", "it's", "é", "\U0001d7d8"]


class Expressions:
    """Random expressions, most of them legal. 4.9.4 has no CONTAINS, STARTSWITH and ENDSWITH."""

    def __init__(self, seed: int, *, searches: bool) -> None:
        self.random, self.searches = random.Random(seed), searches

    def primary(self, depth: int) -> str:
        pick, choice = self.random.random(), self.random.choice
        if depth > 0 and pick > 0.72:
            return f"({self.expression(depth - 1)})"
        if pick < 0.15:
            return choice(NUMBERS)
        if pick < 0.25:
            return choice(TEXTS)
        return choice(["TRUE", "false", "Null"]) if pick < 0.32 else choice(NAMES)

    def unary(self, depth: int) -> str:
        pick = self.random.random()
        return (
            f"{'-' if pick < 0.04 else '+ ' if pick < 0.08 else 'NOT '}{self.unary(depth - 1)}"
            if pick < 0.16
            else self.primary(depth)
        )

    def operand(self) -> str:
        return self.random.choice([*NAMES, *NAMES, *GOOD_NUMBERS, "-1", "3.5"])

    def comparison(self, depth: int) -> str:
        pick, choice = self.random.random(), self.random.choice
        negative = choice(["", " NOT"])
        if pick < 0.35:
            return f"{self.operand()}{choice([' > ', ' >= ', '<', '<='])}{self.operand()}"
        if pick < 0.5 and self.searches:
            what = choice(TEXTS) if self.random.random() < 0.95 else self.primary(depth)
            return (
                f"{self.unary(depth)}{negative} {choice(['CONTAINS', 'startswith', 'EndsWith'])}"
                f" {what}"
            )
        if pick < 0.65:
            return f"{self.operand()}{negative} BETWEEN {self.operand()} AND {self.operand()}"
        if pick < 0.75:
            return (
                f"{choice(NAMES)}{negative} IN"
                f" ({','.join(choice(TEXTS) for _ in range(self.random.randint(1, 6)))})"
            )
        return self.unary(depth)

    def equality(self, depth: int) -> str:
        pick, left = self.random.random(), self.comparison(depth)
        if pick < 0.45:
            return f"{left}{self.random.choice([' = ', ' <> '])}{self.comparison(depth)}"
        return f"{left}{self.random.choice([' IS NULL', ' is not null'])}" if pick < 0.6 else left

    def expression(self, depth: int) -> str:
        text = self.equality(depth)
        for _ in range(self.random.choice([0, 0, 1, 1, 2])):
            text += self.random.choice([" AND ", " OR "]) + self.equality(depth)
        return text + (
            self.random.choice([" b", " -- c\n", "/* k */", " ;", " )"])
            if self.random.random() < 0.02
            else ""
        )

    def properties(self) -> dict[str, str]:
        return {name: self.random.choice(VALUES) for name in NAMES if self.random.random() < 0.6}


def hexed(text: str) -> str:
    return text.encode().hex()


def asked_of_java(version: str, lines: list[str]) -> list[str]:
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    done = subprocess.run(
        java_command(version, "Filters"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def outcome(expression: str, properties: Mapping[str, str]) -> str:
    """T: delivered; -: not; P: refused. What Java leaves unread behind an expression, such as ``a =
    1 b``, we refuse: ``?``.
    """
    try:
        return "T" if compile_filter(expression)(properties) else "-"
    except FilterInvalid as error:
        return (
            "?"
            if "the end is expected" in str(error)
            or "begins no word" in str(error)
            or "is not a number" in str(error)
            else "P"
        )


def test_random_expressions_select_the_same(java_version: str) -> None:
    made = Expressions(20260 + len(java_version), searches=java_version.startswith("5"))
    cases = [(made.expression(2), made.properties()) for _ in range(6_000)]
    lines = [
        " ".join(
            [hexed(text), *(f"{hexed(name)}={hexed(value)}" for name, value in properties.items())]
        )
        for text, properties in cases
    ]
    answers = asked_of_java(java_version, lines)
    assert len(answers) == len(cases)
    assert min(map(answers.count, "TFNXP")) > 150
    java = ["T" if answer == "T" else "P" if answer == "P" else "-" for answer in answers]
    ours = [outcome(text, properties) for text, properties in cases]
    assert ours.count("?") < len(cases) / 20
    assert [
        (theirs, mine, *case)
        for theirs, mine, case in zip(java, ours, cases, strict=True)
        if mine not in (theirs, "?")
    ] == []


def test_bloom_bits_are_javas(java_version: str) -> None:
    keys = [f"group{number}#topic{'é' * number}" for number in range(40)]
    for key, line in zip(
        keys, asked_of_java(java_version, [f"bloom {hexed(key)}" for key in keys]), strict=True
    ):
        assert [*bloom_positions(key), BITS] == [int(word) for word in line.split(",")]


@pytest.mark.loss
@pytest.mark.feature("120a")
def test_a_java_consumer_filters_on_our_broker(our_cluster: str, java_version: str) -> None:
    topic = f"Sql_{java_version.replace('.', '_')}"

    def switch(value: str) -> None:
        done = trio.run(
            mqadmin,
            "updateBrokerConfig",
            "-c",
            "TestCluster",
            "-k",
            "enablePropertyFilter",
            "-v",
            value,
            "-n",
            our_cluster,
        )
        assert done.code == 0, done

    switch("true")
    try:
        java_peer(java_version, "send", our_cluster, topic, "60", "TagA", "sync")
        expression = "sql:TAGS = 'TagA' AND KEYS IN ('java-3', 'java-17', 'java-58')"
        got = [
            line
            for line in java_peer(
                java_version, "consume", our_cluster, topic, f"sql-{topic}", expression, "3", "60"
            )
            if line[0] == "GOT"
        ]
        assert sorted(line[7] for line in got) == ["body-17", "body-3", "body-58"]
    finally:
        switch("false")
