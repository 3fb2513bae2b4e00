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
    "remoting/protocol",
    "remoting/tls",
)
"""of the package, with all that is in them"""
FILES = ("__init__.py", "pipeline.py", "spark.py", "client/__init__.py", "remoting/*.py")


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
    package = Path(str(importlib.resources.files("triomq")))
    name = "pyspark_triomq/__init__.py"  # where the zip is on the PYTHONPATH, Spark finds it
    yield name, package.parent / name
    for pattern in FILES:
        for source in package.glob(pattern):
            yield f"triomq/{source.relative_to(package).as_posix()}", source
    for folder in FOLDERS:  # in a checkout these are links, which rglob does not follow
        root = (package / folder).resolve()
        for source in root.rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                yield f"triomq/{folder}/{source.relative_to(root).as_posix()}", source


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
