"""A batch of sends goes through one buffer in memory and one write call; see docs/adr/013."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
from stores import draft, read_all, tiny_config

from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store


@attrs.define(eq=False)
class CountingDisk(Disk):
    """A disk that notes the size of each write to the log."""

    sizes: list[int] = attrs.field(factory=list)

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        if path.parent.name == "commitlog":
            self.sizes.append(len(data))
        super().write_at(fd, data, offset, path)


@pytest.mark.feature("54b")
@pytest.mark.parametrize("count", [1, 64, 5_000])
async def test_an_append_writes_all_its_messages_at_once(tmp_path: Path, count: int) -> None:
    """However many there are: no buffer has a size that could be used up."""
    disk = CountingDisk()
    config = tiny_config(tmp_path, segment_size_bytes=4 << 20, queue_file_size_bytes=200_000)
    async with open_store(config, disk=disk) as store:
        store.append([draft("first")])  # opens the log and the queue
        disk.sizes.clear()
        places = store.append([draft(b"%06d" % number) for number in range(count)])
        assert disk.sizes == [sum(place.size for place in places)]
        with trio.fail_after(20):  # the indexer's task shows what a long append has written
            await store.indexed.wait_reached(places[-1].log_offset + places[-1].size)
        bodies = [message.body for message in await read_all(store, "T", 0, 1)]
        assert bodies == [b"%06d" % number for number in range(count)]
