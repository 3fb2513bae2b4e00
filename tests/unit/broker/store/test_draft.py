"""What may be stored: every limit of the format and of the configuration, checked before the
append.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stores import draft, tiny_config

from triomq.broker.store.core.draft import check_draft
from triomq.broker.store.core.errors import IllegalMessage

CONFIG = tiny_config(Path("store"), segment_size_bytes=1 << 30, message_size_bytes_max=1_000)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"body": b""},
        {"body": b"x" * 1_000},
        {"topic": "x" * 127},
        {"topic": "%RETRY%" + "x" * 248},
        {"properties": b"p" * 32_767},
        {"flag": -(2**31) + 1},
        {"born_host": bytes(20)},
    ],
)
def test_legal(changes: dict[str, Any]) -> None:
    check_draft(draft(**changes), CONFIG)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "x" * 128}, "128 bytes, at most 127"),
        ({"topic": "ü" * 64}, "128 bytes"),
        ({"topic": "%RETRY%" + "x" * 249}, "256 bytes, at most 255"),
        ({"topic": ""}, "directory"),
        ({"topic": ".."}, "directory"),
        ({"topic": "a/../../b"}, "directory"),
        ({"topic": "a\0"}, "directory"),
        ({"topic": "\ud800"}, "directory"),
        ({"body": b"x" * 1_001}, "maxMessageSize"),
        ({"properties": b"p" * 32_768}, "properties"),
        ({"properties": b"a\x01b\0"}, "zero byte"),
        ({"queue_id": -1}, "queue id"),
        ({"queue_id": 1 << 31}, "queue id"),
        ({"flag": 1 << 31}, "flag"),
        ({"reconsume_times": 1 << 31}, "reconsume"),
        ({"sys_flag": -1}, "sysFlag"),
        ({"born_timestamp": 1 << 63}, "born timestamp"),
        ({"born_host": b"1234"}, "born host"),
    ],
)
def test_illegal(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(IllegalMessage, match=words):
        check_draft(draft(**changes), CONFIG)


def test_a_record_must_fit_into_a_segment() -> None:
    config = tiny_config(Path("store"), message_size_bytes_max=1 << 20)
    check_draft(draft(b"x" * 3_000), config)
    with pytest.raises(IllegalMessage, match="4088"):
        check_draft(draft(b"x" * 4_000), config)
