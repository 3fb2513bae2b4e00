"""Handles by which messages are recalled: what is none is refused."""

from __future__ import annotations

import base64

import pytest

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.recall_handle import RecallHandle


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_handle_comes_back() -> None:
    handle = RecallHandle("T", "broker-a", 1_700_000_000_000, "A" * 32)
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64",
        "é",
        encoded("v2 T broker-a 1 id"),
        encoded("v1 T broker-a 1"),
        encoded("v1 T broker-a 1 id more"),
        encoded("v1 T broker-a -1 id"),
        encoded("v1 T broker-a ٣ id"),
        encoded("v1 T broker-a " + "9" * 5_000 + " id"),
        encoded("v1 T broker-a 1 "),
        encoded("v1 T broker-a 1 a\x02b"),
        encoded("v1 T broker-a 1 \x02REAL_TOPIC\x01U"),
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is no recall handle"):
        RecallHandle.decode(text)
