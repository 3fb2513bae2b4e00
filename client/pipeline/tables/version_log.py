"""Which files are a table that is written anew for each batch? The newest version's.

A version is a file of ``_spark_metadata`` that names data files. This is the log of Spark's own
file sink: ``spark.read.parquet(folder)`` reads the files of the newest version, and no others. To
make the version is the commit; nothing is renamed by it, and only one process can make a number.

Data files are in the table's folder, as Spark needs it, with hidden names: ``_v=…``. Readers that
do not know the log find no file instead of those of two versions. Spark would skip a name that
begins with an underscore, unless it has an ``=``.
Source: Spark's CompactibleFileStreamLog and FileStreamSinkLog; each version is a "compact" file.
"""

from __future__ import annotations

import json

from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.tables.batch_files import (
    Write,
    delete_staging,
    staged_files,
    staging_folder,
)
from triomq.client.pipeline.tables.files import Files, StoredFile, is_hidden
from triomq.client.pipeline.tables.locks import WriteLock

LOG = "_spark_metadata"
COMPACT = ".compact"
KEPT_VERSIONS = 2
"""the newest, and the one that a reader may have begun with"""


class VersionLog:
    """The versions of one table."""

    def __init__(self, files: Files, path: str, writer: str, lock: WriteLock) -> None:
        self._files = files
        self._path = path
        self._lock = lock
        self._staging = staging_folder(path, writer, "version", lock)

    def newest(self) -> int:
        """Return the number of the newest version; -1 before the first one."""
        return max(self._numbers(), default=-1)

    def commit(self, number: int, write: Write) -> None:
        """Make a version. ``number``: one more than that of the version which it replaces.

        Raises: PipelineError if another process has made the version; LockLost.
        """
        write(self._staging)
        self._lock.check()
        files = []
        for index, file in enumerate(staged_files(self._files, self._staging)):
            place = f"{self._path}/_v={number:012}-{self._lock.run}-{index:05}.parquet"
            self._files.rename(file.path, place)
            files.append(place)
        known = {file.path: file for file in self._files.children(self._path)}
        self._lock.check()
        entries = [_entry(known[place]) for place in files]
        log = f"{self._path}/{LOG}/{number}{COMPACT}"
        made = self._files.create_text(log, "\n".join(["v1", *entries]))
        if not made or self.newest() != number:
            raise PipelineError(
                f"another process has written version {number} of {self._path} meanwhile; let only"
                " one pipeline write to a table of changes"
            )
        self.clean()

    def clean(self) -> None:
        """Delete what no kept version names.

        Files of a later version may belong to a writer that has not committed yet: they stay until
        their number is taken.
        """
        newest = self.newest()
        if newest < 0:
            return
        kept = set(range(newest - KEPT_VERSIONS + 1, newest + 1))
        named = {name for number in kept for name in self._names(number)}
        for number in self._numbers():
            if number not in kept:
                self._files.delete(f"{self._path}/{LOG}/{number}{COMPACT}")
        for file in self._files.children(self._path):
            version = _version(file.name)
            old = version is not None and version <= newest and file.name not in named
            # What is visible was here before the first version, which has its rows.
            if old or not is_hidden(file.name):
                self._files.delete(file.path)
        delete_staging(self._files, self._staging)

    def _numbers(self) -> list[int]:
        names = [file.name for file in self._files.children(f"{self._path}/{LOG}")]
        stems = [name.removesuffix(COMPACT) for name in names if name.endswith(COMPACT)]
        return [int(stem) for stem in stems if stem.isdecimal()]

    def _names(self, number: int) -> list[str]:
        text = self._files.read_text(f"{self._path}/{LOG}/{number}{COMPACT}") or ""
        return [json.loads(line)["path"].rpartition("/")[2] for line in text.splitlines()[1:]]


def _entry(file: StoredFile) -> str:
    """Return a file as the log of Spark's sink has it."""
    fields = {
        "path": file.uri,
        "size": file.size_bytes,
        "isDir": False,
        "modificationTime": file.modified_ms,
        "blockReplication": 1,
        "blockSize": 128 << 20,
        "action": "add",
    }
    return json.dumps(fields)


def _version(name: str) -> int | None:
    number = name.removeprefix("_v=").partition("-")[0]
    return int(number) if name.startswith("_v=") and number.isdecimal() else None
