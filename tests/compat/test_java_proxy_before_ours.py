"""Java's proxy in CLUSTER mode before our name server and brokers: its second port. What it does
for RocketMQ 5 clients is in test_grpc_clients.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from foreign_clients import foreign_client
from grpc_endpoints import java_proxy_before_ours
from grpc_scenarios import COUNT
from topic_reader import read_topic

from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


@pytest.mark.loss
async def test_remoting_clients_at_the_proxy(tmp_path: Path) -> None:
    """There it speaks the remoting protocol, and is name server and broker for a Java client."""
    with java_proxy_before_ours(tmp_path) as endpoint:
        async with Admin(endpoint.namesrv) as admin:
            await admin.create_topic("Remoting", queues=2)
        host, _, port = endpoint.address.partition(":")
        proxy = f"{host}:{int(port) + 1}"
        with foreign_client("java-client-5.5.0", proxy, tmp_path) as client:
            sent = client.send("Remoting", "sync", COUNT)
            got = client.consumed("Remoting", "remoting", COUNT)
        assert Counter(message.body for message in got) == {f"body-{i}": 1 for i in range(COUNT)}
        stored = await read_topic(endpoint.namesrv, "Remoting", COUNT)
    ids = {message.message_id for message in stored}
    assert {each.message_id for each in sent} == ids == {message.message_id for message in got}
