"""What a producer remembers of its transactions: the running ones, and the last decided ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq import TransactionOutcome
from triomq.client.transactions.outcomes import Outcomes

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome


def test_a_transaction_is_unknown_while_it_runs() -> None:
    outcomes = Outcomes()
    assert outcomes.of("a") is None
    outcomes.begin("a")
    assert outcomes.of("a") is UNKNOWN
    outcomes.decide("a", COMMIT)
    assert outcomes.of("a") is COMMIT
    outcomes.begin("a")  # again, under the same id
    assert outcomes.of("a") is UNKNOWN
    outcomes.decide("a", UNKNOWN)
    assert outcomes.of("a") is None
    assert len(outcomes) == 0


DECISIONS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([COMMIT, ROLLBACK])))


@given(DECISIONS, st.integers(1, 5))
def test_the_last_decisions_are_kept(
    decisions: list[tuple[int, TransactionOutcome]], limit: int
) -> None:
    outcomes = Outcomes(limit)
    expected: dict[int, TransactionOutcome] = {}
    for number, outcome in decisions:
        outcomes.decide(str(number), outcome)
        expected.pop(number, None)
        expected[number] = outcome
        expected = dict(list(expected.items())[-limit:])
        assert {
            number: known for number in range(10) if (known := outcomes.of(str(number)))
        } == expected


def test_a_running_transaction_is_never_pushed_out() -> None:
    outcomes = Outcomes(2)
    outcomes.begin("long")
    for number in range(100):
        outcomes.begin(str(number))
        outcomes.decide(str(number), ROLLBACK)
    assert outcomes.of("long") is UNKNOWN
    assert [outcomes.of(str(number)) for number in (97, 98, 99)] == [None, ROLLBACK, ROLLBACK]
    assert len(outcomes) == 3
