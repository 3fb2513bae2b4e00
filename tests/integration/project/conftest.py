"""A shell for the lines of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_shell import Shell
from processes import free_port


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path, {"9876": free_port(), "10911": free_port()})
    yield found
    codes = found.stop()
    assert set(codes) <= {0}, codes
