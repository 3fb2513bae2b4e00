"""OpenFiles: descriptors of many small files, the least recently used one closed first. 50,000 queues need no 50,000 descriptors."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk


@attrs.define(eq=False)
class OpenFiles:
    """Path -> descriptor. For the loop only: threads open files of their own, because ``get`` may close any other descriptor."""

    disk: Disk
    count_max: int
    _fds: OrderedDict[Path, int] = attrs.field(factory=OrderedDict, init=False)

    def get(self, path: Path, create_size: int = 0) -> int:
        """Descriptor of ``path``; made with this size first if ``create_size`` is given. Raises OSError, DiskFull, StoreIoError."""
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        if len(self._fds) >= self.count_max:
            self.disk.close(self._fds.popitem(last=False)[1])
        fd = self.disk.create(path, create_size) if create_size else self.disk.open(path)
        self._fds[path] = fd
        return fd

    def forget(self, path: Path) -> None:
        """Close one, before it is deleted."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            self.disk.close(fd)

    def close(self) -> None:
        while self._fds:
            self.disk.close(self._fds.popitem()[1])

    def __len__(self) -> int:
        return len(self._fds)
