"""docs/limits.md matches the code, and names every limit of the tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from triomq.broker.services.table_limits import BrokerTableLimits
from triomq.namesrv.table_limits import NamesrvTableLimits
from triomq.remoting.settings import settings_of

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import generate_limits

    assert (DOCS / "limits.md").read_text() == generate_limits.page(), "run: make docs"
    with pytest.raises(KeyError, match="noSuchSetting"):
        generate_limits.value_of(generate_limits.Row("x", "noSuchSetting", "y", "z"), {})
    with pytest.raises(AttributeError, match="NO_SUCH_MAX"):
        generate_limits.value_of(
            generate_limits.Row("x", "broker.store.draft:NO_SUCH_MAX", "y", "z"), {}
        )
    del sys.modules["generate_limits"]


@pytest.mark.parametrize("limits", [BrokerTableLimits, NamesrvTableLimits])
def test_every_limit_of_the_tables_is_on_the_page(limits: type) -> None:
    page = (DOCS / "limits.md").read_text()
    for _, _, described in settings_of(limits):
        assert f"`{described.java}`" in page
