"""The default geometry on the disk: files of RocketMQ's sizes and names, and a log that rolls after
one GiB.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.opening import open_store

GIB = 1_073_741_824
BODY = bytes(4 * 1024 * 1024 - 1)


@pytest.mark.feature(27, "28a", "28b", "40a", "43a")
@pytest.mark.timeout(240)
async def test_segments_have_a_gib_and_20_digits(tmp_path: Path) -> None:
    config = StoreConfig(root=tmp_path / "store")
    end = 0
    async with open_store(config, lambda: 1_700_000_000_000) as store:
        for number in range(260):
            draft = Draft(
                "Big",
                0,
                BODY,
                b"UNIQ_KEY\x01%d\x02" % number,
                0,
                0,
                1_700_000_000_000,
                bytes(8),
                unique_key=str(number),
            )
            (place,) = store.append([draft])
            assert place.queue_offset == number
            if place.log_offset != end:
                assert place.log_offset == GIB, (
                    "a gap is allowed only at the end of a segment, for its BLANK"
                )
                assert GIB - end < place.size + 8
            end = place.log_offset + place.size
        assert store.indexed.value == end
    sizes = {path.name: path.stat().st_size for path in (config.root / "commitlog").iterdir()}
    assert sizes == {"00000000000000000000": GIB, "00000000001073741824": GIB}
    assert {
        path.stat().st_size for path in (config.root / "consumequeue" / "Big" / "0").iterdir()
    } == {6_000_000}
    (index,) = (config.root / "index").iterdir()
    assert (len(index.name), index.stat().st_size) == (17, 420_000_040)
    assert sum(path.stat().st_blocks * 512 for path in index.parent.iterdir()) < 100_000_000, (
        "files are sparse"
    )
