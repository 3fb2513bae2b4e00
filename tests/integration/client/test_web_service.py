"""The example of a web application runs under uvicorn, with asyncio's loop and with uvloop."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio

from triomq.testing import InProcessCluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_web_application_sends_and_handles(
    loop: str, triomq_cluster: InProcessCluster
) -> None:
    for package in ("uvicorn", *(["uvloop"] if loop == "uvloop" else [])):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: it is in the extra `dev`")
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0"]
    process = await trio.lowlevel.open_process(
        [*command, "--loop", loop, "web_service:app"],
        env={**os.environ, "NAMESRV_ADDR": triomq_cluster.namesrv_address},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        with trio.fail_after(60):
            assert process.stderr is not None
            log = ""
            while (found := re.search(r"running on (http://\S+)", log)) is None:
                chunk = await process.stderr.receive_some()
                assert chunk, log
                log += chunk.decode()
            async with httpx.AsyncClient(base_url=found[1], timeout=30) as web:
                answer = (await web.post("/visits", content=b"first")).json()
                assert len(answer["id"]) == 32
                while not (await web.post("/visits", content=b"more")).json()["handled"]:
                    await trio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            while chunk := await process.stderr.receive_some():
                log += chunk.decode()
            await process.wait()
    finally:
        process.kill()
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
