"""One zip that Spark's processes need nothing else for but pyarrow and numpy.

``python -m triomq.client.spark.zip_file triomq-spark.zip`` writes it. It has what source, sink and
pipelines import: this package without servers and SDK, and attrs. msgspec has compiled modules and
is replaced (``remoting.protocol.structs``).
"""

import argparse
import importlib.metadata
import importlib.resources
import zipfile
from collections.abc import Iterator
from pathlib import Path

FOLDERS = (
    "client/pipeline",
    "client/spark",
    "remoting/client",
    "remoting/core",
    "remoting/protocol",
    "remoting/tls",
)
"""of the package, with all that is in them"""
FILES = {
    "": ("__init__.py", "pipeline.py", "spark.py"),
    "client": ("__init__.py", "shared_names.py"),
    "remoting": ("*.py",),
}
"""Folder of the package → patterns of single files."""


def write_zip(target: str | Path) -> Path:
    """Write the zip to a file, and return its path: the same bytes for the same packages.

    Raises: OSError.
    """
    path = Path(target)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted((*_own_files(), *_attrs_files())):
            archive.writestr(zipfile.ZipInfo(name), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _own_files() -> Iterator[tuple[str, Path]]:
    name = "pyspark_triomq/__init__.py"  # where the zip is on the PYTHONPATH, Spark finds it
    yield name, _folder("").parent / name
    for folder, patterns in FILES.items():
        for pattern in patterns:
            for source in _folder(folder).glob(pattern):
                yield f"triomq/{folder}/{source.name}".replace("//", "/"), source
    for folder in FOLDERS:
        root = _folder(folder)
        for source in root.rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                yield f"triomq/{folder}/{source.relative_to(root).as_posix()}", source


def _folder(name: str) -> Path:
    """Return a folder of the package: in a checkout it is a link, or beside the package."""
    package = f"triomq/{name}".strip("/").replace("/", ".")
    return Path(str(importlib.resources.files(package))).resolve()


def _attrs_files() -> Iterator[tuple[str, Path]]:
    for file in importlib.metadata.files("attrs") or ():
        if file.suffix != ".pyc" and file.name not in ("RECORD", "INSTALLER", "REQUESTED"):
            yield file.as_posix(), Path(str(file.locate()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m triomq.client.spark.zip_file")
    parser.add_argument("target", help="file to write, as triomq-spark.zip")
    write_zip(parser.parse_args().target)


if __name__ == "__main__":
    main()
