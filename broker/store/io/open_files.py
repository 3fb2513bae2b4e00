"""OpenFiles: descriptors of many small files; the least recently used one is closed first.

So 50,000 queues do not need 50,000 descriptors.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import NoFilesLeft
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.open_files import none_left


@attrs.define(eq=False)
class OpenFiles:
    """Path -> descriptor. For the loop only.

    Threads open the files themselves, because ``get`` may close any other descriptor.
    """

    disk: Disk
    count_max: int
    _fds: OrderedDict[Path, int] = attrs.field(factory=OrderedDict, init=False)

    def get(self, path: Path, create_size: int = 0) -> int:
        """Return the descriptor of ``path``. With ``create_size`` create the file, of this size.

        Raises: OSError, DiskFull, StoreIoError.
        """
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        if len(self._fds) >= self.count_max:
            self.disk.close(self._fds.popitem(last=False)[1])
        while True:
            try:
                fd = self.disk.create(path, create_size) if create_size else self.disk.open(path)
            except (OSError, NoFilesLeft) as error:
                if not self._fds or not (isinstance(error, NoFilesLeft) or none_left(error)):
                    raise
                # Too many files are open in the process or the system: keep fewer of these.
                self.disk.close(self._fds.popitem(last=False)[1])
            else:
                self._fds[path] = fd
                return fd

    def forget(self, path: Path) -> None:
        """Close a file before it is deleted."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            self.disk.close(fd)

    def close(self) -> None:
        while self._fds:
            self.disk.close(self._fds.popitem()[1])

    def __len__(self) -> int:
        return len(self._fds)
