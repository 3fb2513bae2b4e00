"""A broker says once at its start which of its ports everybody may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokers import running_broker

ANY = {"bindAddress": "0.0.0.0", "brokerRole": "ASYNC_MASTER"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        (ANY, ["read, write and delete", "copy every message and count as a slave"]),
        ({**ANY, "haSlaveAddresses": "127.0.0.1"}, ["read, write and delete"]),
        (
            {**ANY, "haSlaveAddresses": "127.0.0.1", "auditLogPath": "AUDIT"},
            ["read, write and delete"],
        ),
    ],
)
async def test_open_ports_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], said: list[str]
) -> None:
    if "auditLogPath" in settings:  # it writes what happens, and refuses nothing
        settings = {**settings, "auditLogPath": str(tmp_path / "audit.log")}
    async with running_broker(tmp_path, **settings):
        pass
    warnings = [text for text in caplog.messages if text.startswith("everybody who reaches ")]
    assert [text.partition(" may ")[2].partition(": the port")[0] for text in warnings] == said
