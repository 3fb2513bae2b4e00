"""Settings of the store: Java's names, units, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.store.core.config import (
    FlushMode,
    StoreConfig,
    format_delay_levels,
    parse_delay_levels,
)


def test_defaults_are_java_s() -> None:
    config = StoreConfig(root=Path("store"))
    assert config.segment_size_bytes == 1_073_741_824
    assert config.queue_file_size_bytes == 6_000_000
    assert (config.index_slot_count, config.index_entry_count) == (5_000_000, 20_000_000)
    assert config.flush_mode is FlushMode.ASYNC
    assert (config.flush_interval_ms, config.sync_flush_timeout_ms) == (500, 5_000)
    assert config.message_size_bytes_max == 4_194_304
    assert len(config.delay_levels_ms) == 18
    assert config.commitlog == Path("store/commitlog")
    assert StoreConfig(root=Path("store"), commitlog=Path("/log")).commitlog == Path("/log")


def test_queue_files_hold_whole_entries() -> None:
    assert StoreConfig(root=Path("s"), queue_file_size_bytes=1_190).queue_file_size_bytes == 1_200


def test_delay_levels() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    for word in ("s", "1x", "-1s", "1.5s"):
        with pytest.raises(ValueError, match=word):
            parse_delay_levels(f"1s {word}")
    for text in ("1s 2m 3h 4d", "90s 0d", ""):
        assert format_delay_levels(parse_delay_levels(text)) == text


def test_the_store_host_is_an_address_and_a_port() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        StoreConfig(root=Path("s"), store_host=b"12345")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("segment_size_bytes", "mappedFileSizeCommitLog"),
        ("queue_file_size_bytes", "mappedFileSizeConsumeQueue"),
        ("index_slot_count", "maxHashSlotNum"),
        ("flush_interval_ms", "flushIntervalCommitLog"),
        ("open_files_max", "open_files_max"),
    ],
)
def test_impossible_numbers_are_refused(field: str, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        StoreConfig(root=Path("s"), **{field: 0})
