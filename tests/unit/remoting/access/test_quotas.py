"""Quotas: how they are written, which one counts, and that the mean rate is the quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.access import quotas as quotas_module
from triomq.remoting.access.quotas import QUOTAS, Quotas, Use

TEXT = "User:shop requests=3; Topic:orders messages=2 bytes=1000; Topic:* messages=5"


def use(topic: str = "orders", **more: object) -> Use:
    return Use(**{"user": None, "topic": topic, "group": None, "messages": 1, **more})  # type: ignore[arg-type]


def accepted(quotas: Quotas, now: float, *uses: Use) -> list[bool]:
    return [not quotas.refusal(each, now) for each in uses]


def test_quotas_are_read_and_written_alike() -> None:
    assert QUOTAS.read(QUOTAS.write(QUOTAS.read(TEXT))) == QUOTAS.read(TEXT)
    assert QUOTAS.read("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "orders messages=1",
        "Topic:orders",
        "Topic:orders messages=0",
        "Topic:orders messages=many",
        "Topic:orders tons=1",
        "Topic:o*s messages=1",
        "Cluster:c requests=1",
        "Topic: messages=1",
        "Topic:orders connections=1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quota"):
        QUOTAS.read(text)


def test_the_most_exact_quota_counts_and_each_name_has_its_own() -> None:
    quotas = Quotas(QUOTAS.read(TEXT))
    assert accepted(quotas, 0.0, use(), use(), use()) == [True, True, False]
    assert accepted(quotas, 0.0, *[use("a")] * 6) == [True] * 5 + [False]
    assert accepted(quotas, 0.0, use("b")) == [True]
    assert quotas.refused == {("Topic:orders", "messages"): 1, ("Topic:*", "messages"): 1}
    assert accepted(quotas, 0.4, use()) == [False]
    assert accepted(quotas, 0.6, use(), use()) == [True, False]


def test_a_refused_request_spends_nothing() -> None:
    quotas = Quotas(QUOTAS.read("User:shop requests=1; Topic:orders messages=10"))
    assert accepted(quotas, 0.0, *[use(user="shop")] * 5) == [True] + [False] * 4
    assert accepted(quotas, 0.0, *[use()] * 10) == [True] * 9 + [False]


def test_a_message_larger_than_the_quota_leaves_a_debt() -> None:
    quotas = Quotas(QUOTAS.read("Topic:orders bytes=1000"))
    assert accepted(quotas, 0.0, use(size=5000), use(size=1)) == [True, False]
    assert accepted(quotas, 3.9, use(size=1)) == [False]
    assert accepted(quotas, 4.1, use(size=1)) == [True]


def test_made_up_names_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "ACCOUNTS_MAX", 10)
    quotas = Quotas(QUOTAS.read("Topic:* messages=1"))
    for number in range(100):
        quotas.refusal(use(f"t{number}"), 0.0)
    assert len(quotas._accounts) == 10


@given(
    rate=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 50)), min_size=1, max_size=200),
)
def test_no_more_than_the_quota_and_one_burst_gets_in(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    quotas = Quotas(QUOTAS.read(f"Topic:orders messages={rate}"))
    now, count, largest = 0.0, 0, 0
    for pause, messages in steps:
        now += pause
        largest = max(largest, messages)
        if not quotas.refusal(use(messages=messages), now):
            count += messages
    assert count <= rate * (now + 1) + largest
