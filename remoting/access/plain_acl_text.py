"""The text of ``plain_acl.yml``: YAML, all scalars as text. SANS-IO.

PyYAML is an optional extra, ``triomq[admin]``.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from triomq.remoting.access.plain_acl import PlainAcl

INSTALL = "install it with `pip install 'triomq[admin]'`"

Contents: TypeAlias = Mapping[Path, bytes]
"""Files, in the order in which their accounts count."""


@attrs.frozen(eq=False)
class AclLoad:
    """Files that were read and understood."""

    documents: Mapping[Path, Any]
    acl: PlainAcl
    digest: bytes


def parsed(contents: Contents) -> AclLoad:
    """Return what the files say. Raises: ValueError, with the name of the file."""
    documents = {}
    for path, data in contents.items():
        documents[path] = document_of(path, data)
        try:
            PlainAcl.read([documents[path]])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return AclLoad(documents, PlainAcl.read(documents.values()), digest_of(contents))


def version_of(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the version that the last change has left in a file; 0 where there is none."""
    found: Any = document.get("dataVersion")
    last = found[-1] if isinstance(found, list) and found else {}
    if not isinstance(last, Mapping):
        last = {}
    texts = {name: str(last.get(name, "")) for name in ("counter", "timestamp")}
    return {name: int(text) if text.isdecimal() else 0 for name, text in texts.items()}


def document_of(path: Path, data: bytes) -> Any:
    """Return the content of a file, all scalars as text. Raises: ValueError."""
    try:
        yaml: Any = importlib.import_module("yaml")  # an optional extra
    except ImportError:
        raise ValueError(f"{path}: YAML needs the package pyyaml; {INSTALL}") from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        # Its own text would show lines of the file, and passwords are in them.
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "it cannot be decoded"
        raise ValueError(f"{path} is not YAML{line}: {problem}") from None
    except (RecursionError, UnicodeDecodeError):
        raise ValueError(f"{path} is not YAML: nested too deeply, or not UTF-8") from None


def digest_of(contents: Contents) -> bytes:
    digest = hashlib.sha256()
    for path, data in contents.items():
        digest.update(b"%s:%d:" % (str(path).encode(), len(data)) + data)
    return digest.digest()
