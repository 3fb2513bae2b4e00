"""Small stores with a topic of batch consume queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stores import draft, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.sys_flags import INNER_BATCH, NEED_UNWRAP

TOPIC = "Batches"


def inner_batch(count: int, text: str = "m", **changes: Any) -> Draft:
    """One record with ``count`` messages."""
    body = encode_batch((0, f"{text}{number}".encode(), b"") for number in range(count))
    extra = {"INNER_NUM": str(count), **changes.pop("extra", {})}
    return draft(
        body, TOPIC, sys_flag=INNER_BATCH | NEED_UNWRAP, special=True, extra=extra, **changes
    )


def single(text: str = "alone", **changes: Any) -> Draft:
    return draft(text, TOPIC, special=True, **changes)


def batch_config(root: Path, **changes: Any) -> StoreConfig:
    """Ten entries a file."""
    return tiny_config(root, batch_queue_file_size_bytes=460, **changes)
