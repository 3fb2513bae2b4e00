"""The comparison is true of TrioMQ: the broker refuses what the page calls "not yet", and all four
systems are compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.testing import InProcessCluster

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "comparison.md").read_text()
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])
}
ASKED = {
    "tag": "Filter by tag",
    "timer": "Delayed messages",
    "transactions": "Transactions",
    "query": "Find a message by key",
    "rewind": "Go back to a time or offset",
}
ASKED |= {"flush": "Synchronous flush", "copy": "Synchronous copy", "order": "Order"}


def row(beginning: str) -> list[str]:
    (found,) = [cells for name, cells in ROWS.items() if name.startswith(beginning)]
    return found


@pytest.mark.feature("156a")
@pytest.mark.parametrize("beginning", ASKED.values(), ids=ASKED)
def test_all_four_systems_are_compared(beginning: str) -> None:
    assert len(row(beginning)) == 4
    assert all(row(beginning))


@pytest.mark.feature("156b")
async def test_not_yet_means_that_the_broker_refuses_it(triomq_cluster: InProcessCluster) -> None:
    codes = {
        "Transactions": Code.END_TRANSACTION,
        "Find a message by key": Code.QUERY_MESSAGE,
        "Filter by tag": Code.PULL_MESSAGE,
        "Go back to a time": Code.SEARCH_OFFSET_BY_TIMESTAMP,
    }
    async with Connector() as connector:
        for beginning, code in codes.items():
            answer = await connector.invoke(
                triomq_cluster.brokers[0].address, request(code), timeout=5
            )
            refused = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (row(beginning)[0] == "not yet") is refused, (beginning, answer)
