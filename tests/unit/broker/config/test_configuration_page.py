"""docs/configuration.md and the pages below it match the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.client.proxy.proxy_config import PROXY_KEYS, ProxyConfig
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.remoting.core.process import ExitCode
from triomq.remoting.core.settings import settings_of

DOCS = Path(__file__).parents[4] / "docs"


PAGES = [DOCS / "configuration.md", *sorted((DOCS / "configuration").iterdir())]


def test_the_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "generate_configuration.py"))["pages"]()
    assert {str(path.relative_to(DOCS)): path.read_text() for path in PAGES[1:]} == pages, (
        "make docs"
    )


def test_every_key_has_its_line() -> None:
    text = "".join(path.read_text() for path in PAGES)
    lines = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
    own = {
        described.java
        for config in (BrokerConfig, NamesrvConfig, ProxyConfig)
        for _, _, described in settings_of(config)
        if described.own
    }
    tables = BROKER_KEYS, NAMESRV_KEYS, PROXY_KEYS
    assert lines == own.union(*(table.rows for table in tables))


def test_the_table_of_exit_codes_is_complete() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text[text.index("## Exit codes") : text.index("## Signals")]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {
        int(code) for code in ExitCode
    }
