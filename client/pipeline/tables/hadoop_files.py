"""How does a pipeline handle files of ``file:``, ``hdfs:`` and ``s3a:``?

Through Hadoop's FileSystem: Spark has it for each kind of address that it can write to. It is
reached through Spark's gateway to its JVM, which Spark Connect does not have. Small files that
others wait for are written by the class that writes Spark's own checkpoints
(``spark.sql.streaming.checkpointFileManagerClass``): on each storage they are as safe as those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from triomq.client.pipeline.core.errors import SessionError
from triomq.client.pipeline.tables.files import StoredFile

JavaObject: TypeAlias = Any
"""An object of the JVM: Py4J finds its members when they are used, and declares none."""
GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{},])")


class HadoopFiles:
    """The files of all storages of a session: ``Files``."""

    def __init__(self, session: SparkSession) -> None:
        jvm = getattr(session, "_jvm", None)
        if jvm is None:
            raise SessionError(
                "this session has no JVM of its own (Spark Connect), and tables of files need it;"
                " run the pipeline in a classic session: spark-submit, or mqpipeline run"
            )
        self._jvm: JavaObject = jvm
        self._settings: object = session._jsparkSession.sessionState().newHadoopConf()

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
        """Give a file another name in the same storage. Raises: OSError."""
        if not self._system(old).rename(self._path(old), self._path(new)):
            raise OSError(f"{old} cannot be renamed to {new}; see the log of Spark for the cause")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it."""
        self._system(path).delete(self._path(path), True)

    def read_text(self, path: str) -> str | None:
        """Return the content of a small file; None if it is missing."""
        try:
            stream = self._system(path).open(self._path(path))
        except Exception:  # Py4J has one error for all of Java's
            if self.exists(path):
                raise
            return None
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create_text(self, path: str, text: str) -> bool:
        """Make a small file as a whole. Returns: False if it exists already; it stays."""
        stream = None
        try:
            stream = self._checkpoint_files(path).createAtomic(self._path(path), False)
            stream.write(bytearray(text.encode()))
            stream.close()
        except Exception:  # Py4J has one error for all of Java's
            if stream is not None:
                stream.cancel()
            if not self.exists(path):
                raise
            return False
        return True

    def replace_text(self, path: str, text: str) -> None:
        """Make a small file, or replace it: a reader finds a whole file, or for a moment none."""
        stream = self._checkpoint_files(path).createAtomic(self._path(path), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _checkpoint_files(self, path: str) -> JavaObject:
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        manager = streaming.checkpointing.CheckpointFileManager
        if type(manager).__name__ == "JavaPackage":  # not a class: Spark 4.0 has it elsewhere
            manager = streaming.CheckpointFileManager
        folder = self._path(path).getParent()
        files = manager.create(folder, self._settings)
        files.mkdirs(folder)
        return files

    def _path(self, path: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> JavaObject:
        return self._path(path).getFileSystem(self._settings)


def _stored(status: JavaObject) -> StoredFile:
    path = status.getPath()
    return StoredFile(
        path=path.toString(),
        uri=path.toUri().toString(),
        size_bytes=status.getLen(),
        modified_ms=status.getModificationTime(),
        is_folder=status.isDirectory(),
    )
