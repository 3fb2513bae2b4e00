"""An object store in memory: a rename copies and then deletes, a folder is a begin of names.

It stands for s3a: and the like in tests of commit protocols, without Spark: each change of one
object is a step, before which the process can end (``Crash``) or another one can do its work.
Data files have numbers as content; ``plain_rows`` reads a folder as Spark's ``read.parquet`` does.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from triomq.client.pipeline.tables.files import StoredFile, is_hidden


class Crash(BaseException):
    """The process ends here."""


class ObjectStore:
    """``Files`` of one storage."""

    def __init__(self, objects: dict[str, str] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.steps: list[str] = []
        self.before_step: Callable[[int], None] = lambda number: None

    def put(self, path: str, text: str, name: str = "put") -> None:
        self._step(name, path)
        self.objects[path] = text

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.objects)

    def children(self, path: str) -> list[StoredFile]:
        below = [name for name in self.objects if name.startswith(f"{path}/")]
        names = sorted({name.removeprefix(f"{path}/").partition("/")[0] for name in below})
        return [self._stored(f"{path}/{name}") for name in names]

    def matching(self, folder: str, pattern: str) -> list[StoredFile]:
        found = [folder]
        for part in pattern.split("/"):
            found = [
                child.path
                for each in found
                for child in self.children(each)
                if fnmatch.fnmatchcase(child.name, part)
            ]
        return [self._stored(path) for path in found]

    def all_files(self, folder: str) -> Iterator[StoredFile]:
        for name in sorted(self.objects):
            if name.startswith(f"{folder}/"):
                yield self._stored(name)

    def make_folder(self, path: str) -> None:
        """Do nothing: there are no folders."""

    def rename(self, old: str, new: str) -> None:
        if old not in self.objects:
            raise OSError(f"{old} is missing")
        self.put(new, self.objects[old], "copy to")
        self.delete(old)

    def delete(self, path: str) -> None:
        for name in sorted(self.objects):
            if name == path or name.startswith(f"{path}/"):
                self._step("delete", name)
                self.objects.pop(name, None)

    def read_text(self, path: str) -> str | None:
        return self.objects.get(path)

    def create_text(self, path: str, text: str) -> bool:
        self._step("create", path)
        if path in self.objects:
            return False
        self.objects[path] = text
        return True

    def replace_text(self, path: str, text: str) -> None:
        self.put(path, text)

    def _stored(self, path: str) -> StoredFile:
        text = self.objects.get(path)
        return StoredFile(
            path=path, uri=path, size_bytes=len(text or ""), modified_ms=0, is_folder=text is None
        )

    def _step(self, name: str, path: str) -> None:
        self.before_step(len(self.steps))
        self.steps.append(f"{name} {path}")


def plain_rows(store: ObjectStore, path: str) -> list[int]:
    """Return the rows that a reader of the folder finds, sorted.

    The log of Spark's file sink names the files, where there is one; hidden names are no files.
    """
    logs = {
        int(PurePosixPath(file.name).stem): file.path
        for file in store.children(f"{path}/_spark_metadata")
    }
    if logs:
        lines = store.objects[logs[max(logs)]].splitlines()[1:]
        names = [json.loads(line)["path"] for line in lines]
    else:
        names = [
            file.path
            for file in store.all_files(path)
            if not any(map(is_hidden, file.path.removeprefix(f"{path}/").split("/")))
        ]
    return sorted(int(number) for name in names for number in store.objects[name].split())


def end_before(store: ObjectStore, step: int) -> None:
    """Let the process end before a step."""

    def before_step(number: int) -> None:
        if number == step:
            raise Crash

    store.before_step = before_step
