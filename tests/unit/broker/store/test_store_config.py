"""Settings of the store: Java's names, units, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.delay_levels import format_delay_levels, parse_delay_levels


def test_defaults_are_java_s() -> None:
    config = StoreConfig(root=Path("store"))
    assert config.segment_size_bytes == 1_073_741_824
    assert config.queue_file_size_bytes == 6_000_000
    assert (config.index_slot_count, config.index_entry_count) == (5_000_000, 20_000_000)
    assert config.flush_mode is FlushMode.ASYNC
    assert (config.flush_interval_ms, config.sync_flush_timeout_ms) == (500, 5_000)
    assert config.message_size_bytes_max == 4_194_304
    assert len(config.delay_levels_ms) == 18
    assert config.commitlog_directory == Path("store/commitlog")
    assert StoreConfig(root=Path("store"), commitlog=Path("/log")).commitlog_directory == Path(
        "/log"
    )


def test_queue_files_hold_whole_entries() -> None:
    assert StoreConfig(root=Path("s"), queue_file_size_bytes=1_190).queue_file_size_bytes == 1_200


def test_flush_mode_by_java_s_word() -> None:
    assert StoreConfig(root=Path("s"), flush_mode="SYNC_FLUSH").flush_mode is FlushMode.SYNC  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SOMETIMES"):
        StoreConfig(root=Path("s"), flush_mode="SOMETIMES")  # type: ignore[arg-type]


def test_delay_levels() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    assert parse_delay_levels([5]) == (5,)
    for word in ("s", "1x", "-1s", "1.5s"):
        with pytest.raises(ValueError, match=word):
            parse_delay_levels(f"1s {word}")
    for text in ("1s 2m 3h 4d", "90s 0d", ""):
        assert format_delay_levels(parse_delay_levels(text)) == text


def test_the_store_host_is_an_address_and_a_port() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        StoreConfig(root=Path("s"), store_host=b"12345")


@pytest.mark.parametrize(
    "field",
    [
        "segment_size_bytes",
        "queue_file_size_bytes",
        "index_slot_count",
        "flush_interval_ms",
        "open_files_max",
    ],
)
def test_impossible_numbers_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        StoreConfig(root=Path("s"), **{field: 0})
