"""What tests of mqadmin share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    """Yield two brokers with the topic ``orders``."""
    async with local_cluster(brokers=2) as running:
        await running.create_topic("orders", queues=2)
        yield running
