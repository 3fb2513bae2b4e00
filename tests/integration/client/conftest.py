"""What tests of the SDK share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threaded_cluster import cluster_in_a_thread


@pytest.fixture
def namesrv() -> Iterator[str]:
    """Yield the address of a cluster with the topic ``Numbers``, in a thread of its own."""
    with cluster_in_a_thread() as address:
        yield address
