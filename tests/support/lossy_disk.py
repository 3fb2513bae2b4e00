"""A disk that forgets: after a power failure every file has a mixture of what was forced to the disk and what was written since."""

from __future__ import annotations

import random
from pathlib import Path

from triomq.broker.store.disk import Disk, DiskFeatures
from triomq.broker.store.retention import Usage

SECTOR_BYTES = 64
LOG_SECTOR_BYTES = 512
"""Smaller than a page, since the files of the tests are small. Not smaller for the log: the CRC of a record does not cover its properties."""


class LossyDisk(Disk):
    """Remembers what each file was when it was last forced to the disk, and which names were.

    Names come into being in the order of creation, as on every journalling file system: a failure loses the youngest ones. Contents know no order at all.
    """

    def __init__(self, features: DiskFeatures | None = None) -> None:
        super().__init__(features or DiskFeatures())
        self.contents: dict[Path, bytes] = {}
        self.names: set[Path] = set()
        self.created: list[Path] = []
        self.full = False
        """Whether ``usage`` says so."""

    def settle(self, root: Path) -> None:
        """Take everything under ``root`` as being on the disk."""
        for path in root.rglob("*"):
            self.names.add(path)
            if path.is_file():
                self.contents[path] = path.read_bytes()

    def create(self, path: Path, size: int) -> int:
        if not path.exists():  # a new file, whatever had this name before
            self.contents.pop(path, None)
            self.names.discard(path)
            self.created.append(path)
        return super().create(path, size)

    def usage(self, path: Path) -> Usage:
        return Usage(1 << 40, 0) if self.full else Usage(0, 1 << 40)

    def sync_path(self, path: Path) -> None:
        super().sync_path(path)
        self.contents[path] = path.read_bytes()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.names.update(path.iterdir())

    def fail_power(self, root: Path, target: Path, seed: int) -> None:
        """Write to ``target`` one of the states in which the disk may be now."""
        choose = random.Random(seed)
        unsure = [path for path in self.created if path not in self.names and path.exists()]
        kept = choose.randint(0, len(unsure))
        lost = set(unsure[kept:])
        target.mkdir()
        for path in sorted(root.rglob("*")):
            copy = target / path.relative_to(root)
            if not path.is_file():
                if path in self.names or choose.random() < 0.5:
                    copy.mkdir(parents=True, exist_ok=True)
            elif path not in lost:
                copy.parent.mkdir(parents=True, exist_ok=True)
                sized = path not in unsure[kept - 1 : kept] or choose.random() < 0.5
                copy.write_bytes(self._mixture(path, choose) if sized else b"")

    def _mixture(self, path: Path, choose: random.Random) -> bytes:
        now = path.read_bytes()
        before = self.contents.get(path, b"").ljust(len(now), b"\0")
        sure = choose.randint(0, len(now)) if choose.random() < 0.7 else 0  # the system often writes in order, but need not
        kept = choose.choice((0.0, 0.5, 0.9, 1.0))
        sector = LOG_SECTOR_BYTES if path.parent.name == "commitlog" else SECTOR_BYTES
        return b"".join(
            (now if start < sure or choose.random() < kept else before)[start : start + sector] for start in range(0, len(now), sector)
        )
