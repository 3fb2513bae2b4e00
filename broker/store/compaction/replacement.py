"""Replacing files of a compaction log so that a crash leaves the old ones or the new ones.

The new files are written to a folder of their own and forced out. A small file, the plan, then says
what replaces what: the rename that gives the plan its name decides. From then on the steps of the
plan are repeated until all are done, by the next start too.

The folder is none of Java's, whose broker stops at a file that it does not know.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec

from triomq.broker.store.core.errors import StoreDamaged, io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log.flusher import sync_files

PLAN_NAME = "plan.json"


class ReplacementPlan(msgspec.Struct, frozen=True):
    """What a replacement does; names of files, each of a log file and of its queue file."""

    remove: list[str]
    """Old files. One whose name is also in ``add`` is overwritten."""
    add: list[str]


@attrs.define(eq=False)
class Replacement:
    """The place of new files. Calls block: for a thread.

    ``log``, ``queue``: the folders of the files in use.
    """

    disk: Disk
    folder: Path
    log: Path
    queue: Path
    new_log: Path = attrs.field(init=False)
    new_queue: Path = attrs.field(init=False)
    plan_path: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.new_log, self.new_queue = self.folder / "log", self.folder / "queue"
        self.plan_path = self.folder / PLAN_NAME

    def prepare(self) -> None:
        """Make the folders, and remove what an unfinished pass left. Raises: StoreIoError."""
        try:
            for folder in (self.new_log, self.new_queue):
                self.disk.make_durable_directory(folder)
        except OSError as error:
            raise io_error(self.folder, error) from error
        self.clear()

    def clear(self) -> None:
        """Remove what an unfinished pass left. Raises: StoreIoError."""
        assert not self.decided(), "new files are needed until the plan is done"
        try:
            for folder in (self.new_log, self.new_queue):
                if folder.exists():
                    for path in sorted(folder.iterdir()):
                        self.disk.remove(path)
        except OSError as error:
            raise io_error(self.folder, error) from error

    def decide(self, plan: ReplacementPlan) -> None:
        """Force the new files out and write the plan: after that it is carried out in any case.

        Raises: FlushFailed, StoreIoError; then ``decided`` says whether the plan holds.
        """
        files = [folder / name for name in plan.add for folder in (self.new_log, self.new_queue)]
        sync_files(self.disk, files, [self.new_log, self.new_queue])
        written = self.plan_path.with_suffix(".tmp")
        try:
            self.disk.write_file(written, msgspec.json.encode(plan))
            sync_files(self.disk, [written], ())
            self.disk.rename(written, self.plan_path)
        except OSError as error:
            raise io_error(self.plan_path, error) from error

    def decided(self) -> bool:
        """Return whether there is a plan that is not done."""
        return self.plan_path.exists()

    def pending(self) -> ReplacementPlan | None:
        """Return the plan that was decided and is not done. Raises: StoreDamaged, StoreIoError."""
        try:
            data = self.plan_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise io_error(self.plan_path, error) from error
        try:
            return msgspec.json.decode(data, type=ReplacementPlan)
        except msgspec.DecodeError as error:
            raise StoreDamaged(
                self.plan_path,
                f"it is not the plan of a replacement ({error})",
                "restore the folder compaction from a copy",
            ) from error

    def carry_out(self, plan: ReplacementPlan) -> None:
        """Do the steps of a plan that are not done, then remove it. May be repeated.

        Raises: StoreIoError, FlushFailed.
        """
        # Before the first step: a power failure must not undo the decision and keep a step.
        sync_files(self.disk, (), [self.folder])
        both = ((self.log, self.new_log), (self.queue, self.new_queue))
        try:
            for name in plan.add:
                for folder, new in both:
                    if (new / name).exists():
                        self.disk.rename(new / name, folder / name)
            for name in plan.remove:
                if name not in plan.add:
                    for folder, _ in both:
                        self.disk.remove(folder / name)
            sync_files(self.disk, (), [folder for pair in both for folder in pair])
            self.disk.remove(self.plan_path)
        except OSError as error:
            raise io_error(self.plan_path, error) from error
        sync_files(self.disk, (), [self.folder])
