"""A real file system of a few megabytes, which a test fills to its last block and makes room on
again. Needs root.

``tmpfs`` is in memory, the others in a file behind a loop device. ``ext4`` is what most servers
have; ``btrfs`` copies on write: every overwrite needs new blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import attrs

SIZE_BYTES = 24 << 20
LEAST_BYTES = {"btrfs": 120 << 20}
"""Smaller ones it does not make."""
CHUNK_BYTES = 1 << 20
SMALLEST_BYTES = 512
MARK = "triomq-test-"
"""Begins the source of what we mount; the process's number follows."""


class MountMissing(RuntimeError):
    """This machine mounts no such file system, and why."""


def command(*words: object) -> None:
    try:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise MountMissing(f"{words[0]} is missing") from error
    if done.returncode != 0:
        raise MountMissing(
            f"`{' '.join(map(str, words))}` ends with {done.returncode}:"
            f" {(done.stderr or done.stdout).strip()}"
        )


def why_not(kind: str = "tmpfs") -> str:
    """Why no such file system can be mounted here; empty if one can."""
    if os.geteuid() != 0:
        return f"a {kind} of our own needs root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with SmallFileSystem(Path(folder) / "disk", kind):
                return ""
        except MountMissing as error:
            return str(error)


def unmount_leftovers() -> None:
    """What processes that are no more have left mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, place, *_ = line.split()
        found = re.match(rf"{MARK}(\d+)", source) or re.match(rf".*/{MARK}(\d+)", place)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(
                ["umount", "-l", place.replace("\\040", " ")], capture_output=True, check=False
            )


@attrs.define(eq=False)
class SmallFileSystem:
    """Mounted at ``path`` inside the block; its files stay there afterwards, as
    plain files.
    """

    path: Path
    kind: str = "tmpfs"
    size_bytes: int = SIZE_BYTES
    _filler: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._filler = self.path / "filler"

    def __enter__(self) -> SmallFileSystem:
        unmount_leftovers()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            if self.kind == "tmpfs":
                command(
                    "mount",
                    "-t",
                    "tmpfs",
                    "-o",
                    f"size={self.size_bytes}",
                    f"{MARK}{os.getpid()}",
                    self.path,
                )
            else:
                with self._image.open("wb") as file:
                    file.truncate(max(self.size_bytes, LEAST_BYTES.get(self.kind, 0)))
                command(
                    f"mkfs.{self.kind}",
                    "-q",
                    *(["-m", "0"] if self.kind == "ext4" else []),
                    self._image,
                )
                command("mount", "-o", "loop", self._image, self.path)
        except MountMissing:
            self._image.unlink(missing_ok=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()
        kept = self.path.with_name(f"{self.path.name}.kept")
        shutil.rmtree(kept, ignore_errors=True)
        subprocess.run(
            ["cp", "-a", "--sparse=always", str(self.path), str(kept)],
            capture_output=True,
            check=False,
        )
        command("umount", "-l", self.path)
        self.path.rmdir()
        kept.rename(self.path)
        self._image.unlink(missing_ok=True)

    @property
    def _image(self) -> Path:
        return self.path.with_name(f"{self.path.name}.image")

    @property
    def full(self) -> bool:
        return self._filler.exists()

    def fill(self, *, leave: int = 0) -> None:
        """Take all that is free, but for ``leave`` bytes or so. Blocks that files have already stay
        theirs.
        """
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = CHUNK_BYTES
            while size >= SMALLEST_BYTES:
                if os.fstatvfs(fd).f_bavail * os.fstatvfs(fd).f_frsize < leave + size:
                    size //= 2
                    continue
                try:
                    os.write(fd, b"\xff" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
        finally:
            os.close(fd)

    def free(self) -> None:
        """Give it all back."""
        with contextlib.suppress(FileNotFoundError):
            self._filler.unlink()
