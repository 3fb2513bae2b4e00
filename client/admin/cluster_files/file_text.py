"""Read and write the text of a cluster file: YAML, or JSON if its name ends with ``.json``.

YAML needs PyYAML, the extra ``triomq[admin]``; JSON needs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triomq.client.admin.cluster_files.items import FILE_BYTES_MAX, FileTree, KeyPath
from triomq.client.core.errors import SettingsError

JSON_SUFFIX = ".json"
INSTALL = "install it with `pip install 'triomq[admin]'`, or use JSON: a file name with .json"
HEADER = (
    "# A cluster file of `mqadmin cluster export`, for `cluster diff`, `apply` and `import`.\n"
    "# It has no passwords, no topics and groups of the system, no retry and dead-letter topics.\n"
)


def read_tree(path: Path) -> FileTree:
    """Return the content of a file. Raises: SettingsError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror or error}; `mqadmin cluster export -o {path}`"
            " writes one"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(
            f"{path} is larger than {FILE_BYTES_MAX} bytes (8 MiB), the limit of cluster files:"
            " divide it into one file for topics, one for groups, one for offsets"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    try:
        return tree_of(text, str(path))
    except RecursionError:
        raise SettingsError(f"{path} is nested too deeply; export one to see the form") from None


def tree_of(text: str, name: str) -> FileTree:
    """Return the tree of a text; the suffix of ``name`` says which form it has.

    Raises: SettingsError for what is neither; RecursionError.
    """
    return _json_tree(text, name) if name.endswith(JSON_SUFFIX) else _yaml_tree(text, name)


def _json_tree(text: str, name: str) -> FileTree:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise SettingsError(f"{name}: the key {twice!r} occurs twice in one map; remove one")
        return found

    try:
        return FileTree(json.loads(text, object_pairs_hook=unique), {}, name)
    except ValueError as error:
        raise SettingsError(f"{name} is not JSON: {error}; correct that line") from None


def _yaml(name: str) -> Any:
    try:
        import yaml  # not for JSON: start-up time, and an optional extra
    except ImportError:
        raise SettingsError(f"{name}: YAML needs the package pyyaml; {INSTALL}") from None
    return yaml


def _yaml_tree(text: str, name: str) -> FileTree:
    yaml = _yaml(name)
    lines: dict[KeyPath, int] = {}
    seen: set[int] = set()
    scalars = yaml.SafeLoader("")

    def plain(node: object, path: KeyPath) -> object:
        if id(node) in seen:
            raise FileTree(None, lines, name).wrong(
                path, "is an alias, which cluster files do not have; write the values out"
            )
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [plain(one, path) for one in node.value]
        if not isinstance(node, yaml.MappingNode):
            return scalars.construct_object(node)
        found: dict[str, object] = {}
        for key, value in node.value:
            # The text of a key as it was typed: a topic may be called 17 or on.
            word = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            here = (*path, word)
            if word in found or not word:
                lines[here] = key.start_mark.line + 1
                raise FileTree(None, lines, name).wrong(
                    here, "is not a key" if not word else "occurs twice; remove one"
                )
            lines[here] = key.start_mark.line + 1
            found[word] = plain(value, here)
        return found

    try:
        # The C form is ten times as fast; it is missing where PyYAML was built without libyaml.
        node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return FileTree(None if node is None else plain(node, ()), lines, name)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, SettingsError):
            raise
        cause = " ".join(str(error).split())
        raise SettingsError(f"{name} is not YAML: {cause}; correct that line") from None


def text_of(root: Mapping[str, object], name: str | None) -> str:
    """Return the text of a file; without a name it is YAML. Raises: SettingsError."""
    if name is not None and name.endswith(JSON_SUFFIX):
        return json.dumps(root, indent=2, ensure_ascii=False) + "\n"
    yaml = _yaml(name or "the cluster file")
    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc, unused-ignore]
        """Writes equal values out, since a reader of the file refuses aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    text: str = yaml.dump(root, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return HEADER + text


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole. Raises: SettingsError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror or error}; name another file with -o"
        ) from None
