"""PositionCheckpoint: how far passes have covered each queue.

The file ``compaction/position-checkpoint`` is JSON: ``{"queueOffsetMap": {"<topic>_<queue id>":
<queue offset>}}``. Without it passes begin again, and remove the same.

Source: store/kv/CompactionPositionMgr.java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from triomq.remoting.core.atomic_file import DamagedFile, SystemFiles, read_file, replace_file

logger = logging.getLogger(__name__)


class _Positions(msgspec.Struct):
    queue_offset_map: dict[str, int] = msgspec.field(name="queueOffsetMap", default_factory=dict)


@attrs.define(eq=False)
class PositionCheckpoint:
    """Loaded once, saved after each pass. Both block."""

    path: Path
    offsets: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    """(topic, queue id) -> the last queue offset that passes have covered."""

    def load(self) -> None:
        """Read the file; without a readable one, passes begin again. Raises: OSError."""
        try:
            found = read_file(self.path, _decode)
        except DamagedFile as error:
            logger.warning("%s: compaction covers all messages again", error)
            return
        for name, offset in (found or {}).items():
            topic, _, queue_id = name.rpartition("_")
            if topic and queue_id.isdecimal():
                self.offsets[topic, int(queue_id)] = offset

    def save(self, offsets: Mapping[tuple[str, int], int], files: SystemFiles) -> None:
        """Replace the file. Raises: OSError."""
        table = {f"{topic}_{queue_id}": offset for (topic, queue_id), offset in offsets.items()}
        replace_file(self.path, msgspec.json.encode(_Positions(table)), files)


def _decode(data: bytes) -> dict[str, int]:
    return msgspec.json.decode(data, type=_Positions).queue_offset_map
