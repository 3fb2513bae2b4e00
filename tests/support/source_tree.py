"""The product's Python files as the house rules see them: paths, syntax trees, dotted names and
imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("remoting", "namesrv", "broker", "client")


def walk(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder; ``triomq``'s links to the four packages are not
    followed.
    """
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name != "__pycache__":
            yield from walk(path)
        elif path.suffix == ".py":
            yield path


def source_trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every file of the product."""
    return {
        path: ast.parse(path.read_text(), filename=str(path))
        for package in (*PACKAGES, "triomq", "pyspark_triomq")
        for path in walk(ROOT / package)
    }


def dotted(path: Path) -> str:
    """Return a file's name as a module: ``broker.store.log.scan``."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(
    tree: ast.AST, modules: Mapping[str, object] | None = None, *, runtime_only: bool = False
) -> Iterator[tuple[str, int]]:
    """Yield module and line of every import.

    ``modules``: names of the modules that exist; with them, ``from x import y`` yields ``x.y`` if
    that is a module.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if runtime_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(ast.walk(node))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            inner = {f"{package}.{alias.name}" for alias in node.names}
            found = {name for name in inner if name.removeprefix("triomq.") in (modules or {})}
            yield from ((name, node.lineno) for name in sorted(found))
            if found != inner:
                yield package, node.lineno
