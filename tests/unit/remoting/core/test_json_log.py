"""Logs in JSON: each line is an object, whatever a peer has sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.process import set_up_logging

logger = logging.getLogger("triomq.test")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    handlers, level = logging.root.handlers[:], logging.root.level
    set_up_logging("mqtest", tmp_path, "INFO", "json")
    yield tmp_path / "mqtest.log"
    for handler in logging.root.handlers:
        handler.close()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_each_line_is_an_object(path: Path) -> None:
    nasty = 'a\nb\x1b[31m "c" \u2028\x7f\x85 é \ud800'
    logger.info("from %s", nasty)
    LogLimit().log(logger, logging.WARNING, "slow %d", 7, fields={"ms": 7, "path": path})
    try:
        raise KeyError(nasty)
    except KeyError as error:
        logger.error("failed", exc_info=error)
    text = path.read_text()
    assert all(" " <= character < "\x7f" for character in text.replace("\n", ""))
    first, second, third = [json.loads(line) for line in text.splitlines()]
    assert first["message"] == f"from {nasty}"
    assert (first["level"], first["logger"]) == ("INFO", "triomq.test")
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert set(first) == {"time", "level", "logger", "message"}
    assert second["fields"] == {"ms": 7, "path": str(path)}
    assert third["exception"].startswith("Traceback")
    assert "KeyError" in third["exception"]
