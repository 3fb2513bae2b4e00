"""The example of docs/protocol.md that sends requests to a server, against a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from triomq.testing import local_cluster

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


async def test_a_script_asks_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```python live\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert "127.0.0.1:9876" in example
    async with local_cluster() as cluster:
        await trio.to_thread.run_sync(
            exec, example.replace("127.0.0.1:9876", cluster.namesrv_address), {}
        )
        assert capsys.readouterr().out == f"{[broker.name for broker in cluster.brokers]}\n"
