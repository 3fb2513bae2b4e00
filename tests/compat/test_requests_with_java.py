"""Request and reply between the official Java clients and our SDK, on our brokers.

test_a_day_of_our_sdk_with_java.py has the same on Java's.
"""

from __future__ import annotations

from pathlib import Path

import processes
import pytest
import trio
from request_exchange import exchange

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]


@pytest.mark.loss
@pytest.mark.feature("162d")
@pytest.mark.compatible("request and reply", peer="java-client-{java_version}")
def test_requests_and_replies_on_our_broker(tmp_path: Path, java_version: str) -> None:
    with (
        processes.our_name_server(tmp_path) as namesrv,
        processes.our_broker(tmp_path, "broker-a", namesrv),
    ):
        processes.wait_registered(namesrv, "broker-a")
        trio.run(exchange, java_version, namesrv, tmp_path)
