"""The comparison says of ours what is so: what stands as "not yet" is refused by the broker, and what the row asks for is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.processors.unsupported import UNSUPPORTED
from triomq.remoting.protocol.codes import RequestCode as Code

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "comparison.md").read_text()
ROWS = {cells[0]: cells[1:] for line in PAGE.splitlines() if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])}
ASKED = {"tag": "Filter by tag", "timer": "Delayed messages", "transactions": "Transactions", "query": "Find a message by key", "rewind": "Go back to a time or offset"}
ASKED |= {"flush": "Synchronous flush", "copy": "Synchronous copy", "order": "Order"}


def row(beginning: str) -> list[str]:
    (found,) = [cells for name, cells in ROWS.items() if name.startswith(beginning)]
    return found


@pytest.mark.feature(156)
@pytest.mark.parametrize("beginning", ASKED.values(), ids=ASKED)
def test_all_four_systems_are_compared(beginning: str) -> None:
    assert len(row(beginning)) == 4
    assert all(row(beginning))


@pytest.mark.feature(156)
@pytest.mark.parametrize(("beginning", "code"), [("Transactions", Code.END_TRANSACTION), ("Find a message by key", Code.QUERY_MESSAGE), ("Filter by tag", Code.PULL_MESSAGE)])
def test_not_yet_means_that_the_broker_refuses_it(beginning: str, code: int) -> None:
    assert (row(beginning)[0] == "not yet") is (code in UNSUPPORTED)
