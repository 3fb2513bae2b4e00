"""Which settings a broker names as changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokers import SMALL_STORE, broker_config

from triomq.broker.processors.broker_config import BrokerConfigRequests


def test_settings_that_are_changed_without_a_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    nothing: Any = None
    config = broker_config(tmp_path, listenPort=10911)
    requests = BrokerConfigRequests(config, nothing, nothing, nothing, nothing, nothing, nothing)
    changed = set(requests.changed().split())
    assert changed >= {"brokerName", "brokerIP1", *SMALL_STORE}
    assert not changed & {"listenPort", "storePathRootDir", "storePathCommitLog"}
