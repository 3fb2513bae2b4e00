"""The program in docs/rocketmq5-clients.md, run by the official Python client."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from grpc_endpoints import ENDPOINTS
from grpc_peers import need_grpc_clients
from pages import one
from processes import PEERS

from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(200)]


async def test_the_program_of_the_page(tmp_path: Path) -> None:
    need_grpc_clients()
    text = one("docs/rocketmq5-clients.md", "from rocketmq import")
    assert "127.0.0.1:8081" in text
    with ENDPOINTS["broker"](tmp_path) as endpoint:
        async with Admin(endpoint.namesrv) as admin:
            await admin.create_topic("Orders", queues=4)
        program = tmp_path / "program.py"
        program.write_text(
            text.replace("127.0.0.1:8081", endpoint.address)
            + "print('got', received.body.decode())\nproducer.shutdown()\nconsumer.shutdown()\n"
        )
        python = PEERS / "grpc-python-5.1.2" / "venv" / "bin" / "python"
        with trio.fail_after(120):
            done = await trio.run_process(
                [str(python), str(program)], capture_stdout=True, capture_stderr=True, check=False
            )
    printed = (done.stdout + done.stderr).decode()
    assert 'got {"id": 1}' in printed, printed
