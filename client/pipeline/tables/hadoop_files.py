"""How does a pipeline handle files of ``file:``, ``hdfs:`` and ``s3a:``?

Through Hadoop's FileSystem: Spark has it for each kind of address that it can write to. It is
reached through Spark's gateway to its JVM, which Spark Connect does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs
from pyspark.sql import SparkSession

from triomq.client.pipeline.errors import SessionError

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{},])")


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file or folder as a listing shows it."""

    path: str
    size_bytes: int
    is_folder: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class HadoopFiles:
    """The file operations of tables. A missing file is no error where its absence is the aim."""

    def __init__(self, session: SparkSession) -> None:
        jvm = getattr(session, "_jvm", None)
        if jvm is None:
            raise SessionError(
                "this session has no JVM of its own (Spark Connect), and tables of files need it;"
                " run the pipeline in a classic session: spark-submit, or mqpipeline run"
            )
        self._jvm: Any = jvm
        self._settings: Any = session._jsparkSession.sessionState().newHadoopConf()

    def absolute(self, path: str) -> str:
        """Return a path with its scheme, as ``file:/data/orders``."""
        raw = self._path(path)
        system = raw.getFileSystem(self._settings)
        text: str = raw.makeQualified(system.getUri(), system.getWorkingDirectory()).toString()
        return text.rstrip("/")

    def exists(self, path: str) -> bool:
        return bool(self._system(path).exists(self._path(path)))

    def children(self, path: str) -> list[StoredFile]:
        """Return what is directly in a folder, sorted; nothing if the folder is missing."""
        if not self.exists(path):
            return []
        return sorted(
            map(_stored, self._system(path).listStatus(self._path(path))),
            key=lambda file: file.path,
        )

    def matching(self, folder: str, pattern: str) -> list[StoredFile]:
        """Return what matches a pattern below a folder, sorted: ``*/*/name-*``."""
        glob = GLOB_CHARACTERS.sub(r"\\\1", folder) + "/" + pattern
        found = self._system(folder).globStatus(self._path(glob))
        return sorted(map(_stored, found or ()), key=lambda file: file.path)

    def all_files(self, folder: str) -> Iterator[StoredFile]:
        """Yield the files of a folder and of all folders in it."""
        if not self.exists(folder):
            return
        found = self._system(folder).listFiles(self._path(folder), True)
        while found.hasNext():
            yield _stored(found.next())

    def make_folder(self, path: str) -> None:
        self._system(path).mkdirs(self._path(path))

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same file system. Raises: OSError."""
        if not self._system(old).rename(self._path(old), self._path(new)):
            raise OSError(f"{old} cannot be renamed to {new}; see the log of Spark for the cause")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it."""
        self._system(path).delete(self._path(path), True)

    def read_text(self, path: str) -> str:
        stream = self._system(path).open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Make a small file, or replace it: a reader finds a whole file, or for a moment none."""
        new = f"{path}.new"
        stream = self._system(path).create(self._path(new), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.delete(path)
        self.rename(new, path)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._settings)


def _stored(status: Any) -> StoredFile:
    return StoredFile(
        path=status.getPath().toString(),
        size_bytes=status.getLen(),
        is_folder=status.isDirectory(),
    )
