"""Numbers with their noun, and the first error of a newcomer."""

from __future__ import annotations

import pytest

from triomq.client.admin.documents import count_of
from triomq.client.core.errors import NoNameServer
from triomq.client.mqadmin.command_line import complaint


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "retry", "1 retry"),
        (0, "retry", "0 retries"),
        (2, "failed delivery", "2 failed deliveries"),
        (3, "message", "3 messages"),
    ],
)
def test_nouns_follow_their_number(count: int, noun: str, text: str) -> None:
    assert count_of(count, noun) == text


def test_a_missing_name_server_names_the_options_of_mqadmin() -> None:
    line = complaint(NoNameServer({}))
    assert all(word in line for word in ("-n 'host:9876", "mqadmin context use", "NAMESRV_ADDR"))
    assert "127.0.0.1:1: refused" in complaint(NoNameServer({"127.0.0.1:1": "refused"}))
