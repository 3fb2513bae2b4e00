"""The first use of a new segment costs no page faults, so there is nothing to warm up
(warmMapedFileEnable) or to lock in memory.
"""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest
from stores import draft, tiny_config

from triomq.broker.store.opening import open_store

SEGMENT = 16 * 1024 * 1024
BATCH = [draft(bytes(1000)) for _ in range(32)]


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def faults_of_a_map(path: Path) -> int:
    """Return the page faults of writing bytes through a memory map of a new file: proof that they
    are counted.
    """
    with path.open("w+b") as file:
        file.truncate(SEGMENT)
        with mmap.mmap(file.fileno(), SEGMENT) as view:
            before = faults()
            for position in range(0, SEGMENT, mmap.PAGESIZE):
                view[position] = 1
            return faults() - before


@pytest.mark.feature("35a")
async def test_a_new_segment_is_used_without_page_faults(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "store", segment_size_bytes=SEGMENT, index_enabled=False)
    async with open_store(config) as store:

        def fill_a_segment() -> int:
            target, before = len(store.log.segments.items) + 1, faults()
            while len(store.log.segments.items) < target:
                store.append(BATCH)
            return faults() - before

        fill_a_segment()  # the interpreter's own memory grows to its size
        spent = fill_a_segment()
    pages = faults_of_a_map(tmp_path / "map")
    assert pages > 100  # less than one a page, since the kernel maps neighbours, too
    assert spent < pages / 2
