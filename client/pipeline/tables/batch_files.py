"""How does a folder of files take a batch once, on any storage? Files carry the batch's number.

A batch is written to a hidden folder named after the run, its rows are counted, and its files are
then moved to their places, one by one. The names of the files begin with the writer's id and the
number of the batch, so that a batch that is run again first deletes what its earlier run has left.
Spark's commit of the batch is the commit: until then the batch is run again.

A merge has a commit of its own: the plan. Before it nothing has changed for readers; from then on
the next owner carries out what is left of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from triomq.client.pipeline.tables.files import Files, StoredFile, is_hidden
from triomq.client.pipeline.tables.locks import LockLost, WriteLock

STAGING = "_staging"
Write = Callable[[str], None]
"""writes rows to a folder, and compares their number with what has arrived there"""


class BatchFiles:
    """The files that one writer brings into a table's folder."""

    def __init__(self, files: Files, path: str, writer: str, lock: WriteLock) -> None:
        self._files = files
        self._path = path
        self._writer = writer
        self._lock = lock
        self._staging = staging_folder(path, writer, "batch", lock)
        self._appended: int | None = None
        """the last batch that this object has appended: the next one cannot have been run before"""

    def append(self, batch: int, depth: int, write: Write) -> None:
        """Take a batch. ``depth``: folders between the table's and a file's.

        What an earlier run has left is listed before the lock is checked: files of a process that
        takes over later are not deleted. Raises: LockLost; this batch's files are deleted then.
        """
        if self._appended is None:
            delete_staging(self._files, self._staging)
        write(self._staging)
        staged = staged_files(self._files, self._staging)
        left: list[StoredFile] = []
        if self._appended is None or batch != self._appended + 1:
            pattern = f"{'*/' * depth}{self._writer}-{batch:012}-*"
            left = self._files.matching(self._path, pattern)
        self._appended = None
        self._lock.check()
        for file in left:
            self._files.delete(file.path)
        places = [self._place(file, batch) for file in staged]
        for folder in sorted({place.rpartition("/")[0] for place in places}):
            self._files.make_folder(folder)
        try:
            for file, place in zip(staged, places, strict=True):
                self._move(file.path, place)
            self._lock.check()
        except Exception:
            if self._is_lost():
                for place in places:
                    self._files.delete(place)
            raise
        self._files.delete(self._staging)
        self._appended = batch

    def _is_lost(self) -> bool:
        """Return whether another process has taken over; it deletes what was to be moved."""
        try:
            self._lock.check()
        except LockLost:
            return True
        return False

    def _place(self, file: StoredFile, batch: int) -> str:
        folder = file.folder.removeprefix(self._staging)
        return f"{self._path}{folder}/{self._writer}-{batch:012}-{file.name}"

    def _move(self, old: str, new: str) -> None:
        try:
            self._files.rename(old, new)
        except OSError:  # `compact` may have deleted the folder of an old date meanwhile
            self._files.make_folder(new.rpartition("/")[0])
            self._files.rename(old, new)


class FileMerge:
    """The exchange of a folder's files for fewer ones."""

    def __init__(self, files: Files, path: str, writer: str, lock: WriteLock) -> None:
        self._files = files
        self._lock = lock
        self._plan = f"{path}/{STAGING}/{writer}-plan.json"
        self._staging = staging_folder(path, writer, "merge", lock)

    def merge(self, folder: str, old: Sequence[StoredFile], name: str, write: Write) -> None:
        """Exchange the files ``old`` of a folder; a new one is named ``name-0.parquet``."""
        write(self._staging)
        moves = {
            file.path: f"{folder}/{name}-{number}.parquet"
            for number, file in enumerate(staged_files(self._files, self._staging))
        }
        plan = {"moves": moves, "deletes": [file.path for file in old]}
        self._lock.check()
        self._files.create_text(self._plan, json.dumps(plan))
        self._lock.check()
        self.finish()

    def finish(self) -> None:
        """Carry out the plan, if there is one. Each step may have been done before a crash.

        A file is deleted only after all moves. So a plan that lacks both a file to delete and the
        place of a move was written by a process whose lock had been taken over: it is dropped.
        """
        text = self._files.read_text(self._plan)
        if text is not None:
            plan = json.loads(text)
            exists = self._files.exists
            open_moves = {old: new for old, new in plan["moves"].items() if not exists(new)}
            if not open_moves or all(map(exists, plan["deletes"])):
                for staged, place in open_moves.items():
                    self._files.rename(staged, place)
                for path in plan["deletes"]:
                    self._files.delete(path)
            self._files.delete(self._plan)
        delete_staging(self._files, self._staging)


def staging_folder(path: str, writer: str, kind: str, lock: WriteLock) -> str:
    """Return the hidden folder that a run of a writer writes to before it commits."""
    return f"{path}/{STAGING}/{writer}-{kind}-{lock.run}"


def delete_staging(files: Files, own: str) -> None:
    """Delete what this run and earlier ones have left; only the owner of the lock calls it."""
    parent, _, name = own.rpartition("/")
    for left in files.children(parent):
        if left.name.startswith(name.rpartition("-")[0] + "-"):
            files.delete(left.path)


def staged_files(files: Files, folder: str) -> list[StoredFile]:
    """Return the data files below a folder, sorted."""
    found = [file for file in files.all_files(folder) if not is_hidden(file.name)]
    return sorted(found, key=lambda file: file.path)
