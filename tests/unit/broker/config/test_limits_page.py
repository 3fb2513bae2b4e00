"""docs/limits.md matches the code, and names every limit of the tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from triomq.broker.processors.handler_table import handler_table as broker_table
from triomq.broker.services.table_limits import BrokerTableLimits
from triomq.namesrv.request_table import handler_table as namesrv_table
from triomq.namesrv.table_limits import NamesrvTableLimits
from triomq.remoting.core.settings import settings_of

DOCS = Path(__file__).parents[4] / "docs"


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import generate_limits

    assert (DOCS / "limits.md").read_text() == generate_limits.page(), "run: make docs"
    with pytest.raises(KeyError, match="noSuchSetting"):
        generate_limits.value_of(generate_limits.Row("x", "noSuchSetting", "y", "z"), {})
    with pytest.raises(AttributeError, match="NO_SUCH_MAX"):
        generate_limits.value_of(
            generate_limits.Row("x", "broker.store.core.draft:NO_SUCH_MAX", "y", "z"), {}
        )
    del sys.modules["generate_limits"]


@pytest.mark.parametrize("limits", [BrokerTableLimits, NamesrvTableLimits])
def test_every_limit_of_the_tables_is_on_the_page(limits: type) -> None:
    page = (DOCS / "limits.md").read_text()
    for _, _, described in settings_of(limits):
        assert f"`{described.java}`" in page


def test_every_request_code_is_measured() -> None:
    """``tests/hostile/test_loop_holds.py`` writes the file; no code may be missing there."""
    measured = json.loads((DOCS / "loop_holds.json").read_text())
    nothing = Mock()
    for server, table in (
        ("Broker", broker_table(nothing)),
        ("Name server", namesrv_table(nothing, nothing, nothing, nothing)),
    ):
        codes = {code for code, _, _ in measured[server]["requests"]}
        assert codes == {int(code) for code in table.handlers}
